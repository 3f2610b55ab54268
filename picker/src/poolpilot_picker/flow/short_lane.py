"""Which endpoints long prompts leave to short requests. Beside room, which asks before a long prompt is placed.

An engine gives the whole of its steps to the prompt that it has begun: a short request that comes meanwhile waits for
its end, seconds it may be. Where many short requests come, a long prompt leaves the endpoints where most of them are,
and waits rather than find room only at the last ones without a long prompt. It may also go behind another that is
nearly done.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.state.columns import Floats, Mask
    from poolpilot_picker.state.ledger import Booking

WINDOW_MS: Final = 10_000.0
"""Time constant of the rate at which short requests come, and how long is known where they may go."""
LOOK_MS: Final = 1_000.0
"""Between two looks at where short requests may go."""
EXPECTED: Final = 1.0
"""So many short requests must be expected while a long prompt is prefilled. Where fewer come, it may go anywhere: an
endpoint that waits for them would be lost to the rest."""
FILL: Final = 0.4
"""Of a batch, what short requests are to fill at the endpoints that are left to them: a burst still fits in."""
LATE: Final = 1.4
"""Times its predicted time, after which a long prompt is taken to be done: engines differ, and so do prompts."""
WARM: Final = 0.5
"""An endpoint where less than this share of the tokens must be computed that must be elsewhere may be had: its cache is
worth more than the wait of others."""
PATIENCE_MS: Final = 15_000.0
"""An overdue long prompt may go anywhere, if none went for so long. Any that is overdue leaves the least share only."""


class ShortLane:
    """Of one pool. `share` of its endpoints are left, at least one, and as many as its requests fill; 0: none."""

    __slots__ = (
        "_busy",
        "_count",
        "_left_ms",
        "_newest_ms",
        "_open_ms",
        "_sequences",
        "_share",
        "_taken_ms",
        "look_ms",
    )

    def __init__(self, share: float) -> None:
        self._share = share
        self._count = 0.0
        self._newest_ms = -math.inf
        self._sequences = 0
        """Of short requests in flight."""
        self._busy: dict[int, tuple[float, Booking]] = {}
        """Slot → when its newest long prompt will surely be done, and which it is."""
        self._taken_ms = -math.inf
        """When a long prompt was placed last."""
        self._left_ms = -math.inf
        """When one was last told to leave endpoints alone."""
        self._open_ms: Floats = np.zeros(0)
        """Per slot: when a short request might last have gone there."""
        self.look_ms = -math.inf
        """When to call `open_to` again."""

    # ---- what happens

    def open_to(self, mask: Mask, now: float) -> None:
        """Where a short request may go, whatever room there is."""
        self.look_ms = now + LOOK_MS
        self._reach(len(mask))
        self._open_ms[: len(mask)][mask] = now

    def came(self, sequences: int, now: float) -> None:
        """A short request was placed."""
        self._sequences += sequences
        self._count = 1.0 + self._count * math.exp((self._newest_ms - now) / WINDOW_MS)
        self._newest_ms = now

    def went(self, sequences: int) -> None:
        """A short request is no longer in flight."""
        self._sequences -= sequences

    def taken(self, booking: Booking, ahead_ms: float, now: float) -> None:
        """A long prompt was placed; it is predicted to be done in so long."""
        self._busy[booking.endpoint.slot] = now + LATE * ahead_ms, booking
        self._taken_ms = now

    def ended(self, booking: Booking) -> None:
        """A request is no longer in flight: if it was a long prompt, nobody waits for its end."""
        for slot, (_, newest) in self._busy.items():
            if newest is booking:
                del self._busy[slot]
                break

    # ---- what is asked

    def expected(self, within_ms: float, now: float) -> float:
        """Short requests that will come within a time, as lately."""
        return self._count * math.exp((self._newest_ms - now) / WINDOW_MS) * within_ms / WINDOW_MS

    def busy(self, now: float) -> bool:
        """Somewhere a long prompt may not be done yet."""
        for slot in [slot for slot, (until, _) in self._busy.items() if until <= now]:
            del self._busy[slot]
        return bool(self._busy)

    def next_ms(self, now: float) -> float:
        """When to ask again for a long prompt that waits: another is surely done, or fewer short requests come."""
        if now - self._left_ms > LOOK_MS:
            return math.inf
        return min([now + LOOK_MS, *(until for until, _ in self._busy.values() if until > now)])

    def left(
        self,
        uncached: Floats,
        work_ms: Floats,
        ahead_ms: Floats,
        sequences: Floats,
        most_sequences: Floats,
        mask: Mask,
        most_ms: float,
        now: float,
        *,
        overdue: bool = False,
    ) -> Mask | None:
        """Endpoints that a prompt with so many uncached tokens, which take `work_ms` there, may not have; None where it
        may have any of `mask`.

        `ahead_ms`: prefill work at each; with more than `most_ms` an endpoint is busy with long prompts already, and
        what is no more makes no long prompt. `sequences`: in flight at each; `most_sequences` fill one.
        """
        if self._share <= 0.0 or (overdue and now - self._taken_ms > PATIENCE_MS):
            return None
        long = mask & (work_ms > most_ms)
        if not long.any() or self.expected(float(work_ms[long].mean()), now) < EXPECTED:
            return None
        self._reach(len(mask))
        shared: Mask = self._open_ms[: len(mask)] > now - WINDOW_MS
        count = int(shared.sum())
        if count < 2:
            return None
        clear, rest = shared & (ahead_ms <= most_ms), np.where(shared, ahead_ms, np.inf)
        if self.busy(now):
            for slot, (until, _) in self._busy.items():
                if slot < len(rest):
                    clear[slot] = False
                    rest[slot] = max(rest[slot], until - now)
        least = min(math.ceil(self._share * count), count - 1)
        few, most = int(clear.sum()), least
        if not overdue:
            filled = self._sequences / float(most_sequences[shared].mean())
            most = min(max(least, math.ceil(filled / FILL)), count - 1)
        if few > most:
            # Where most are: short requests go there for its short steps, and would rather wait than leave.
            rest[:] = np.where(clear, -sequences, np.inf)
            clear[np.argsort(rest)[most:]] = False
        elif few < least:
            # Those that will be done first are given no other: else long prompts that have all of them keep all.
            rest[clear] = np.inf
            clear[np.argsort(rest)[: least - few]] = True
        left = clear & long
        elsewhere = mask & ~left
        if not elsewhere.any():
            return None
        left &= uncached > WARM * float(uncached[elsewhere].min())
        self._left_ms = now
        return left

    def _reach(self, slots: int) -> None:
        more = slots - len(self._open_ms)
        if more > 0:
            self._open_ms = np.concatenate([self._open_ms, np.full(more, -np.inf)])
