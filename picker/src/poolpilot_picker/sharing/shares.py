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

    def follow(self, table: EndpointTable, accounts: list[Any]) -> None:
        """The processes and endpoints of this moment; our own account is the first. Called by `look_around`."""
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


def shares(memory: Memory, chair: int, look_around: Callable[[], None], hear: Callable[[float], None]) -> Shares:
    """Those of a chair, by the core in force. `look_around` is called when a process has come or gone, or the set of
    endpoints has changed; `hear` when that is due. Nothing else before the first `follow`."""
    core = compiled.in_force
    # Flat views of single words: an item of theirs costs a fraction of an array's.
    epoch: memoryview = memory.epoch.data
    recent: Any = memory.recent[chair].reshape(-1).data
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
        self._seen: tuple[int, int] | None = None
        self._table: EndpointTable
        self._accounts: list[Any] = []
        self.due_ms = -math.inf

    def follow(self, table: EndpointTable, accounts: list[Any]) -> None:
        """As `Shares.follow`."""
        self._table, self._accounts = table, accounts
        self._seen = self._epoch[0], table.generation

    def _refresh(self) -> None:
        if self._seen != (self._epoch[0], self._table.generation):
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

    def _place(self, slot: int, now: float) -> int:
        """Of the stamp of the bucket of this moment; what was remembered there before is forgotten."""
        recent, buckets = self._recent, self._buckets
        bucket = now // self._bucket_ms
        place = slot * 3 * buckets + int(bucket) % buckets
        if recent[place] != bucket:
            recent[place + RELEASED * buckets] = recent[place + BOOKED * buckets] = 0.0
            recent[place] = bucket
        return place
