"""The picker in the simulation: its own pool, policy and learning code, one pool per simulated picker.

Baselines run in the same pool as other policies: they know what the picker knows (own account, prefix index, samples).
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, Final

from poolpilot_lab.sim.baselines.base import Learner, RulePicker
from poolpilot_lab.sim.router import Sampling
from poolpilot_lab.sim.sharing import PerPicker, own_adapters, own_prefixes
from poolpilot_lab.sim.telemetry import AnswerWindows
from poolpilot_lab.sim.trip import Fate
from poolpilot_lab.sim.variants import PLAIN, ExactCache, TrueLengths, Variant
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.learning.breaker import EjectionSettings
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain, RequestKind
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable
from poolpilot_picker.state.samples import ServedModels

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.model import Engine
    from poolpilot_lab.sim.trip import Trip
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.config.step_models import StepModel
    from poolpilot_picker.routing.pipeline import Profile
    from poolpilot_picker.state.samples import EngineSample

BASE_MODEL: Final = "base"
_OUTCOMES: Final = {
    Fate.SERVED: Outcome.SERVED,
    Fate.FAILED: Outcome.FAILED,
    Fate.LOST: Outcome.UNREACHABLE,
    Fate.ABORTED: Outcome.ABORTED,
}


class PoolRouter:
    """`pickers` pools that share nothing; a trip belongs to the picker it came to."""

    def __init__(
        self,
        world: World,
        policy: Callable[[], Profile],
        seed: int,
        *,
        variant: Variant = PLAIN,
        scrape_ms: float = 200.0,
        first_tokens: bool = False,
        step_model: Callable[[EndpointSpec], StepModel] | None = None,
        sampling: Sampling = Sampling.IN_TIME,
        ejects: bool = True,
    ) -> None:
        """variant: what poolpilot knows besides. first_tokens: the policy's peer sees the first token of every answer,
        not only of sampled ones. step_model: coefficients given to the policy. sampling: with LATEST and GAUGES the
        policy reads of telemetry the engines' gauges (and adapters), and nothing that is learned from it but lengths:
        no speeds, no ends of prefill queues. ejects: the pool leaves out endpoints that fail; no published policy
        does."""
        self._world = world
        self._variant = variant
        self._scrape_ms = world.scrape_ms or scrape_ms
        self._first_tokens = first_tokens
        self._sampling = sampling
        self._gauges_only = sampling.latest_only
        self._answers = [AnswerWindows() for _ in range(world.pickers)]
        draw = random.Random(f"{seed}/tokens")
        self._bias = math.exp(draw.gauss(0.0, world.token_bias))
        self._draw = draw
        one_account = "bookings" in variant.shares and world.pickers > 1
        settings = PoolSettings(
            receipt_share=0.0,
            ejection=EjectionSettings() if ejects else EjectionSettings(most_share=0.0),
        )
        self._own: list[PerPicker] = []
        prefixes: Any = None
        adapters: Any = None
        if one_account:
            self._own = [prefixes, adapters] = [own_prefixes(world.pickers), own_adapters(world.pickers)]
        elif "residency" in variant.shares:
            # One view for all; telemetry and discovery then tell it the same several times.
            adapters = AdapterResidency()
        self.pools = [
            Pool(
                f"picker-{number}",
                policy(),
                random.Random(f"{seed}/picker/{number}"),
                settings,
                EndpointTable(step_model) if step_model is not None else None,
                prefixes=prefixes,
                adapters=adapters,
            )
            for number in range(1 if one_account else world.pickers)
        ]
        if one_account:
            self.pools *= world.pickers
        rules = [getattr(pool.policy, "picker", None) for pool in self.pools]
        self._learners = [
            one.rule if isinstance(one, RulePicker) and isinstance(one.rule, Learner) else None for one in rules
        ]
        self._addresses = [f"10.0.{e >> 8}.{e & 255}:8000" for e in range(len(world.fleet))]
        self._index = {address: endpoint for endpoint, address in enumerate(self._addresses)}
        if variant.true_lengths:
            for pool in self.pools:
                pool.lengths = TrueLengths()
        ends = [float(world.block_tokens * (block + 1)) for block in range(4_096)]
        self._ends: list[float] = ends

    @property
    def scrape_ms(self) -> float | None:
        """Interval of readings."""
        return self._scrape_ms

    @property
    def sampling(self) -> Sampling:
        """A pool that holds requests may send them when a sample comes; others are not moved by one."""
        return Sampling.AT_ONCE if any(pool.flow is not None for pool in self.pools) else self._sampling

    def start(self, engines: list[Engine], present: list[int], now: float) -> None:
        """Discovery's first word."""
        if self._variant.exact_cache or "events" in self._variant.shares:
            for pool in dict.fromkeys(self.pools):
                exact: Any = ExactCache(pool.prefixes, engines)
                pool.prefixes = exact
        self.present(present, now)

    def present(self, endpoints: list[int], now: float) -> None:
        """Discovery: every picker hears the same."""
        specs = [
            EndpointSpec(host=self._addresses[e].removesuffix(":8000"), port=8000, labels={"endpoint": str(e)})
            for e in endpoints
        ]
        for pool in dict.fromkeys(self.pools):
            added, _ = pool.apply_endpoints(specs)
            if isinstance(pool.prefixes, ExactCache):
                pool.prefixes.slots = {known.slot: self._index[known.address] for known in pool.table.wanted()}
            if self._world.adapters:
                served = ServedModels(base=(BASE_MODEL,), adapters=dict.fromkeys(self._world.adapters, BASE_MODEL))
                for endpoint in added:
                    pool.apply_served_models(endpoint, served)

    def _request(self, trip: Trip, pool: Pool) -> InferenceRequest:
        call, block = trip.call, self._world.block_tokens
        share, factor = self._world.misjudged
        wrong = factor if share and self._draw.random() < share else 1.0
        noise = math.exp(self._draw.gauss(0.0, self._world.token_noise))
        text = max(1.0, wrong * call.prompt_tokens * self._bias * noise)
        model = call.adapter or BASE_MODEL
        tokens = max(1, round(text * pool.tokens.scale(model)))
        # The picker hashes the prompt only, and never counts its last token as cached.
        count = min(len(call.blocks), (call.prompt_tokens - 1) // block)
        if count > len(self._ends):
            self._ends = [float(block * (position + 1)) for position in range(count)]
        scale = tokens / call.prompt_tokens
        return InferenceRequest(
            request_id=str(trip.number),
            kind=RequestKind.CHAT,
            model=model,
            target_model=model,
            stream=True,
            prompt_tokens=tokens,
            text_tokens=text,
            sequences=call.choices,
            max_tokens=call.output_tokens if self._variant.true_lengths else call.max_tokens,
            prefix=PrefixChain(hashes=call.blocks[:count], ends=[end * scale for end in self._ends[:count]]),  # type: ignore[arg-type]
            tenant=call.tenant,
            priority=call.priority,
            routing_key=call.session,
            subset=self._untried(trip) if trip.tried else None,
        )

    def _untried(self, trip: Trip) -> tuple[str, ...]:
        left = [address for endpoint, address in enumerate(self._addresses) if endpoint not in trip.tried]
        return tuple(left)

    def _pool(self, picker: int) -> Pool:
        """The pool of a picker, with its own knowledge where only the account is shared."""
        for own in self._own:
            own.current = picker
        return self.pools[picker]

    def route(self, trip: Trip, now: float) -> int | None:
        """Places the trip; raises RequestRefused."""
        pool = self._pool(trip.picker)
        placement = trip.placement = pool.place(self._request(trip, pool), now)
        return self._index[placement.booking.endpoint.address]

    def released(self, now: float) -> list[tuple[Trip, int]]:
        """Nothing is held here."""
        return []

    def first_token(self, trip: Trip, now: float) -> None:
        """Seen where the answer is watched."""
        placement = trip.placement
        if placement is not None and (placement.observe or self._first_tokens):
            self._pool(trip.picker).first_token(placement, now)
        learner = self._learners[trip.picker]
        if learner is not None:
            learner.first_token(str(trip.number), trip.ttft_ms)

    def ended(self, trip: Trip, fate: Fate, now: float) -> None:
        """Releases the booking; a watched answer tells its usage."""
        placement = trip.placement
        if placement is None:
            return
        pool = self._pool(trip.picker)
        if fate is Fate.SERVED and placement.observe:
            pool.usage(placement, trip.call.prompt_tokens, trip.call.output_tokens * trip.call.choices)
        pool.finish(placement, _OUTCOMES[fate], now)
        learner = self._learners[trip.picker]
        if learner is not None and fate is Fate.SERVED:
            learner.answered(str(trip.number), trip.tpot_ms)

    def sampled(self, picker: int, endpoint: int, sample: EngineSample, now: float) -> None:
        """Telemetry arrived."""
        if not self._variant.telemetry or (self._own and picker):
            return
        if not self._variant.histograms:
            sample.ttft = sample.inter_token = None
        pool = self._pool(picker)
        known = pool.table.find(self._addresses[endpoint])
        if known is None:
            return
        if not self._gauges_only:
            pool.apply_sample(known, sample, now)
            return
        if sample.ttft is not None:
            self._answers[picker].learn(known, sample, now, pool.lengths)
            sample.ttft = sample.inter_token = None
            pool.apply_sample(known, sample, now)
        elif sample.running or sample.waiting:
            # All that such a policy can see of it, and most of what a run's samples are.
            pool.table.columns.tell(known.slot, sample, pool.ledger.explained(known, sample.taken_ms))
            if sample.max_adapters is not None:
                pool.adapters.apply_sample(known.slot, sample)
        else:
            pool.apply_sample(known, sample, now)
