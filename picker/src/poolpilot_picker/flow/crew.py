"""Other processes that place requests in the same pool, as the pool sees them. Told and asked by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from poolpilot_picker.flow.learners import Lesson

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import PrefixChain


class Withdrawn(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request that was told as placed ended without an answer of the endpoint, or another one gave it."""

    slot: int
    generation: int
    placed_ms: float
    lesson: Lesson


class Crew(Protocol):
    """All processes of one picker on one machine."""

    def catch_up(self, now: float, /) -> None:
        """Applies what the others have told, and brings the sums up to date. Before every decision."""
        ...

    def sum_up(self) -> None:
        """Makes the ledger's rows of the table the sums over all processes. Before any of them is read."""
        ...

    def sum_up_slot(self, slot: int, /) -> None:
        """The same for one slot."""
        ...

    def generation(self, slot: int) -> int:
        """Of the slot: news of an endpoint that is gone must not reach the next one there."""
        ...

    def placed(
        self,
        slot: int,
        chain: PrefixChain,
        lesson: Lesson | None,
        adapter: str,
        adapter_ms: float,
        routing_key: str,
        now: float,
    ) -> None:
        """Tells the others of a placement, soon: what of it is not in the account."""
        ...

    def withdrawn(self, news: Withdrawn, now: float) -> None:
        """Tells the others that a placement teaches nothing."""
        ...

    def failed(self, slot: int) -> None:
        """Tells the others that an endpoint failed a request."""
        ...
