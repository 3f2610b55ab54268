"""What a worker writes for the others, and reads of them, when a request is placed and when it ends: on its way.

`ReferenceShares` is the reference of what `compiled/_shares.pyx` does in the same way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from poolpilot_picker import compiled
from poolpilot_picker.sharing.memory import BOOKED, BUCKET_MS, BUCKETS, RELEASED

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.sharing.memory import Memory
    from poolpilot_picker.state.endpoints import EndpointTable


class Shares(Protocol):
    """The sums over all accounts, and what of our own is remembered by time. Times in ms."""

    due_ms: float
    """From then on the next decision hears the others' news first."""

    def follow(self, table: EndpointTable, accounts: list[Any], others: list[memoryview[float]]) -> None:
        """The processes and endpoints of this moment; our own account is the first. `others`: what of theirs is
        remembered by time (`recent_of`). Called by `look_around`."""
        ...

    def resized(self) -> None:
        """The table's columns are others than before: looks around before the next sum."""
        ...

    def catch_up(self, now: float, /) -> None:
        """Before a decision: brings the sums up to date, when it is due after hearing what the others have told."""
        ...

    def sum_up(self) -> None:
        """Makes the ledger's rows of the table the sums over all processes."""
        ...

    def sum_up_slot(self, slot: int, /) -> None:
        """The same for one slot."""
        ...

    def booked(self, slot: int, prefill_ms: float, now: float, /) -> None:
        """We place a request: it starts behind what all have placed there."""
        ...

    def released(self, slot: int, sequences: float, now: float, /) -> None:
        """A request of ours ends."""
        ...

    def booked_since(self, slot: int, since_ms: float) -> float:
        """Prefill work, in ms, that others have placed since then; not what was placed within BUCKET_MS after it."""
        ...

    def released_since(self, slot: int, since_ms: float) -> float:
        """Sequences of others that ended since then, or within BUCKET_MS before it."""
        ...


def recent_of(memory: Memory, chair: int) -> memoryview[float]:
    """What a chair remembers by time, as a flat view: an item of it costs a fraction of an array's."""
    words: memoryview[float] = memory.recent[chair].reshape(-1).data
    return words


def shares(memory: Memory, chair: int, look_around: Callable[[], None], hear: Callable[[float], None]) -> Shares:
    """Those of a chair, by the core in force. `look_around` is called when a process has come or gone, or the table
    has other columns; `hear` when that is due. Nothing else before the first `follow`."""
    core = compiled.in_force
    epoch: memoryview = memory.epoch.data
    recent = recent_of(memory, chair)
    kind = ReferenceShares if core is None else core.shares
    return kind(epoch, recent, BUCKETS, BUCKET_MS, look_around, hear)


class ReferenceShares:
    """The same in Python. `recent`: for each slot `buckets` stamps, as many released sequences and booked ms."""

    def __init__(
        self,
        epoch: memoryview,
        recent: memoryview[float],
        buckets: int,
        bucket_ms: float,
        look_around: Callable[[], None],
        hear: Callable[[float], None],
    ) -> None:
        self._epoch = epoch
        self._recent = recent
        self._buckets = buckets
        self._bucket_ms = bucket_ms
        self._look_around = look_around
        self._hear = hear
        self._seen: int | None = None
        self._table: EndpointTable
        self._accounts: list[Any] = []
        self._others: list[memoryview[float]] = []
        self.due_ms = -math.inf

    def follow(self, table: EndpointTable, accounts: list[Any], others: list[memoryview[float]]) -> None:
        """As `Shares.follow`."""
        self._table, self._accounts, self._others = table, accounts, others
        self._seen = self._epoch[0]

    def resized(self) -> None:
        """As `Shares.resized`."""
        self._seen = None

    def _refresh(self) -> None:
        if self._seen != self._epoch[0]:
            self._look_around()

    def catch_up(self, now: float, /) -> None:
        """As `Shares.catch_up`."""
        if now >= self.due_ms:
            self._hear(now)
        self.sum_up()

    def sum_up(self) -> None:
        """As `Shares.sum_up`."""
        self._refresh()
        self._table.columns.sum_up(self._accounts)

    def sum_up_slot(self, slot: int, /) -> None:
        """As `Shares.sum_up_slot`."""
        self._refresh()
        self._table.columns.sum_up_slot(self._accounts, slot)

    def booked(self, slot: int, prefill_ms: float, now: float, /) -> None:
        """As `Shares.booked`."""
        self._refresh()
        table = self._table
        table.account.free_at_ms[slot] = table.free_at_ms[slot]
        self._recent[self._place(slot, now) + BOOKED * self._buckets] += prefill_ms

    def released(self, slot: int, sequences: float, now: float, /) -> None:
        """As `Shares.released`."""
        self._recent[self._place(slot, now) + RELEASED * self._buckets] += sequences

    def booked_since(self, slot: int, since_ms: float) -> float:
        """As `Shares.booked_since`."""
        return self._since(slot, BOOKED, since_ms // self._bucket_ms + 1.0)

    def released_since(self, slot: int, since_ms: float) -> float:
        """As `Shares.released_since`."""
        return self._since(slot, RELEASED, since_ms // self._bucket_ms)

    def _since(self, slot: int, row: int, bucket: float) -> float:
        self._refresh()
        stamps = range(slot * 3 * self._buckets, (slot * 3 + 1) * self._buckets)
        beside = row * self._buckets
        return sum((one[at + beside] for one in self._others for at in stamps if one[at] >= bucket), 0.0)

    def _place(self, slot: int, now: float) -> int:
        """Of the stamp of the bucket of this moment; what was remembered there before is forgotten."""
        recent, buckets = self._recent, self._buckets
        bucket = now // self._bucket_ms
        place = slot * 3 * buckets + int(bucket) % buckets
        if recent[place] != bucket:
            recent[place + RELEASED * buckets] = recent[place + BOOKED * buckets] = 0.0
            recent[place] = bucket
        return place
