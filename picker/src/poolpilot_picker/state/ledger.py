"""The picker's own account: what was placed where and is not finished. Booked in the same step as the choice, released exactly once.

A booking holds its endpoint as an object, not by name: it is released where it was booked, whatever discovery says meanwhile.
"""

from __future__ import annotations

from enum import IntEnum

from poolpilot_picker.state.endpoints import Endpoint, EndpointTable


class Phase(IntEnum):
    """How far an exchange is, as far as it can be known without its body."""

    PREFILL = 0
    DECODE = 1
    RELEASED = 2


class Booking:
    """One request in flight. Lengths in tokens, times in ms."""

    __slots__ = (
        "adapter",
        "endpoint",
        "expected_output",
        "first_ms",
        "phase",
        "placed_ms",
        "prefill_ms",
        "prompt_tokens",
        "sequences",
        "ttft_ms",
        "uncached_tokens",
    )

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        placed_ms: float,
        prompt_tokens: float,
        uncached_tokens: float,
        expected_output: float,
        sequences: int,
        prefill_ms: float,
        ttft_ms: float,
        adapter: str,
    ) -> None:
        self.endpoint = endpoint
        self.placed_ms = placed_ms
        self.prompt_tokens = prompt_tokens
        self.uncached_tokens = uncached_tokens
        self.expected_output = expected_output
        """Per sequence."""
        self.sequences = sequences
        self.prefill_ms = prefill_ms
        self.ttft_ms = ttft_ms
        """Predicted when it was placed."""
        self.first_ms = placed_ms
        """Predicted, later observed, time of the first token."""
        self.phase = Phase.PREFILL
        self.adapter = adapter

    @property
    def released(self) -> bool:
        """True once the account no longer counts it."""
        return self.phase is Phase.RELEASED


class Ledger:
    """Books, moves and releases; keeps the columns of the table equal to the sums over the open bookings."""

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._open: dict[Endpoint, dict[int, Booking]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def at(self, endpoint: Endpoint) -> list[Booking]:
        """Open bookings of an endpoint, oldest first."""
        return list(self._open.get(endpoint, {}).values())

    def book(self, booking: Booking, now: float) -> Booking:
        """Adds a new booking; its prefill starts when the work booked before it is done."""
        self._enter(booking, now)
        return booking

    def _enter(self, booking: Booking, now: float) -> None:
        table, slot = self._table, booking.endpoint.slot
        sequences = booking.sequences
        table.requests[slot] += 1
        table.inflight[slot] += sequences
        table.prompt_tokens[slot] += booking.prompt_tokens * sequences
        table.expected_tokens[slot] += booking.expected_output * sequences
        table.placed_total[slot] += sequences
        table.placed_uncached_total[slot] += booking.uncached_tokens
        if booking.phase is Phase.PREFILL:
            table.uncached_tokens[slot] += booking.uncached_tokens
            start = max(now, float(table.free_at_ms[slot]))
            booking.first_ms = start + booking.prefill_ms
            table.free_at_ms[slot] = booking.first_ms
        table.started_sum_ms[slot] += booking.first_ms * sequences
        self._open.setdefault(booking.endpoint, {})[id(booking)] = booking

    def _leave(self, booking: Booking, now: float) -> None:
        table, endpoint = self._table, booking.endpoint
        slot, sequences = endpoint.slot, booking.sequences
        held = self._open[endpoint]
        del held[id(booking)]
        if not held:
            del self._open[endpoint]
        if booking.phase is Phase.PREFILL and booking.first_ms > now:
            # It left before its prefill was thought to be done: what waits behind it starts earlier.
            self.shift(endpoint, now - booking.first_ms, after=booking.first_ms, now=now)
        table.requests[slot] -= 1
        table.inflight[slot] -= sequences
        table.finished_total[slot] += sequences
        if table.requests[slot] > 0:
            table.prompt_tokens[slot] -= booking.prompt_tokens * sequences
            table.expected_tokens[slot] -= booking.expected_output * sequences
            if booking.phase is Phase.PREFILL:
                table.uncached_tokens[slot] -= booking.uncached_tokens
            table.started_sum_ms[slot] -= booking.first_ms * sequences
        else:
            # An idle endpoint starts from exact zeros: float sums do not drift over days.
            table.prompt_tokens[slot] = table.expected_tokens[slot] = table.started_sum_ms[slot] = 0.0
            table.inflight[slot] = table.uncached_tokens[slot] = 0.0
            table.free_at_ms[slot] = min(float(table.free_at_ms[slot]), now)

    def shift(self, endpoint: Endpoint, delta_ms: float, *, after: float, now: float) -> None:
        """Moves the predicted first tokens of the bookings behind `after`, and the end of the queue, by `delta_ms`."""
        table, slot = self._table, endpoint.slot
        table.free_at_ms[slot] = max(now, float(table.free_at_ms[slot]) + delta_ms)
        for booking in reversed(self._open.get(endpoint, {}).values()):
            if booking.first_ms <= after:
                break
            if booking.phase is Phase.PREFILL:
                moved = max(now, booking.first_ms + delta_ms)
                table.started_sum_ms[slot] += (moved - booking.first_ms) * booking.sequences
                booking.first_ms = moved

    def first_token(self, booking: Booking, now: float) -> None:
        """The first token was seen: the prefill queue of the endpoint is corrected by half of the error."""
        if booking.phase is not Phase.PREFILL:
            return
        error = now - booking.first_ms
        endpoint, slot = booking.endpoint, booking.endpoint.slot
        if error > 0 or self._table.free_at_ms[slot] > now:
            # Half: one observation also carries what only this request met (co-scheduled chunks, a stalled step).
            self.shift(endpoint, 0.5 * error, after=booking.first_ms, now=now)
        self._table.uncached_tokens[slot] -= booking.uncached_tokens
        self._table.started_sum_ms[slot] += (now - booking.first_ms) * booking.sequences
        booking.first_ms = now
        booking.phase = Phase.DECODE

    def move(self, booking: Booking, endpoint: Endpoint, now: float) -> None:
        """Another endpoint served: the booking goes there, at once and as a whole."""
        if booking.released or endpoint is booking.endpoint:
            return
        old = booking.endpoint
        self._leave(booking, now)
        booking.endpoint = endpoint
        booking.uncached_tokens = booking.prompt_tokens
        self._enter(booking, now)
        self._table.drop_if_idle(old)

    def release(self, booking: Booking, now: float) -> bool:
        """Ends a booking; True the first time, False (and nothing changes) after that."""
        if booking.released:
            return False
        self._leave(booking, now)
        booking.phase = Phase.RELEASED
        self._table.drop_if_idle(booking.endpoint)
        return True

    def reconcile_queue(self, endpoint: Endpoint, sample_ms: float, waiting: float, now: float) -> None:
        """Bounds the predicted end of the prefill queue by what the engine said of its queue at `sample_ms`.

        At least the requests it reported waiting, and what was placed since, are still to be prefilled; at most those
        and one more that had begun.
        """
        placed_after = still_waiting = one = 0.0
        seen = 0
        for booking in reversed(self._open.get(endpoint, {}).values()):
            if booking.placed_ms > sample_ms:
                placed_after += booking.prefill_ms
            elif seen < waiting:
                still_waiting += booking.prefill_ms
                seen += 1
            else:
                one = booking.prefill_ms
                break
        slot = endpoint.slot
        lowest = sample_ms + still_waiting + placed_after
        highest = lowest + one + 30.0
        free_at = float(self._table.free_at_ms[slot])
        wanted = lowest if free_at < lowest else max(now, highest) if free_at > highest else free_at
        if abs(wanted - free_at) > 1.0:
            self.shift(endpoint, wanted - free_at, after=now, now=now)
