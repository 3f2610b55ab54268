"""A pool whose requests are placed by several processes on one machine: what each does beside its own placing.

Before a decision, what the others have placed is in the account; after it, they are told what the account cannot show:
prefix, adapter, what is to be learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from poolpilot_picker.flow.crew import Placed, Withdrawn
from poolpilot_picker.flow.pool import Placement, Pool
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.flow.crew import Crew
    from poolpilot_picker.flow.learners import Lesson
    from poolpilot_picker.flow.pool import Policy
    from poolpilot_picker.routing.decision import Decision
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

    def place(
        self, request: InferenceRequest, now: float, narrow: Callable[[DecisionView], None] | None = None
    ) -> Placement:
        """As in any pool, in view of what all have placed so far. Raises RequestRefused."""
        self._crew.catch_up(now)
        return super().place(request, now, narrow)

    def _book(self, decision: Decision, cached: float) -> tuple[Booking, Lesson | None]:
        booking, lesson = super()._book(decision, cached)
        request, forecast, slot = decision.view.request, decision.forecast, booking.endpoint.slot
        prefix: Any = request.prefix
        self._crew.placed(
            Placed(
                slot,
                self._crew.generation(slot),
                prefix.hashes,
                prefix.ends,
                request.is_inference,
                forecast.uncached_tokens,
                request.prompt_tokens - forecast.uncached_tokens,
                cached,
                forecast.ttft_ms,
                booking.adapter,
                forecast.adapter_ms,
                request.routing_key if request.routing_key and self._keys() is not None else "",
            ),
            decision.view.now,
        )
        return booking, lesson

    def served(self, placement: Placement, address: str, now: float, *, attempts: int = 1) -> bool:
        """As in any pool; the others are told that it is another endpoint's."""
        self._crew.sum_up()
        old, lesson = placement.booking.endpoint, placement.lesson
        moved = super().served(placement, address, now, attempts=attempts)
        if moved:
            self._withdraw(placement, old, lesson, now)
            slot, prefix, booking = placement.booking.endpoint.slot, placement.request.prefix, placement.booking
            news = Placed(
                slot,
                self._crew.generation(slot),
                cast("list[int]", prefix.hashes),
                cast("list[float]", prefix.ends),
                lesson is not None,
                booking.uncached_tokens,
                booking.prompt_tokens - booking.uncached_tokens,
                booking.prompt_tokens - booking.uncached_tokens,
            )
            self._crew.placed(news, now)
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
            self._crew.sum_up_slot(placement.booking.endpoint.slot)
        super().first_token(placement, now)

    def _release(self, booking: Booking, now: float, *, answered: bool) -> None:
        self._crew.sum_up_slot(booking.endpoint.slot)
        super()._release(booking, now, answered=answered)

    def _failed_here(self, endpoint: Endpoint, now: float) -> None:
        self._learners.failed(endpoint, now)
        self._crew.failed(endpoint.slot)

    def apply_sample(self, endpoint: Endpoint, sample: EngineSample, now: float) -> None:
        """A telemetry sample arrived. One that is older than what is known is dropped."""
        if self.table.holds(endpoint):
            self._crew.sum_up_slot(endpoint.slot)
        super().apply_sample(endpoint, sample, now)

    # ---- what other processes report

    def placed_elsewhere(self, news: Placed, now: float) -> None:
        """Another process has placed a request: what of it is not in the account."""
        slot, endpoint = news.slot, self.table.at(news.slot)
        self.prefixes.insert(PrefixChain(hashes=news.hashes, ends=news.ends), slot)
        if news.adapter and self.adapters.used(slot, news.adapter):
            self._learners.loading(endpoint, news.adapter_ms)
        if news.inference:
            self._learners.placed(endpoint, news.uncached, news.held, news.cached, news.ttft_ms)
        if news.routing_key and (policy := self._keys()) is not None:
            policy.placed_elsewhere(news.routing_key, endpoint, now)

    def withdrawn_elsewhere(self, news: Withdrawn) -> None:
        """What another process has placed teaches nothing."""
        self._learners.withdrawn_elsewhere(self.table.at(news.slot), news.placed_ms, news.lesson)

    def failed_elsewhere(self, slot: int, now: float) -> None:
        """An endpoint has failed a request of another process."""
        self._learners.failed(self.table.at(slot), now)
