"""One pool: places requests (choose and book in one step), follows them to their end, and takes in what sources report.

Everything here is synchronous and takes the time as an argument, so the lab's simulation runs this very code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np

from poolpilot_picker.errors import PreconditionFailed
from poolpilot_picker.flow.candidates import candidates, steer
from poolpilot_picker.flow.charges import Charge
from poolpilot_picker.flow.ejection import Ejector
from poolpilot_picker.flow.learners import Learners, Lesson
from poolpilot_picker.flow.outcome import AGAINST_ENDPOINT, Outcome
from poolpilot_picker.flow.readings import Readings
from poolpilot_picker.flow.receipts import Receipt, ReceiptBook, Snapshot
from poolpilot_picker.flow.warm_up import WarmUp
from poolpilot_picker.learning.breaker import EjectionSettings
from poolpilot_picker.learning.lengths import OutputLengths
from poolpilot_picker.learning.tokens import TokenScale
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.routing.decision import Decision, Forecast
from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import Endpoint, EndpointSpec, EndpointTable
from poolpilot_picker.state.homes import Homes
from poolpilot_picker.state.ledger import Booking, Ledger, Phase
from poolpilot_picker.state.prefix import prefix_index

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from poolpilot_picker.flow.holding import Holder
    from poolpilot_picker.state.prefix import PrefixIndex
    from poolpilot_picker.state.samples import EngineSample, ServedModels

HIT_SHARE_SMOOTHING: Final = 0.01
LOST_AFTER_MS: Final = 600_000.0
"""What was placed so long ago at an engine that has nothing to do is not in flight, whatever became of its exchange."""


class Policy(Protocol):
    """What decides: a profile of filters, scorers and a picker."""

    weighs_waits: bool
    """Sent to where it would wait, a request goes there on purpose."""
    parts: bool
    """Not every endpoint is meant for every request: `restrict` says which are."""

    def restrict(self, view: DecisionView) -> None:
        """Leaves the endpoints that are meant for the request; raises RequestRefused when there are none."""
        ...

    def decide(self, view: DecisionView) -> list[int]:
        """Slots in order of preference; raises RequestRefused when no candidate is left."""
        ...

    def placed(self, view: DecisionView, slot: int) -> None:
        """What was booked, told to the plugins that keep state, in the same synchronous step."""
        ...


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool follows its requests."""

    stale_after_ms: float = 10_000.0
    """A sample older than this no longer tells the load: own bookings and the peers' median do."""
    observe_share: float = 0.01
    """Share of exchanges whose response body is watched for lengths and first tokens, once enough are known."""
    receipt_share: float = 0.01
    receipts_kept: int = 1_000
    ejection: EjectionSettings = EjectionSettings()
    """When an endpoint is left out for a while. Of the settings that the pool is made with."""


class Placement(msgspec.Struct):
    """A placed request: who holds it follows it to `Pool.finish`, exactly once."""

    request: InferenceRequest
    booking: Booking
    destination: str
    predicted: Forecast
    observe: bool
    """Watch the response body."""
    cached_tokens: float
    lesson: Lesson | None = None
    receipt: Receipt | None = None
    """Where the client asked for one."""
    outcome: Outcome | None = None
    judged: bool = False
    """Whether its endpoint failed is known, and was said."""
    output_tokens: float | None = None
    """Counted in the answer, all sequences together."""
    first_token_seen: bool = False
    once: bool = False
    """The data plane must not try again: the retry budget is spent."""
    charge: Charge | None = None
    """What flow control holds against its tenant, where it is on."""


class Pool:
    """State, learning and policy of one pool, and the only place that writes them."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        rng: random.Random,
        settings: PoolSettings | None = None,
        table: EndpointTable | None = None,
        *,
        prefixes: PrefixIndex | None = None,
        adapters: AdapterResidency | None = None,
    ) -> None:
        """prefixes, adapters: of its own where none are given."""
        self.name = name
        self.policy = policy
        """Replaced as a whole by a configuration reload."""
        self.settings = settings or PoolSettings()
        self.table = table if table is not None else EndpointTable()
        self.ledger = Ledger(self.table)
        self.prefixes = prefixes if prefixes is not None else prefix_index()
        self.adapters = adapters if adapters is not None else AdapterResidency()
        self.lengths = OutputLengths()
        self.tokens = TokenScale()
        self.receipts = ReceiptBook(self.settings.receipts_kept)
        self._learners = Learners(self.table, self.lengths)
        self._failed = self._learners.failed
        self.ejector = Ejector(self.table, self.settings.ejection, self._learners.forgiven)
        self._rng = rng
        self._readings = Readings(self.table, self.ledger, self.prefixes, self.adapters, self._learners)
        self._warm_up = WarmUp(self.table)
        self.homes = Homes(self.table)
        self._hit_share = 0.2
        self.flow: Holder | None = None
        """Who holds requests back, where flow control is on: hears of what may make room."""
        self.lost = 0
        """Bookings released by the backstop: each is an exchange whose end nobody told."""

    # ---- placing

    def catch_up(self, now: float) -> None:
        """Takes in what other processes have placed, where there are any."""

    def place(
        self, request: InferenceRequest, now: float, narrow: Callable[[DecisionView], None] | None = None
    ) -> Placement:
        """Chooses an endpoint and books the request there, in one step. Raises RequestRefused.

        `narrow` removes further candidates, or raises what ends the placing.
        """
        view = self._view(request, now)
        if self.policy.parts:
            self.policy.restrict(view)
        steer(view)
        if self.ejector.out:
            self.ejector.narrow(view)
        if narrow is not None:
            narrow(view)
        slots = self.policy.decide(view)
        chosen = slots[0]
        cached = float(view.cached_tokens[chosen])
        if request.only_if_cached and cached <= 0:
            raise PreconditionFailed("no decode worker has the requested KV cache")
        decision = Decision(
            endpoints=[self.table.at(chosen)] if len(slots) == 1 else [self.table.at(slot) for slot in slots],
            forecast=view.cost.forecast(chosen) if view.cost is not None else _unpredicted(view, cached),
            view=view,
        )
        receipt = None
        if request.receipt_wanted or self._rng.random() < self.settings.receipt_share:
            receipt = self._receipt(request, decision)
        observe = self._wants_observation(request)
        booking, lesson = self._book(decision, cached)
        self.policy.placed(view, chosen)
        if self.ejector.out:
            self.ejector.placed(booking.endpoint, now)
        return Placement(
            request=request,
            booking=booking,
            destination=decision.destination,
            predicted=decision.forecast,
            observe=observe,
            cached_tokens=cached,
            lesson=lesson,
            receipt=receipt,
        )

    def meant(self, request: InferenceRequest, now: float) -> object:
        """What the endpoints that a request is meant for have in common, to be compared with others'. Raises
        RequestRefused: there are none."""
        if not self.policy.parts or not self.table.any_wanted:
            return request.subset
        view = self._view(request, now)
        self.policy.restrict(view)
        return request.subset, view.mask.tobytes()

    def place_anywhere(self, request: InferenceRequest, now: float) -> Placement:
        """Books at random among the endpoints that may be chosen: for when choosing itself has failed.

        Raises NoEndpoints. Nothing is predicted, so nothing will be learned from it but that the endpoint answers.
        """
        mask = candidates(self.table, request)
        endpoint = self.table.at(self._rng.choice(np.flatnonzero(mask).tolist()))
        tokens = float(request.prompt_tokens)
        booking = Booking(
            endpoint=endpoint,
            placed_ms=now,
            prompt_tokens=tokens,
            uncached_tokens=tokens,
            expected_output=0.0,
            sequences=request.sequences,
            prefill_ms=0.0,
            adapter="",
            inference=request.is_inference,
        )
        return Placement(
            request=request,
            booking=self.ledger.book(booking, now),
            destination=endpoint.address,
            predicted=Forecast(output_tokens=0.0, uncached_tokens=tokens),
            observe=False,
            cached_tokens=0.0,
        )

    def _view(self, request: InferenceRequest, now: float) -> DecisionView:
        table, settings, prefixes, lengths = self.table, self.settings, self.prefixes, self.lengths
        mask = candidates(table, request)
        self._learners.refresh_penalties(now)
        adapter, model, tokens = request.adapter, request.target_model, request.prompt_tokens
        if not adapter and self.adapters.is_adapter(model):
            adapter = model
        if request.kind is RequestKind.EMBEDDINGS:
            expected_output = 1.0
        else:
            expected_output = lengths.expected(model, request.tenant, request.max_tokens)
        serving = self.adapters.serving
        cached = prefixes.match(request.prefix, tokens - 1.0 if tokens > 1 else 0.0)
        return DecisionView(
            request=request,
            table=table,
            now=now,
            mask=mask,
            cached_tokens=cached,
            home=self.homes.of(request.prefix, tokens, cached, serving(model)) if self.homes.others else None,
            indexed_tokens=prefixes.tokens(),
            adapters=self.adapters,
            rng=self._rng,
            stale_after_ms=settings.stale_after_ms,
            adapter=adapter,
            adapter_home=(
                self.homes.of_adapter(adapter, cached, serving(model)) if adapter and self.homes.others else (-1, 0.0)
            ),
            expected_output=expected_output,
            expected_rest=lengths.remaining(),
            hit_share=self._hit_share,
            reuse=prefixes.reuse(),
            lent=self._warm_up.shares(now) if self._warm_up.new else None,
        )

    def _receipt(self, request: InferenceRequest, decision: Decision) -> Receipt | None:
        """Remembers a sampled or asked-for decision; the receipt itself only for who asked."""
        snapshot = Snapshot(self.name, decision)
        self.receipts.add(snapshot)
        return snapshot.write() if request.receipt_wanted else None

    def _book(self, decision: Decision, cached: float) -> tuple[Booking, Lesson | None]:
        """All of it or, if something fails, none: whoever then places the request in another way finds it unbooked."""
        endpoint, forecast, view = decision.endpoints[0], decision.forecast, decision.view
        request, now, inference = view.request, view.now, view.request.is_inference
        booking = Booking(
            endpoint=endpoint,
            placed_ms=now,
            prompt_tokens=float(request.prompt_tokens),
            uncached_tokens=forecast.uncached_tokens,
            expected_output=forecast.output_tokens,
            sequences=request.sequences,
            # Who waits for a GPU slot is passed over by the engine: nobody waits behind it.
            prefill_ms=0.0 if forecast.slot_ms > 0.0 else forecast.prefill_ms + forecast.adapter_ms,
            adapter=view.adapter,
            inference=inference,
            deferred=forecast.slot_ms > 0.0,
        )
        self._learners.advance(endpoint, now)
        self.prefixes.insert(request.prefix, endpoint.slot)
        lesson = self._teach(decision, cached) if inference else None
        self.ledger.book(booking, now)
        if view.adapter:
            try:
                cold = self.adapters.book(endpoint.slot, view.adapter)
            except Exception:
                self.ledger.release(booking, now, answered=False)
                raise
            if cold or forecast.adapter_ms > 0.0:
                self._learners.loading(endpoint, forecast.adapter_ms)
            if booking.deferred:
                self._learners.deferred(endpoint)
        return booking, lesson

    def _teach(self, decision: Decision, cached: float) -> Lesson:
        forecast, prompt = decision.forecast, decision.view.request.prompt_tokens
        if prompt > 0:
            self._hit_share += HIT_SHARE_SMOOTHING * (cached / prompt - self._hit_share)
        uncached, view = forecast.uncached_tokens, decision.view
        if view.home is not None:
            self.homes.placed(decision.endpoints[0].slot, prompt, cached, view.home)
        return self._learners.placed(decision.endpoints[0], uncached, prompt - uncached, cached, forecast.ttft_ms)

    def _wants_observation(self, request: InferenceRequest) -> bool:
        if not request.is_inference:
            return False
        return not self.lengths.known(request.target_model) or self._rng.random() < self.settings.observe_share

    # ---- following

    def served(self, placement: Placement, address: str, now: float, *, attempts: int = 1) -> bool:
        """The data plane says that `address` served, after so many attempts. True if the booking had to move."""
        booking, request = placement.booking, placement.request
        old = booking.endpoint
        if booking.released or address == old.address:
            return False
        endpoint = self.table.find(address) or self.table.find_draining(address)
        if endpoint is None or endpoint is old:
            return False
        self._learners.advance(old, now)
        self._learners.advance(endpoint, now)
        if booking.adapter:
            self.adapters.release(old.slot, booking.adapter)
            self.adapters.book(endpoint.slot, booking.adapter)
        for tried in self._tried_before(placement, address, attempts):
            self._failed(tried, now)
            self.ejector.failed(tried, booking.placed_ms, now)
        most = max(0.0, booking.prompt_tokens - 1.0)
        cached = float(self.prefixes.match(request.prefix, most)[endpoint.slot])
        uncached = booking.prompt_tokens - cached
        if placement.lesson is not None:
            self._learners.withdrawn(old, placement.lesson)
            placement.lesson = self._learners.placed(endpoint, uncached, cached, cached)
        self.ledger.move(booking, endpoint, now, uncached)
        self.prefixes.insert(request.prefix, endpoint.slot)
        self._forget_if_dropped(old)
        return True

    def _tried_before(self, placement: Placement, address: str, attempts: int) -> list[Endpoint]:
        """Endpoints of the destination list that were tried and did not answer before `address` was.

        The data plane skips addresses it does not know at no cost of an attempt: with fewer attempts than entries
        before `address` nobody can tell which were tried, and nobody is blamed.
        """
        listed = placement.destination.split(",")
        before = listed[: listed.index(address)] if address in listed else listed[: attempts - 1]
        if len(before) > attempts - 1:
            return []
        return [endpoint for endpoint in map(self.table.find, before) if endpoint is not None]

    def answered(self, placement: Placement, outcome: Outcome, now: float) -> None:
        """The response headers tell how the request fares: what that says of its endpoint is known before the end."""
        placement.outcome = outcome
        self._judge(placement, outcome, now)

    def _judge(self, placement: Placement, outcome: Outcome, now: float) -> None:
        if not placement.judged:
            placement.judged = True
            self.ejector.answered(placement.booking.endpoint, outcome, placement.booking.placed_ms, now)

    def first_token(self, placement: Placement, now: float) -> None:
        """The first token of an observed answer was seen."""
        if placement.booking.phase is Phase.PREFILL:
            self._learners.advance(placement.booking.endpoint, now)
            self.ledger.first_token(placement.booking, now)

    def finish(self, placement: Placement, outcome: Outcome, now: float) -> bool:
        """The exchange ended: releases the booking and learns what may be learned. True the first time."""
        booking, request = placement.booking, placement.request
        endpoint = booking.endpoint
        if placement.charge is not None and self.flow is not None:
            self.flow.finished(placement, now)
        if booking.released:
            return False
        self._release(booking, now, answered=outcome is Outcome.SERVED)
        placement.outcome = outcome
        if not placement.judged and (outcome is not Outcome.SERVED or self.ejector.watching):
            self._judge(placement, outcome, now)
        if outcome is Outcome.SERVED:
            self._learners.succeeded(endpoint, now)
            if self.ejector.timed:
                self.ejector.took(endpoint, now - booking.placed_ms, placement.predicted.finish_ms, now)
            if placement.output_tokens is not None and request.is_inference:
                per_sequence = placement.output_tokens / max(1, request.sequences)
                self.lengths.observe(request.target_model, request.tenant, per_sequence)
        else:
            self._unanswered(placement, now)
        if outcome in AGAINST_ENDPOINT:
            self._failed(endpoint, now)
        if endpoint.draining:
            self._forget_if_dropped(endpoint)
        return True

    def _unanswered(self, placement: Placement, now: float) -> None:
        """No pod answered: the placement teaches nothing."""
        if placement.lesson is not None:
            self._learners.withdrawn(placement.booking.endpoint, placement.lesson)

    def _release(self, booking: Booking, now: float, *, answered: bool) -> None:
        self._learners.advance(booking.endpoint, now)
        if booking.adapter:
            self.adapters.release(booking.endpoint.slot, booking.adapter)
        self.ledger.release(booking, now, answered=answered)

    def usage(self, placement: Placement, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Usage that a pod's answer carried."""
        request = placement.request
        if output_tokens is not None:
            placement.output_tokens = float(output_tokens)
        if prompt_tokens is not None and request.complete:
            self.tokens.observe(request.target_model, request.text_tokens, request.fixed_tokens, prompt_tokens)

    # ---- what sources report

    def apply_endpoints(self, specs: Iterable[EndpointSpec]) -> tuple[list[Endpoint], list[Endpoint]]:
        """Discovery's wanted set; returns (added, removed). Endpoints that stay keep everything known of them."""
        before = list(self.table)
        added, removed = self.table.apply(specs)
        if before:
            self._warm_up.joined(added)
        for endpoint in before:
            if not self.table.holds(endpoint):
                self._forget(endpoint)
        self._resize()
        self._learners.apply_endpoints()
        self.ejector.apply_endpoints()
        if self.flow is not None:
            self.flow.wake()
        return added, removed

    def _resize(self) -> None:
        self.prefixes.resize(len(self.table))
        self.adapters.resize(len(self.table))

    def _forget(self, endpoint: Endpoint) -> None:
        """The endpoint's slot is free: nothing of it may reach who gets the slot next."""
        self._readings.forget(endpoint)
        self.homes.forget(endpoint)
        self._learners.forget(endpoint)
        self.ejector.forget(endpoint)
        self._warm_up.forget(endpoint)
        self.ledger.forget(endpoint)
        self.prefixes.clear(endpoint.slot)
        self.adapters.clear(endpoint.slot)

    def _forget_if_dropped(self, endpoint: Endpoint) -> None:
        """Its last booking may have been all that kept an endpoint."""
        if endpoint.draining and not self.table.holds(endpoint):
            self._forget(endpoint)
            self._resize()

    def apply_sample(self, endpoint: Endpoint, sample: EngineSample, now: float) -> None:
        """A telemetry sample arrived. One that is older than what is known is dropped."""
        taken = self._readings.apply(endpoint, sample, now)
        if taken and (sample.ttft is not None or sample.cached_prompt_tokens is not None):
            self.homes.sampled(endpoint, sample, self.settings.stale_after_ms)
            self.adapters.set_others(self.homes.others > 0.0)
        if sample.running == 0 and not sample.waiting and self.table.holds(endpoint):
            self._release_lost(endpoint, sample.taken_ms, now)
        if self.flow is not None:
            self.flow.wake()

    def _release_lost(self, endpoint: Endpoint, sample_ms: float, now: float) -> None:
        """The account's backstop: the engine said at `sample_ms` that it has nothing to do."""
        for booking in self.ledger.at(endpoint):
            if booking.inference and booking.placed_ms < sample_ms - LOST_AFTER_MS:
                self._release(booking, now, answered=False)
                self.lost += 1
        self._forget_if_dropped(endpoint)

    def apply_load_report(self, endpoint: Endpoint, report: EngineSample, now: float) -> None:
        """A pod's answer carried a report of its load: fresh, but of one or two gauges only."""
        self._readings.apply_report(endpoint, report, now)

    def apply_served_models(self, endpoint: Endpoint, served: ServedModels | None) -> None:
        """`/v1/models` was read; None when it could not be."""
        if self.table.holds(endpoint):
            self.adapters.set_served(endpoint.slot, served)

    def restarted(self, endpoint: Endpoint, now: float) -> None:
        """The engine restarted: its caches are empty and its counters begin again."""
        self._readings.restarted(endpoint, now)
        self.homes.forget(endpoint)

    # ---- what was learned

    def learning_counts(self) -> dict[str, int]:
        """How many observations each learner took: for tests and metrics."""
        own = {"lengths": self.lengths.observed, "token_scale": self.tokens.observed}
        return own | self._learners.counts()


def _unpredicted(view: DecisionView, cached: float) -> Forecast:
    """What is booked where the policy predicts nothing."""
    return Forecast(output_tokens=view.expected_output, uncached_tokens=max(1.0, view.request.prompt_tokens - cached))
