"""The ledger's rows as it writes them: those of the table, or, where several processes share a pool, our own alone.

Where a pool is shared, the table's rows are the sums over all processes, brought up to date before each decision; the
ledger writes into a block that the others read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from poolpilot_picker.state.columns import LEDGER_ROWS, columns

if TYPE_CHECKING:
    from poolpilot_picker.state.columns import Columns, Floats


class Sharing(Protocol):
    """What other processes have to do with our account. Times in ms, lengths in tokens."""

    @property
    def block(self) -> Floats:
        """Where our rows are, shape (len(ROWS), slots), of which only the ledger's rows are used."""
        ...

    def resized(self) -> None:
        """Our table has other columns than before. Called before they are read or written."""
        ...

    def take(self, key: tuple[str, int]) -> int | None:
        """The slot of an endpoint, the same in all processes; None where none is free."""
        ...

    def give_back(self, slot: int) -> None:
        """Our table does not have the endpoint of the slot any more."""
        ...

    def booked(self, slot: int, prefill_ms: float, now: float, /) -> None:
        """We place a request: called before it enters our account, in which it starts behind what all placed there."""
        ...

    def released(self, slot: int, sequences: float, now: float, /) -> None:
        """A request of ours ended."""
        ...

    def booked_since(self, slot: int, since_ms: float) -> float:
        """Prefill work, in ms, that others have placed since then."""
        ...

    def released_since(self, slot: int, since_ms: float) -> float:
        """Sequences of others that ended since then."""
        ...


class Account:
    """One process's rows, length `slots`, and the arithmetic on them."""

    __slots__ = ("columns", "free_at_ms", "requests", "started_sum_ms", "uncached_tokens")

    def __init__(self, block: Floats, slots: int) -> None:
        self.columns: Columns = columns(block, slots)
        rows = block[:LEDGER_ROWS, :slots]
        _, self.requests, _, _, self.uncached_tokens, _, self.started_sum_ms, self.free_at_ms = rows
