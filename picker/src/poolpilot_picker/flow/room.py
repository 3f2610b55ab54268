"""Late binding: which endpoints can start a request soon. What none of them can start waits in the shared queue.

An endpoint has room while its sequences, its KV cache at the predicted peak and the prefill work booked ahead stay
within bounds that are learned (engine gauges, residuals of speed) and may be lowered by configuration. An endpoint with
nothing in flight has room for anything: what is too large for every bound runs alone, and does not wait for ever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from poolpilot_picker.state.load import LoadEstimate

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask

SHORT_TOKENS: Final = 2_048
"""Uncached tokens of work that gives a reserve back at once."""


STACKED: Final = 4.0
"""An endpoint with so many times the prefill work ahead may be chosen while another one could start at once."""
CHECK_MS: Final = 200.0
"""What engines tell of their size is looked at so often by the quick check."""


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an endpoint is full. None: only what is learned bounds it."""

    start_within_ms: float = 250.0
    """Prefill work booked ahead of a request, in the time it is predicted to take."""
    kv_share: float = 0.95
    """Of the KV cache at its predicted peak."""
    max_requests: int | None = None
    max_tokens: int | None = None
    """Uncached prompt tokens in flight."""
    short_tokens: int = SHORT_TOKENS
    short_reserve: float = 0.1
    """Share of each bound that only requests with at most `short_tokens` left to prefill may use."""


class NoRoom(Exception):  # noqa: N818 - says what is so
    """No endpoint that may serve the request has room; `why` in words, `nearest`: the slot that meets most bounds."""

    def __init__(self, why: str, nearest: int) -> None:
        super().__init__(why)
        self.why = why
        self.nearest = nearest


class Room:
    """The bounds of one pool."""

    def __init__(self, settings: RoomSettings) -> None:
        self.settings = settings
        self.kept: int | None = None
        """A slot whose room is kept for another request."""
        self._least = 1.0 - settings.short_reserve
        self._checked_ms = -math.inf
        self._generation = -1
        self._least_sequences = self._least_kv = 0.0

    def narrow(self, view: DecisionView) -> None:
        """Leaves the candidates that have room. Raises NoRoom where none has."""
        kept = self.kept
        if kept is None and self._ample(view):
            return
        idle = view.table.requests == 0.0
        bounds = self._bounds(view)
        (_, soon), *others = bounds
        holds: Mask = np.logical_and.reduce([free for _, free in others])
        room = idle | (soon & holds)
        if kept is not None:
            room[kept] = idle[kept] = holds[kept] = False
        if not (room & view.mask).any():
            raise NoRoom(self._why(view.mask, bounds), self._nearest(view, bounds))
        # Some endpoint can start it soon. Where it goes is the policy's choice: to one that is busy with other long
        # prompts, it may be, so that short requests find the rest free.
        near = view.table.free_at_ms - view.now <= STACKED * self.settings.start_within_ms
        view.keep(room | (holds & near), "has no room")

    def _ample(self, view: DecisionView) -> bool:
        """Every endpoint is far from every bound: the rule in a pool with little to do, at a few sums."""
        settings, table, request = self.settings, view.table, view.request
        requests = table.requests
        if not requests[requests.argmax()]:
            return True
        if settings.max_requests is not None or settings.max_tokens is not None:
            return False
        free_at = table.free_at_ms
        if free_at[free_at.argmax()] - view.now > self._least * settings.start_within_ms:
            return False
        if view.now >= self._checked_ms or table.generation != self._generation:
            self._checked_ms, self._generation = view.now + CHECK_MS, table.generation
            self._least_sequences = float(table.max_sequences.min())
            self._least_kv = settings.kv_share * self._least * float(table.kv_tokens.min())
        sequences = table.inflight + table.foreign
        most = sequences.item(sequences.argmax())
        # Of what others have there, more may be than the newest sample tells.
        if 2.0 * most + request.sequences > self._least * self._least_sequences:
            return False
        used = table.expected_tokens * 2.0
        used += table.new_kv_tokens
        used += table.other_kv_tokens
        more = request.prompt_tokens + request.sequences * view.expected_output
        return bool(used.item(used.argmax()) + more <= self._least_kv)

    def _bounds(self, view: DecisionView) -> list[tuple[str, Mask]]:
        """(what is bounded, where it is within its bound)."""
        settings, table, request = self.settings, view.table, view.request
        share = self._share(view)
        bounds = [
            ("prefill", table.free_at_ms - view.now <= settings.start_within_ms * share),
            ("sequences", view.load.sequences + float(request.sequences) <= table.max_sequences * share),
        ]
        if settings.max_requests is not None:
            most = np.maximum(1.0, np.floor(settings.max_requests * share))
            bounds.append(("requests", table.requests + 1.0 <= most))
        uncached = request.prompt_tokens - view.cached_tokens
        if settings.max_tokens is not None:
            bounds.append(("tokens", table.uncached_tokens + uncached <= settings.max_tokens * share))
        used = table.new_kv_tokens + np.maximum(table.other_kv_tokens, table.generated_tokens(view.now))
        # Of what is there, some end while others grow: only this request's own growth is still to come.
        peak = used + uncached + request.sequences * view.expected_output
        bounds.append(("KV cache", peak <= settings.kv_share * share * table.kv_tokens))
        return bounds

    def _share(self, view: DecisionView) -> Floats | float:
        """Of each bound that the request may use, per slot."""
        settings, prompt = self.settings, view.request.prompt_tokens
        if settings.short_reserve <= 0.0 or prompt <= settings.short_tokens:
            return 1.0
        short = prompt - view.cached_tokens <= settings.short_tokens
        return np.where(short, 1.0, 1.0 - settings.short_reserve)

    @staticmethod
    def _nearest(view: DecisionView, bounds: list[tuple[str, Mask]]) -> int:
        """The candidate that is within most bounds; of those, the one whose prefill work ends first."""
        within = np.sum([free for _, free in bounds], axis=0, dtype=np.float64)
        rank = np.where(view.mask, within - 1e-9 * np.maximum(0.0, view.table.free_at_ms - view.now), -np.inf)
        return int(rank.argmax())

    @staticmethod
    def _why(mask: Mask, bounds: list[tuple[str, Mask]]) -> str:
        """Which bounds are met by no candidate; where each is met by some, all."""
        names = [name for name, free in bounds if not (free & mask).any()] or [name for name, _ in bounds]
        return f"no endpoint has room: {', '.join(names)}"

    def any(self, table: EndpointTable, now: float) -> bool:
        """Some endpoint may have room for something: a cheap look before dearer ones."""
        soon = table.free_at_ms - now <= self.settings.start_within_ms
        return bool(((soon | (table.requests == 0.0)) & table.eligible).any())

    def next_ms(self, table: EndpointTable, now: float) -> float:
        """When time alone will next make room: an endpoint's prefill work will have shrunk. Infinite: only an end of
        a request, or telemetry, can."""
        when = table.free_at_ms[table.eligible]
        ends = [when - share * self.settings.start_within_ms for share in self._shares]
        later = [float(end[end > now].min(initial=math.inf)) for end in ends]
        return min(later, default=math.inf)

    @property
    def _shares(self) -> tuple[float, ...]:
        reserve = self.settings.short_reserve
        return (1.0, 1.0 - reserve) if reserve > 0.0 else (1.0,)

    def saturation(self, table: EndpointTable, now: float, stale_after_ms: float) -> float:
        """How full the pool is, 0 to 1: the mean over its endpoints of the bound that is used most. 1 without any."""
        mask = table.eligible
        if not mask.any():
            return 1.0
        settings = self.settings
        load = LoadEstimate(table, now, stale_after_ms)
        used = np.maximum(load.sequences / table.max_sequences, (table.free_at_ms - now) / settings.start_within_ms)
        kv = (table.new_kv_tokens + np.maximum(table.other_kv_tokens, table.generated_tokens(now))) / table.kv_tokens
        used = np.maximum(used, kv / settings.kv_share)
        if settings.max_requests is not None:
            used = np.maximum(used, table.requests / settings.max_requests)
        if settings.max_tokens is not None:
            used = np.maximum(used, table.uncached_tokens / settings.max_tokens)
        return float(np.clip(used, 0.0, 1.0)[mask].mean())
