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

from poolpilot_picker.flow.prefill_ahead import PrefillAhead
from poolpilot_picker.flow.short_lane import ShortLane
from poolpilot_picker.state.load import LoadEstimate

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Placement
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import EndpointTable, Floats, Mask
    from poolpilot_picker.state.ledger import Booking

SHORT_TOKENS: Final = 2_048
"""Uncached tokens of work that gives a reserve back at once."""
LONG: Final = 0.5
"""Of `start_within_ms`: a prompt that takes longer is long, and makes short requests wait."""
HARD: Final = ("sequences", "requests", "tokens")
"""Bounds that hold although another endpoint has room: the engine's own, beyond which a request waits for certain, and
those that somebody has set."""
STUCK_KV: Final = 0.9
"""With so much of its KV cache in use, whoever waits in an engine waits for the cache."""
OTHERS_MS: Final = 30_000.0
"""So long after the last request that is not sheddable, a pool has only sheddable ones."""


class RoomSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an endpoint is full. None: only what is learned bounds it."""

    start_within_ms: float = 500.0
    """Prefill work booked ahead of a request, in the time it is predicted to take."""
    kv_share: float = 0.95
    """Of the KV cache at its predicted peak."""
    max_requests: int | None = None
    max_tokens: int | None = None
    """Uncached prompt tokens in flight."""
    short_tokens: int = SHORT_TOKENS
    short_reserve: float = 0.1
    """Share of the bounds on prefill work, requests and tokens that only requests with at most `short_tokens` left to
    prefill may use, and of the endpoints that long prompts leave to them."""
    sheddable_share: float = 0.45
    """Of each bound, what requests of negative priority may use while there are others: whoever comes next and is none
    of them then finds engines with room, whose steps are short. Of prefill work, which others wait for, its square."""


class NoRoom(Exception):  # noqa: N818 - says what is so
    """No endpoint that may serve the request has room; `why` in words, `nearest`: the slot that meets most bounds, of
    those that it might have (`among`)."""

    def __init__(self, why: str, nearest: int, among: Mask) -> None:
        super().__init__(why)
        self.why = why
        self.nearest = nearest
        self.among = among


class Room:
    """The bounds of one pool."""

    def __init__(self, settings: RoomSettings) -> None:
        self.settings = settings
        self.kept: int | None = None
        """A slot whose room is kept for another request."""
        self.overdue = False
        """The request has waited for so long that it is overdue."""
        self.chosen = False
        """The policy knows what a request would wait for: while there is room somewhere, it may choose freely."""
        self.ahead = PrefillAhead()
        self._lane = ShortLane(settings.short_reserve)
        self._others_ms = -math.inf
        """When a request that is not sheddable was placed last."""
        self._least = 1.0 - settings.short_reserve

    def placed(self, placement: Placement, table: EndpointTable, now: float) -> bool:
        """A request was booked. Whether it counts as a short one, which `ended` is to be told."""
        booking = placement.booking
        slot = booking.endpoint.slot
        ahead_ms = self.ahead.placed(table, slot, booking.uncached_tokens, booking.prefill_ms, now)
        short = booking.uncached_tokens <= self.settings.short_tokens
        if short:
            self._lane.came(booking.sequences, now)
        elif booking.prefill_ms > LONG * self.settings.start_within_ms:
            self._lane.taken(booking, min(ahead_ms, table.free_at_ms.item(slot) - now), now)
        if placement.request.priority >= 0:
            self._others_ms = now
        return short

    def ended(self, booking: Booking, *, short: bool) -> None:
        """A request is no longer in flight."""
        if short:
            self._lane.went(booking.sequences)
        else:
            self._lane.ended(booking)

    def narrow(self, view: DecisionView) -> None:
        """Leaves the candidates that have room. Raises NoRoom where none has."""
        kept, settings, table = self.kept, self.settings, view.table
        long = view.request.prompt_tokens > settings.short_tokens
        if not long and view.now >= self._lane.look_ms:
            self._lane.open_to(view.mask, view.now)
        if kept is None and self._ample(view) and not (long and self._lane.busy(view.now) and self._is_long(view)):
            return
        idle = table.requests == 0.0
        ahead = self.ahead.at(table, view.now)
        bounds = self._bounds(view, ahead)
        room = idle | np.logical_and.reduce([free for _, free in bounds])
        among = view.mask
        left = self._left(view, ahead) if long else None
        if left is not None:
            among = among & ~left
        if kept is not None:
            room[kept] = False
        if not (room & among).any():
            why = self._why(among, bounds)
            if (room & view.mask).any():
                why += "; the rest is left to short requests"
            raise NoRoom(why, self._nearest(among, bounds, ahead), among)
        if self.chosen and self._sheddable(view.request.priority, view.now) == 1.0:
            # Behind others at an endpoint that holds its prefix or its adapter it may still end sooner, and leaves the
            # room to the next one. Sent where there is room only, requests lose their caches just when all are needed.
            room = idle | np.logical_and.reduce([free for name, free in bounds if name in HARD])
            if kept is not None:
                room[kept] = False
            among = view.mask if left is None else among
        view.keep(room & among, "has no room")

    def _is_long(self, view: DecisionView) -> bool:
        """Also where most of it is cached."""
        cached = float(view.cached_tokens[view.mask].max(initial=0.0))
        return view.request.prompt_tokens - cached > self.settings.short_tokens

    def _left(self, view: DecisionView, ahead: Floats) -> Mask | None:
        """Endpoints that are left to short requests, and not to this one."""
        table, cached = view.table, view.cached_tokens
        uncached = view.request.prompt_tokens - cached
        work = uncached * (table.token_ms + table.token2_ms * (uncached + 2.0 * cached))
        sequences, most_ms = view.load.sequences, LONG * self.settings.start_within_ms
        return self._lane.left(
            uncached, work, ahead, sequences, table.max_sequences, view.mask, most_ms, view.now, overdue=self.overdue
        )

    def _ample(self, view: DecisionView) -> bool:
        """Every endpoint is far from every bound: the rule in a pool with little to do, at one call."""
        settings, table, request = self.settings, view.table, view.request
        if settings.max_requests is not None or settings.max_tokens is not None:
            return not table.requests.any()
        shed = 1.0 if request.priority >= 0 else self._sheddable(request.priority, view.now)
        share = self._least * shed
        # Twice what is ours and others': more may be there than the newest sample tells.
        return table.columns.ample(
            view.now + share * shed * settings.start_within_ms,
            request.sequences,
            request.prompt_tokens + request.sequences * view.expected_output,
            share,
            settings.kv_share,
        )

    def _bounds(self, view: DecisionView, ahead: Floats) -> list[tuple[str, Mask]]:
        """(what is bounded, where it is within its bound)."""
        settings, table, request = self.settings, view.table, view.request
        # Short requests give prefill work back at once, but hold their place in the batch as long as others.
        share = self._sheddable(request.priority, view.now)
        soon = share * self._short(view)
        bounds = [
            ("prefill", ahead <= settings.start_within_ms * share * soon),
            ("sequences", view.load.sequences + float(request.sequences) <= table.max_sequences * share),
        ]
        if settings.max_requests is not None:
            most = np.maximum(1.0, np.floor(settings.max_requests * soon))
            bounds.append(("requests", table.requests + 1.0 <= most))
        uncached = request.prompt_tokens - view.cached_tokens
        if settings.max_tokens is not None:
            bounds.append(("tokens", table.uncached_tokens + uncached <= settings.max_tokens * soon))
        used = table.kv_in_use(table.other_kv_tokens, table.generated_tokens(view.now))
        # Of what is there, some end while others grow: only this request's own growth is still to come.
        peak = used + uncached + request.sequences * view.expected_output
        # Who waits though there is room in the batch waits for the cache, and all that come behind it would: estimates
        # of tokens were too low.
        stuck = (table.queued > 0.0) & (table.kv_usage > STUCK_KV)
        bounds.append(("KV cache", (peak <= settings.kv_share * share * table.kv_tokens) & ~stuck))
        return bounds

    def _short(self, view: DecisionView) -> Floats | float:
        """Of the bounds that have a reserve for short requests, what this one may use, per slot."""
        settings, prompt = self.settings, view.request.prompt_tokens
        if settings.short_reserve <= 0.0 or prompt <= settings.short_tokens:
            return 1.0
        short = prompt - view.cached_tokens <= settings.short_tokens
        return np.where(short, 1.0, 1.0 - settings.short_reserve)

    def _sheddable(self, priority: int, now: float) -> float:
        """Of every bound, what a request of this priority may use."""
        beside = priority < 0 and now - self._others_ms < OTHERS_MS
        return self.settings.sheddable_share if beside else 1.0

    @staticmethod
    def _nearest(among: Mask, bounds: list[tuple[str, Mask]], ahead: Floats) -> int:
        """The candidate that is within most bounds; of those, the one whose prefill work ends first."""
        within = np.sum([free for _, free in bounds], axis=0, dtype=np.float64)
        rank = np.where(among, within - 1e-9 * np.maximum(0.0, ahead), -np.inf)
        return int(rank.argmax())

    @staticmethod
    def _why(mask: Mask, bounds: list[tuple[str, Mask]]) -> str:
        """Which bounds are met by no candidate; where each is met by some, all."""
        names = [name for name, free in bounds if not (free & mask).any()] or [name for name, _ in bounds]
        return f"no endpoint has room: {', '.join(names)}"

    def any(self, table: EndpointTable, now: float, priority: int = 0) -> bool:
        """Some endpoint may have room for a request of a priority: a cheap look before dearer ones."""
        share = self._sheddable(priority, now)
        soon = self.ahead.at(table, now) <= share * share * self.settings.start_within_ms
        soon &= table.inflight + 1.0 <= share * table.max_sequences
        return bool(((soon | (table.requests == 0.0)) & table.eligible).any())

    def next_ms(self, table: EndpointTable, now: float) -> float:
        """When time alone will next make room: an endpoint's prefill work will have shrunk. Infinite: only an end of
        a request, or telemetry, can."""
        when = now + self.ahead.at(table, now)[table.eligible]
        ends = [when - share * self.settings.start_within_ms for share in self._shares]
        later = [float(end[end > now].min(initial=math.inf)) for end in ends]
        return min(*later, self._lane.next_ms(now))

    @property
    def _shares(self) -> tuple[float, ...]:
        """Of the bound on prefill work, by priority and length."""
        least, low = self._least, self.settings.sheddable_share**2
        return tuple(dict.fromkeys((1.0, least, low, low * least)))

    def saturation(self, table: EndpointTable, now: float, stale_after_ms: float) -> float:
        """How full the pool is, 0 to 1: the mean over its endpoints of the bound that is used most. 1 without any."""
        mask = table.eligible
        if not mask.any():
            return 1.0
        settings = self.settings
        load = LoadEstimate(table, now, stale_after_ms)
        used = np.maximum(load.sequences / table.max_sequences, self.ahead.at(table, now) / settings.start_within_ms)
        kv = table.kv_in_use(table.other_kv_tokens, table.generated_tokens(now)) / table.kv_tokens
        used = np.maximum(used, kv / settings.kv_share)
        if settings.max_requests is not None:
            used = np.maximum(used, table.requests / settings.max_requests)
        if settings.max_tokens is not None:
            used = np.maximum(used, table.uncached_tokens / settings.max_tokens)
        return float(np.clip(used, 0.0, 1.0)[mask].mean())
