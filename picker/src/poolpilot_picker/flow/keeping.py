"""Room of one endpoint that is kept for who waits first. Beside control, which goes through the queue in rounds.

The first in a round that finds no room has it, until it goes: those behind it, being smaller, would else take every bit
that becomes free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolpilot_picker.flow.holding import Ticket
    from poolpilot_picker.state.columns import Mask


class KeptRoom:
    """Of one pool. Slots are those of its table."""

    __slots__ = ("_keeping", "_slot", "_ticket")

    def __init__(self) -> None:
        self._ticket: Ticket | None = None
        self._slot = 0
        self._keeping = False
        """The one that room is kept for has been tried in this round: those behind it must leave its room alone."""

    def begin(self) -> None:
        """A round begins."""
        self._keeping = False

    def found_none(self, ticket: Ticket, nearest: int, among: Mask) -> None:
        """There was no room in any of `among`; `nearest` is the slot that will have some first."""
        if self._keeping:
            return
        self._keeping = True
        if ticket is not self._ticket or self._slot >= len(among) or not among[self._slot]:
            self._ticket, self._slot = ticket, nearest

    def barred(self, ticket: Ticket, eligible: Mask, now: float, *, short: bool) -> int | None:
        """The slot that a ticket must leave alone. Where there is only one, short work may use it until the one that
        it is kept for is overdue."""
        kept = self._ticket
        if not self._keeping or kept is None or kept is ticket:
            return None
        alone = int(eligible.sum()) == 1
        return None if alone and short and kept.overdue_ms > now else self._slot
