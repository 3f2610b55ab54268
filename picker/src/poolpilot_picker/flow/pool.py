"""One pool: places requests (choose and book in one step), follows them to their end, and takes in what sources report.

Everything here is synchronous and takes the time as an argument, so the lab's simulation runs this very code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np

from poolpilot_picker.errors import NoEndpoints
from poolpilot_picker.flow.outcome import AGAINST_ENDPOINT, NEVER_REACHED, Outcome
from poolpilot_picker.flow.receipts import Receipt, ReceiptBook, make_receipt
from poolpilot_picker.learning.cache_trust import CacheTrust
from poolpilot_picker.learning.failures import Failures
from poolpilot_picker.learning.lengths import OutputLengths
from poolpilot_picker.learning.speed import SpeedLearner, soften
from poolpilot_picker.learning.tokens import TokenScale
from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.routing.decision import Decision, Forecast
from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import Endpoint, EndpointSpec, EndpointTable
from poolpilot_picker.state.ledger import Booking, Ledger, Phase
from poolpilot_picker.state.load import LoadEstimate
from poolpilot_picker.state.prefix import PrefixIndex

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from poolpilot_picker.state.endpoints import Mask
    from poolpilot_picker.state.samples import EngineSample, ServedModels

PREEMPTING_FOR_MS: Final = 5_000.0
"""How long an engine counts as preempting after its counter grew."""
HIT_SHARE_SMOOTHING: Final = 0.01


class Policy(Protocol):
    """What decides: a profile of filters, scorers and a picker."""

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


class Placement(msgspec.Struct):
    """A placed request: who holds it follows it to `Pool.finish`, exactly once."""

    request: InferenceRequest
    booking: Booking
    destination: str
    predicted: Forecast
    observe: bool
    """Watch the response body."""
    cached_tokens: float
    receipt: Receipt | None = None
    outcome: Outcome | None = None
    output_tokens: float | None = None
    """Counted in the answer, per request."""
    first_token_seen: bool = False


class Pool:
    """State, learning and policy of one pool, and the only place that writes them."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        rng: random.Random,
        settings: PoolSettings | None = None,
        table: EndpointTable | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        """Replaced as a whole by a configuration reload."""
        self.settings = settings or PoolSettings()
        self.table = table or EndpointTable()
        self.ledger = Ledger(self.table)
        self.prefixes = PrefixIndex()
        self.adapters = AdapterResidency()
        self.lengths = OutputLengths()
        self.tokens = TokenScale()
        self.receipts = ReceiptBook(self.settings.receipts_kept)
        self._rng = rng
        self._speed: dict[Endpoint, SpeedLearner] = {}
        self._trust: dict[Endpoint, CacheTrust] = {}
        self._failures: dict[Endpoint, Failures] = {}
        self._samples: dict[Endpoint, EngineSample] = {}
        self._window_start: dict[Endpoint, EngineSample] = {}
        self._failing: set[Endpoint] = set()
        self._hit_share = 0.2
        self._sequences_seen = 0

    # ---- placing

    def place(self, request: InferenceRequest, now: float) -> Placement:
        """Chooses an endpoint and books the request there, in one step. Raises RequestRefused."""
        table = self.table
        self._refresh_failures(now)
        mask = self._candidates(request)
        matched = self.prefixes.match(request.prefix, len(table))
        cached = np.minimum(matched, max(0.0, request.prompt_tokens - 1.0))
        adapter = request.adapter
        if not adapter and self.adapters.is_adapter(request.target_model):
            adapter = request.target_model
        view = DecisionView(
            request=request,
            table=table,
            now=now,
            mask=mask,
            cached_tokens=cached,
            load=LoadEstimate(table, now, self.settings.stale_after_ms),
            adapters=self.adapters,
            rng=self._rng,
            adapter=adapter,
            expected_output=self.lengths.expected(request.target_model, request.tenant, request.max_tokens),
            expected_rest=self.lengths.remaining(),
            hit_share=self._hit_share,
            indexed_tokens=self.prefixes.tokens()[: len(table)],
        )
        self._veto_models(view)
        slots = self.policy.decide(view)
        chosen = slots[0]
        forecast = (
            view.cost.forecast(chosen)
            if view.cost is not None
            else Forecast(
                output_tokens=view.expected_output,
                uncached_tokens=max(1.0, request.prompt_tokens - float(cached[chosen])),
            )
        )
        decision = Decision(endpoints=[table.at(slot) for slot in slots], forecast=forecast, view=view)
        receipt = self._receipt(request, decision)
        booking = self._book(request, decision, now)
        self.policy.placed(view, chosen)
        return Placement(
            request=request,
            booking=booking,
            destination=decision.destination,
            predicted=forecast,
            observe=self._wants_observation(request),
            cached_tokens=float(cached[chosen]),
            receipt=receipt,
        )

    def _candidates(self, request: InferenceRequest) -> Mask:
        table = self.table
        mask = table.eligible.copy()
        if request.subset is not None:
            allowed = np.zeros(len(table), dtype=np.bool_)
            for hint in request.subset:
                for endpoint in self._hinted(hint):
                    allowed[endpoint.slot] = True
            mask &= allowed
        if not mask.any():
            raise NoEndpoints("failed to find endpoint candidates for serving the request")
        return mask

    def _hinted(self, hint: str) -> list[Endpoint]:
        """Endpoints that one entry of a subset hint allows: `ip:port` exactly, a bare address with every port."""
        exact = self.table.find(hint)
        if exact is not None:
            return [exact]
        host = hint.strip("[]")
        return [endpoint for endpoint in self.table.wanted() if endpoint.spec.host == host]

    def _veto_models(self, view: DecisionView) -> None:
        """Leaves the endpoints that serve the model; where none does, leaves all: the engine answers that best."""
        model = view.request.target_model
        if not model:
            return
        serving = self.adapters.serving(model)[: len(view.table)]
        if (view.mask & serving).any():
            view.keep(serving, "does not serve the model")

    def _receipt(self, request: InferenceRequest, decision: Decision) -> Receipt | None:
        if not request.receipt_wanted and self._rng.random() >= self.settings.receipt_share:
            return None
        receipt = make_receipt(self.name, request, decision, self.table.requests.tolist())
        self.receipts.add(receipt)
        return receipt

    def _book(self, request: InferenceRequest, decision: Decision, now: float) -> Booking:
        endpoint, forecast, view = decision.endpoints[0], decision.forecast, decision.view
        self._advance(endpoint, now)
        cold = self.adapters.book(endpoint.slot, view.adapter) if view.adapter else False
        booking = Booking(
            endpoint=endpoint,
            placed_ms=now,
            prompt_tokens=float(request.prompt_tokens),
            uncached_tokens=forecast.uncached_tokens,
            expected_output=forecast.output_tokens,
            sequences=request.sequences,
            prefill_ms=forecast.prefill_ms + forecast.adapter_ms,
            ttft_ms=forecast.ttft_ms,
            adapter=view.adapter,
        )
        self.ledger.book(booking, now)
        try:
            self._remember(request, decision, cold=cold)
        except Exception:
            # Whoever then places the request in another way must not find it booked already.
            self.ledger.release(booking, now)
            if view.adapter:
                self.adapters.release(endpoint.slot, view.adapter)
            raise
        return booking

    def _remember(self, request: InferenceRequest, decision: Decision, *, cold: bool) -> None:
        """What was placed, for the learners and the prefix index."""
        endpoint, forecast = decision.endpoints[0], decision.forecast
        cached = float(decision.view.cached_tokens[endpoint.slot])
        if request.is_inference:
            self._speed[endpoint].placed(
                forecast.uncached_tokens,
                request.prompt_tokens - forecast.uncached_tokens,
                forecast.ttft_ms,
                cold_adapter=cold,
            )
            self._trust[endpoint].placed(cached)
            if request.prompt_tokens > 0:
                self._hit_share += HIT_SHARE_SMOOTHING * (cached / request.prompt_tokens - self._hit_share)
        self.prefixes.insert(request.prefix, endpoint.slot)

    def place_anywhere(self, request: InferenceRequest, now: float) -> Placement:
        """Books at random among the endpoints that may be chosen: for when choosing itself has failed.

        Raises NoEndpoints. Nothing is predicted, so nothing will be learned from it but that the endpoint answers.
        """
        mask = self._candidates(request)
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
            ttft_ms=0.0,
            adapter="",
        )
        return Placement(
            request=request,
            booking=self.ledger.book(booking, now),
            destination=endpoint.address,
            predicted=Forecast(output_tokens=0.0, uncached_tokens=tokens),
            observe=False,
            cached_tokens=0.0,
        )

    def _wants_observation(self, request: InferenceRequest) -> bool:
        if not request.is_inference:
            return False
        return not self.lengths.known(request.target_model) or self._rng.random() < self.settings.observe_share

    # ---- following

    def served(self, placement: Placement, address: str, now: float, *, attempts: int = 1) -> bool:
        """The data plane says that `address` served, after so many attempts. True if the booking had to move."""
        endpoint = self.table.find(address)
        booking = placement.booking
        if endpoint is None or endpoint is booking.endpoint or booking.released:
            return False
        old = booking.endpoint
        self._advance(old, now)
        self._advance(endpoint, now)
        if booking.adapter:
            self.adapters.release(old.slot, booking.adapter)
            self.adapters.book(endpoint.slot, booking.adapter)
        self._withdraw(old, booking)
        for tried in self._tried_before(placement, address, attempts):
            self._failed(tried, now)
        self.ledger.move(booking, endpoint, now)
        if old.draining and self.table.slots[old.slot] is not old:
            self._forget(old)
        self.prefixes.insert(placement.request.prefix, endpoint.slot)
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

    def first_token(self, placement: Placement, now: float) -> None:
        """The first token of an observed answer was seen."""
        if placement.booking.phase is Phase.PREFILL:
            self._advance(placement.booking.endpoint, now)
            self.ledger.first_token(placement.booking, now)

    def finish(self, placement: Placement, outcome: Outcome, now: float) -> bool:
        """The exchange ended: releases the booking and learns what may be learned. True the first time."""
        booking, request = placement.booking, placement.request
        endpoint = booking.endpoint
        if booking.released:
            return False
        self._advance(endpoint, now)
        if booking.adapter:
            self.adapters.release(endpoint.slot, booking.adapter)
        if outcome in NEVER_REACHED:
            self._withdraw(endpoint, booking)
        self.ledger.release(booking, now)
        placement.outcome = outcome
        if outcome in AGAINST_ENDPOINT:
            self._failed(endpoint, now)
        elif outcome is Outcome.SERVED:
            self._succeeded(endpoint, now)
            if placement.output_tokens is not None and request.is_inference:
                per_sequence = placement.output_tokens / max(1, request.sequences)
                self.lengths.observe(request.target_model, request.tenant, per_sequence)
        if endpoint.draining and self.table.slots[endpoint.slot] is not endpoint:
            self._forget(endpoint)
        return True

    def usage(self, placement: Placement, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Usage that a pod's answer carried."""
        if output_tokens is not None:
            placement.output_tokens = float(output_tokens)
        if prompt_tokens is not None and placement.request.complete:
            self.tokens.observe(placement.request.target_model, placement.request.prompt_tokens, prompt_tokens)

    # ---- what sources report

    def apply_endpoints(self, specs: Iterable[EndpointSpec]) -> tuple[list[Endpoint], list[Endpoint]]:
        """Discovery's wanted set; returns (added, removed). Endpoints that stay keep everything known of them."""
        held = {endpoint: endpoint.slot for endpoint in self.table}
        added, removed = self.table.apply(specs)
        slots = len(self.table)
        self.prefixes.resize(slots)
        self.adapters.resize(slots)
        for endpoint, slot in held.items():
            if self.table.slots[slot] is not endpoint:
                self._forget(endpoint)
        for endpoint in added:
            if endpoint not in self._speed:
                self._speed[endpoint] = SpeedLearner(endpoint.model)
                self._trust[endpoint] = CacheTrust()
                self._failures[endpoint] = Failures()
        return added, removed

    def _forget(self, endpoint: Endpoint) -> None:
        """The endpoint's slot is free: nothing of it may reach who gets the slot next."""
        for known in (self._speed, self._trust, self._failures, self._samples, self._window_start):
            known.pop(endpoint, None)
        self._failing.discard(endpoint)
        self.prefixes.clear(endpoint.slot)
        self.adapters.clear(endpoint.slot)

    def mark_sample_begin(self, endpoint: Endpoint) -> tuple[float, float, float]:
        """Counters at the moment a sample is begun; hand them to apply_sample with the sample."""
        table, slot = self.table, endpoint.slot
        return (
            float(table.placed_total[slot]),
            float(table.finished_total[slot]),
            float(table.placed_uncached_total[slot]),
        )

    def apply_sample(
        self, endpoint: Endpoint, sample: EngineSample, now: float, mark: tuple[float, float, float] | None = None
    ) -> None:
        """A telemetry sample arrived. Without `mark`, what was placed while it was read counts as seen by it."""
        table, slot = self.table, endpoint.slot
        if table.slots[slot] is not endpoint or sample.taken_ms < table.sample_ms[slot]:
            return
        placed, finished, uncached = mark or self.mark_sample_begin(endpoint)
        previous = self._samples.get(endpoint)
        table.sample_ms[slot] = sample.taken_ms
        table.placed_at_sample[slot] = placed
        table.finished_at_sample[slot] = finished
        table.uncached_at_sample[slot] = uncached
        # Missing is not zero: a gauge that vanished is unknown, a fact once told stays true.
        table.running[slot] = np.nan if sample.running is None else sample.running
        table.waiting[slot] = np.nan if sample.waiting is None else sample.waiting
        table.kv_usage[slot] = np.nan if sample.kv_usage is None else sample.kv_usage
        if sample.kv_capacity_tokens and table.kv_capacity[slot] != sample.kv_capacity_tokens:
            table.kv_capacity[slot] = sample.kv_capacity_tokens
        if sample.kv_capacity_tokens:
            self.prefixes.set_capacity(
                slot, 0.0 if sample.prefix_caching is False else float(sample.kv_capacity_tokens)
            )
        if sample.block_tokens:
            table.block_tokens[slot] = sample.block_tokens
        if sample.max_sequences:
            table.max_sequences[slot] = sample.max_sequences
        self.adapters.apply_sample(slot, sample)
        before = previous.preemptions if previous is not None else None
        if before is not None and sample.preemptions is not None and sample.preemptions > before:
            table.preempting_until_ms[slot] = now + PREEMPTING_FOR_MS
        self._samples[endpoint] = sample
        if sample.waiting is not None:
            self.ledger.reconcile_queue(endpoint, sample.taken_ms, sample.waiting, now)
        self._learn_window(endpoint, sample, now)

    def _learn_window(self, endpoint: Endpoint, sample: EngineSample, now: float) -> None:
        if sample.inter_token is None or sample.ttft is None:
            return
        start = self._window_start.get(endpoint)
        speed = self._speed[endpoint]
        if start is None:
            self._window_start[endpoint] = sample
            speed.restart_window(now)
            return
        self._advance(endpoint, now)
        if not speed.due(now) or start.inter_token is None or start.ttft is None:
            return
        tokens = sample.inter_token.count - start.inter_token.count
        firsts = sample.ttft.count - start.ttft.count
        self._window_start[endpoint] = sample
        if tokens < 0 or firsts < 0:
            speed.restart_window(now)
            return
        changed = speed.close_window(
            now,
            inter_token_s=sample.inter_token.sum_s - start.inter_token.sum_s,
            tokens=tokens,
            ttft_s=sample.ttft.sum_s - start.ttft.sum_s,
            first_tokens=firsts,
        )
        slot = endpoint.slot
        self.table.prefill_share[slot] = speed.prefill_share
        if sample.cached_prompt_tokens is not None and start.cached_prompt_tokens is not None:
            trust = self._trust[endpoint]
            trust.close_window(max(0.0, sample.cached_prompt_tokens - start.cached_prompt_tokens))
            self.table.cache_trust[slot] = trust.trust
        self._learn_lengths(start, sample)
        if changed:
            self._publish_speeds()

    def _learn_lengths(self, start: EngineSample, sample: EngineSample) -> None:
        counters = (
            sample.generated_tokens,
            start.generated_tokens,
            sample.requests_succeeded,
            start.requests_succeeded,
        )
        if None in counters:
            return
        tokens = (sample.generated_tokens or 0.0) - (start.generated_tokens or 0.0)
        answers = (sample.requests_succeeded or 0.0) - (start.requests_succeeded or 0.0)
        if answers >= 5 and tokens > 0:
            self.lengths.observe_mean(tokens / answers, answers)

    def _publish_speeds(self) -> None:
        """Writes the residuals, softened over the fleet, into the table."""
        endpoints = [endpoint for endpoint in self.table if endpoint in self._speed]
        prefill = soften(np.array([self._speed[endpoint].prefill for endpoint in endpoints]))
        decode = soften(np.array([self._speed[endpoint].decode for endpoint in endpoints]))
        for endpoint, slower_prefill, slower_decode in zip(endpoints, prefill, decode, strict=True):
            self.table.set_speed(endpoint, float(slower_prefill), float(slower_decode))

    def apply_served_models(self, endpoint: Endpoint, served: ServedModels | None) -> None:
        """`/v1/models` was read; None when it could not be."""
        if self.table.slots[endpoint.slot] is endpoint:
            self.adapters.set_served(endpoint.slot, served)

    def restarted(self, endpoint: Endpoint, now: float) -> None:
        """The engine restarted: its caches are empty and its counters begin again."""
        slot = endpoint.slot
        if self.table.slots[slot] is not endpoint:
            return
        self.prefixes.clear(slot)
        self.adapters.restarted(slot)
        self._samples.pop(endpoint, None)
        self._window_start.pop(endpoint, None)
        self._speed[endpoint].restart_window(now)
        self._trust[endpoint].restart()
        self.table.preempting_until_ms[slot] = -np.inf
        self.table.sample_ms[slot] = -np.inf

    # ---- what was learned

    def learning_counts(self) -> dict[str, int]:
        """How many observations each learner took: for tests and metrics."""
        return {
            "lengths": self.lengths.observed,
            "token_scale": self.tokens.observed,
            "speed_windows": sum(speed.windows for speed in self._speed.values()),
            "failing_endpoints": len(self._failing),
        }

    def _advance(self, endpoint: Endpoint, now: float) -> None:
        speed = self._speed.get(endpoint)
        if speed is None:
            return
        table, slot = self.table, endpoint.slot
        sequences = float(table.inflight[slot])
        elapsed = sequences * now - float(table.started_sum_ms[slot])
        prompt = float(table.prompt_tokens[slot])
        step = speed.decode * speed.model.step(sequences, prompt)
        generated = min(max(0.0, elapsed / step), 2.0 * float(table.expected_tokens[slot]))
        speed.advance(now, sequences, prompt + generated)

    def _withdraw(self, endpoint: Endpoint, booking: Booking) -> None:
        speed = self._speed.get(endpoint)
        if speed is not None:
            speed.withdrawn(booking.ttft_ms)

    def _failed(self, endpoint: Endpoint, now: float) -> None:
        failures = self._failures.get(endpoint)
        if failures is not None:
            failures.failed(now)
            self._failing.add(endpoint)
            self.table.failure_ms[endpoint.slot] = failures.penalty_ms(now)

    def _succeeded(self, endpoint: Endpoint, now: float) -> None:
        if endpoint in self._failing:
            self._failures[endpoint].succeeded(now)

    def _refresh_failures(self, now: float) -> None:
        """Penalties fade with time: those of the endpoints that have one are brought up to date before a decision."""
        for endpoint in list(self._failing):
            penalty = self._failures[endpoint].penalty_ms(now)
            self.table.failure_ms[endpoint.slot] = penalty
            if penalty < 1.0:
                self.table.failure_ms[endpoint.slot] = 0.0
                self._failing.discard(endpoint)
