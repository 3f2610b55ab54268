"""The picker's own account: what was placed where and is not finished. Booked with the choice, released exactly once.

A booking holds its endpoint as an object, not by name: it is released where it was booked, whatever discovery says
meanwhile.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.state.endpoints import Endpoint

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import EndpointTable

GAUGE_LAG_MS: Final = 250.0
"""An engine's gauges are those of the end of its last step: how much older than its sample a gauge may be."""
REMEMBER_MS: Final = 3_000.0
"""How long releases are remembered, to recognise our own requests in a gauge that is that much late."""
TOGETHER_MS: Final = 50.0
"""Releases within this time are remembered as one."""


class Phase(IntEnum):
    """How far an exchange is, as far as it can be known without its body."""

    PREFILL = 0
    DECODE = 1
    RELEASED = 2


class Booking(msgspec.Struct, kw_only=True, eq=False):
    """One request in flight. Lengths in tokens, times in ms."""

    endpoint: Endpoint
    placed_ms: float
    prompt_tokens: float
    uncached_tokens: float
    expected_output: float
    """Per sequence."""
    sequences: int
    prefill_ms: float
    adapter: str
    inference: bool = True
    """The engine counts it among its sequences while it is in flight."""
    first_ms: float = 0.0
    """Predicted, later observed, time of the first token; from when it was booked."""
    phase: Phase = Phase.PREFILL
    deferred: bool = False
    """It was placed where its adapter waits for a GPU slot: the engine passes it over."""

    @property
    def released(self) -> bool:
        """True once the account no longer counts it."""
        return self.phase is Phase.RELEASED


class _Account:
    """What the ledger holds of one endpoint."""

    __slots__ = ("left", "open")

    def __init__(self) -> None:
        self.open: dict[Booking, None] = {}
        """Open bookings, in the order in which they were placed here."""
        self.left: deque[list[float]] = deque()
        """[time until which, sequences] of what was released lately."""


class Ledger:
    """Books, moves and releases; keeps the columns of the table equal to the sums over the open bookings."""

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._accounts: dict[Endpoint, _Account] = {}
        self._mean_prefill_ms = 50.0
        """Of what was booked lately: what a waiting request of somebody else is taken to need."""

    def __len__(self) -> int:
        return sum(len(account.open) for account in self._accounts.values())

    def at(self, endpoint: Endpoint) -> list[Booking]:
        """Open bookings of an endpoint, oldest first."""
        return list(self._open(endpoint))

    def _open(self, endpoint: Endpoint) -> dict[Booking, None]:
        account = self._accounts.get(endpoint)
        return account.open if account is not None else {}

    def book(self, booking: Booking, now: float) -> Booking:
        """Adds a new booking; its prefill starts when the work booked before it is done."""
        self._enter(booking, now)
        self._mean_prefill_ms += 0.02 * (booking.prefill_ms - self._mean_prefill_ms)
        return booking

    def _enter(self, booking: Booking, now: float) -> None:
        table, slot = self._table, booking.endpoint.slot
        columns = table.account.columns
        sequences, prompt, expected = booking.sequences, booking.prompt_tokens, booking.expected_output
        uncached = booking.uncached_tokens
        if booking.phase is Phase.PREFILL:
            sharing = table.sharing
            if sharing is not None:
                # By a name of its own: to call what an instance holds takes twice as long where it looks like a method.
                booked = sharing.booked
                booked(slot, booking.prefill_ms, now)
            booking.first_ms = columns.enter(slot, sequences, prompt, expected, uncached, booking.prefill_ms, now)
        else:
            columns.enter_decoding(slot, sequences, prompt, expected, uncached, booking.first_ms)
        account = self._accounts.get(booking.endpoint)
        if account is None:
            account = self._accounts[booking.endpoint] = _Account()
        account.open[booking] = None

    def _leave(self, booking: Booking, now: float, *, answered: bool) -> None:
        endpoint, sequences = booking.endpoint, booking.sequences
        slot = endpoint.slot
        account = self._accounts[endpoint]
        del account.open[booking]
        left = account.left
        while left and left[0][0] < now - REMEMBER_MS:
            left.popleft()
        until = now - now % TOGETHER_MS + TOGETHER_MS
        if left and left[-1][0] == until:
            left[-1][1] += sequences
        else:
            left.append([until, sequences])
        sharing = self._table.sharing
        if sharing is not None:
            released = sharing.released
            released(slot, sequences, now)
        ahead = booking.first_ms - now
        if booking.phase is Phase.PREFILL and ahead > 0:
            # An answer proves that its prefill, and what was queued before it, is done; else only its own work is gone.
            gone = ahead if answered else min(ahead, booking.prefill_ms)
            self._shift(endpoint, -gone, after=booking.first_ms, now=now)
        if account.open:
            self._table.account.columns.leave(
                slot,
                sequences,
                booking.prompt_tokens,
                booking.expected_output,
                booking.uncached_tokens,
                booking.first_ms,
                booking.phase is Phase.PREFILL,
            )
        else:
            self._table.account.columns.leave_idle(slot, now)

    def _shift(self, endpoint: Endpoint, delta_ms: float, *, after: float, now: float) -> None:
        """Moves the predicted first tokens of the bookings behind `after`, and the end of the queue, by `delta_ms`."""
        own, slot = self._table.account, endpoint.slot
        own.free_at_ms[slot] = max(now, float(own.free_at_ms[slot]) + delta_ms)
        prefill, shifted = Phase.PREFILL, 0.0
        for booking in reversed(self._open(endpoint)):
            if booking.phase is not prefill:
                continue
            first = booking.first_ms
            if first <= after:
                break
            moved = first + delta_ms
            if moved < now:
                moved = now
            shifted += (moved - first) * booking.sequences
            booking.first_ms = moved
        if shifted:
            own.started_sum_ms[slot] += shifted

    def first_token(self, booking: Booking, now: float) -> None:
        """The first token was seen: the prefill queue of the endpoint is corrected by half of the error."""
        if booking.phase is not Phase.PREFILL:
            return
        error = now - booking.first_ms
        endpoint, slot, own = booking.endpoint, booking.endpoint.slot, self._table.account
        if not booking.deferred and (error > 0 or own.free_at_ms[slot] > now):
            # Half: one observation also carries what only this request met (co-scheduled chunks, a stalled step).
            self._shift(endpoint, 0.5 * error, after=booking.first_ms, now=now)
        own.uncached_tokens[slot] -= booking.uncached_tokens
        own.started_sum_ms[slot] += (now - booking.first_ms) * booking.sequences
        booking.first_ms = now
        booking.phase = Phase.DECODE

    def move(self, booking: Booking, endpoint: Endpoint, now: float, uncached_tokens: float) -> None:
        """Another endpoint served, where it finds all but `uncached_tokens`: the booking goes there as a whole."""
        if booking.released or endpoint is booking.endpoint:
            return
        old = booking.endpoint
        self._leave(booking, now, answered=False)
        booking.endpoint = endpoint
        booking.uncached_tokens = uncached_tokens
        self._enter(booking, now)
        if old.draining:
            self._drop_if_idle(old)

    def release(self, booking: Booking, now: float, *, answered: bool = True) -> bool:
        """Ends a booking; True the first time, False (and nothing changes) after that.

        `answered`: a pod generated the answer, so the request's prefill was done.
        """
        if booking.released:
            return False
        self._leave(booking, now, answered=answered)
        booking.phase = Phase.RELEASED
        if booking.endpoint.draining:
            self._drop_if_idle(booking.endpoint)
        return True

    def _drop_if_idle(self, endpoint: Endpoint) -> None:
        if self._table.drop_if_idle(endpoint):
            del self._accounts[endpoint]

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint lost its slot while it was idle."""
        self._accounts.pop(endpoint, None)

    def explained(self, endpoint: Endpoint, sample_ms: float) -> float:
        """The most sequences that we, and those who share the pool, may have in gauges read at `sample_ms`: in flight
        now, or released since."""
        account, sharing, since = self._accounts.get(endpoint), self._table.sharing, sample_ms - GAUGE_LAG_MS
        released = 0.0
        if account is not None and account.left:
            released += sum(sequences for until, sequences in account.left if until > since)
        if sharing is not None:
            released += sharing.released_since(endpoint.slot, since)
        return self._table.inflight.item(endpoint.slot) + released

    def reconcile_queue(self, endpoint: Endpoint, sample_ms: float, waiting: float, now: float) -> None:
        """Bounds the predicted end of the prefill queue by what the engine said of its queue at `sample_ms`.

        At least the requests it reported waiting, and what was placed since, are still to be prefilled; at most those
        and the ones that had begun: one, and those that came too late for its gauges. Who waits and is not ours is
        taken to need what ours need in the mean.
        """
        still = begun = 0.0
        seen = 0
        for booking in reversed(self._open(endpoint)):
            if booking.deferred:
                continue
            if booking.placed_ms > sample_ms:
                still += booking.prefill_ms
            elif seen < waiting:
                still += booking.prefill_ms
                seen += booking.sequences
            else:
                begun += booking.prefill_ms
                if booking.placed_ms <= sample_ms - GAUGE_LAG_MS:
                    break
        slot, sharing = endpoint.slot, self._table.sharing
        if sharing is not None:
            still += sharing.booked_since(slot, sample_ms)
        lowest = sample_ms + still + max(0.0, waiting - seen) * self._mean_prefill_ms
        highest = lowest + begun + 30.0
        free_at = self._table.account.free_at_ms.item(slot)
        wanted = lowest if free_at < lowest else max(now, highest) if free_at > highest else free_at
        # An end that has passed is the same whenever it was.
        if abs(wanted - free_at) > 1.0 and (wanted > now or free_at > now):
            self._shift(endpoint, wanted - free_at, after=now, now=now)
