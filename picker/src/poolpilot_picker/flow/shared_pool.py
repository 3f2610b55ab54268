"""A pool whose requests are placed by several processes on one machine: what each does beside its own placing.

Before a decision, what the others have placed is in the account; after it, they are told what the account cannot show:
prefix, adapter, what is to be learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from poolpilot_picker.flow.crew import Withdrawn
from poolpilot_picker.flow.packed import take_in
from poolpilot_picker.flow.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.flow.crew import Crew
    from poolpilot_picker.flow.learners import Lesson
    from poolpilot_picker.flow.pool import Placement, Policy
    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Endpoint
    from poolpilot_picker.state.ledger import Booking
    from poolpilot_picker.state.samples import EngineSample


@runtime_checkable
class KeyPolicy(Protocol):
    """A policy that may keep state by routing key."""

    @property
    def remembers_keys(self) -> bool:
        """It does."""
        ...

    def placed_elsewhere(self, routing_key: str, endpoint: Endpoint, now: float) -> None:
        """Another process has booked a request with this key there."""
        ...


class SharedPool(Pool):
    """One process's view of the pool. `crew`: the processes that share the account of `table`."""

    def __init__(self, *arguments: Any, crew: Crew, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._crew = crew
        # Called for every request; for the same reason its methods call those of `Pool` by name.
        self._catch_up, self._sum_up_slot, self._tell_placed = crew.catch_up, crew.sum_up_slot, crew.placed
        self._failed = self._failed_here
        self._known_policy: Policy | None = None
        self._key_policy: KeyPolicy | None = None

    def _keys(self) -> KeyPolicy | None:
        """The policy, if it keeps state by routing key."""
        policy = self.policy
        if policy is not self._known_policy:
            self._known_policy = policy
            self._key_policy = policy if isinstance(policy, KeyPolicy) and policy.remembers_keys else None
        return self._key_policy

    # ---- placing and following

    def catch_up(self, now: float) -> None:
        """Takes in what the others have placed."""
        self._crew.catch_up(now)

    def place(
        self, request: InferenceRequest, now: float, narrow: Callable[[DecisionView], None] | None = None
    ) -> Placement:
        """As in any pool, in view of what all have placed so far. Raises RequestRefused."""
        # Each by a name of its own: to call what an instance holds takes twice as long where it looks like a method.
        catch_up, tell = self._catch_up, self._tell_placed
        catch_up(now)
        placement = Pool.place(self, request, now, narrow)
        booking, key = placement.booking, request.routing_key
        tell(
            booking.endpoint.slot,
            request.prefix,
            placement.lesson,
            booking.adapter,
            placement.predicted.adapter_ms,
            key if key and self._keys() is not None else "",
            now,
        )
        return placement

    def served(self, placement: Placement, address: str, now: float, *, attempts: int = 1) -> bool:
        """As in any pool; the others are told that it is another endpoint's."""
        old = placement.booking.endpoint
        if address == old.address:
            return False
        lesson = placement.lesson
        self._crew.sum_up()
        moved = super().served(placement, address, now, attempts=attempts)
        if moved:
            self._withdraw(placement, old, lesson, now)
            slot, prefix = placement.booking.endpoint.slot, placement.request.prefix
            self._tell_placed(slot, prefix, placement.lesson, "", 0.0, "", now)
        return moved

    def _unanswered(self, placement: Placement, now: float) -> None:
        super()._unanswered(placement, now)
        self._withdraw(placement, placement.booking.endpoint, placement.lesson, now)

    def _withdraw(self, placement: Placement, endpoint: Endpoint, lesson: Lesson | None, now: float) -> None:
        if lesson is not None and self.table.holds(endpoint):
            generation = self._crew.generation(endpoint.slot)
            self._crew.withdrawn(Withdrawn(endpoint.slot, generation, placement.booking.placed_ms, lesson), now)

    def first_token(self, placement: Placement, now: float) -> None:
        """The first token of an observed answer was seen."""
        if not placement.booking.released:
            self._sum_up_slot(placement.booking.endpoint.slot)
        super().first_token(placement, now)

    def _release(self, booking: Booking, now: float, *, answered: bool) -> None:
        sum_up_slot = self._sum_up_slot
        sum_up_slot(booking.endpoint.slot)
        Pool._release(self, booking, now, answered=answered)

    def _failed_here(self, endpoint: Endpoint, now: float) -> None:
        self._learners.failed(endpoint, now)
        self._crew.failed(endpoint.slot)

    def apply_sample(self, endpoint: Endpoint, sample: EngineSample, now: float) -> None:
        """A telemetry sample arrived. One that is older than what is known is dropped."""
        if self.table.holds(endpoint):
            self._sum_up_slot(endpoint.slot)
        super().apply_sample(endpoint, sample, now)

    # ---- what other processes report

    def placed_elsewhere(self, told: bytes, generations: memoryview, now: float) -> None:
        """Another process has placed requests: what of them is not in the account."""
        taught, named = take_in(told, self.prefixes, self.table.slots, generations)
        for slot, work_ms, ttft_ms, forecasts, cached in taught:
            self._learners.placed_elsewhere(self.table.at(slot), work_ms, ttft_ms, forecasts, cached)
        for slot, adapter, adapter_ms, routing_key in named:
            endpoint = self.table.at(slot)
            if adapter and self.adapters.used(slot, adapter):
                self._learners.loading(endpoint, adapter_ms)
            if routing_key and (policy := self._keys()) is not None:
                policy.placed_elsewhere(routing_key, endpoint, now)

    def withdrawn_elsewhere(self, news: Withdrawn) -> None:
        """What another process has placed teaches nothing."""
        self._learners.withdrawn_elsewhere(self.table.at(news.slot), news.placed_ms, news.lesson)

    def failed_elsewhere(self, slot: int, now: float) -> None:
        """An endpoint has failed a request of another process."""
        self._learners.failed(self.table.at(slot), now)
