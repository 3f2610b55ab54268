"""What the pool learns of its endpoints and writes into the table: speed, trust in cache hits, failures, lengths.

Stands beside the pool: told of every placement and end, and of every sample.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.learning.cache_trust import CacheTrust
from poolpilot_picker.learning.failures import Failures
from poolpilot_picker.learning.speed import LOAD_MS, Residual, SpeedLearner

if TYPE_CHECKING:
    from poolpilot_picker.config.step_models import StepModel
    from poolpilot_picker.learning.lengths import OutputLengths
    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable
    from poolpilot_picker.state.samples import EngineSample

NEGLIGIBLE_MS: Final = 20.0
"""A failure penalty below this is dropped: half a minute after a failure the endpoint is tried again, however little
there is to do."""
LEAST_ANSWERS: Final = 5
"""Answers a window must hold for its mean length to be taken."""
LEAST_EVIDENCE: Final = 0.2
"""Endpoints of a profile that have shown less than this together follow the whole pool."""
SPECULATIVE: Final = 1.1
"""Tokens per step from which an engine is taken to generate several at once."""
PUBLISH_MS: Final = 1_000.0
"""From the end of a window until what it taught is in the table. Endpoints that began together end their windows
together: all are to end theirs with the residuals that predicted them, and none is to wait for its next window."""


class Lesson(msgspec.Struct, frozen=True, gc=False):
    """What a placement was predicted to do at its endpoint: withdrawn when it ends without a pod's answer."""

    window: int
    work_ms: float
    """Prefill work by the profile; with others' requests at the endpoint, a share of theirs too."""
    ttft_ms: float
    cached: float
    """Tokens it should find in the cache, before trust."""


class _Learner:
    """Everything learned of one endpoint."""

    __slots__ = ("failures", "speed", "trust", "window_start")

    def __init__(self, speed: SpeedLearner) -> None:
        self.speed = speed
        self.trust = CacheTrust()
        self.failures = Failures()
        self.window_start: EngineSample | None = None
        """The sample with histograms from which the running window counts."""


class Learners:
    """The learners of a pool's endpoints; keeps the columns of the table that hold what was learned."""

    def __init__(self, table: EndpointTable, lengths: OutputLengths) -> None:
        self._table = table
        self._lengths = lengths
        self._of: dict[Endpoint, _Learner] = {}
        self._failing: set[Endpoint] = set()
        self._unpublished_ms = math.inf
        """Since when something is learned that is not in the table; inf: nothing is."""

    # ---- endpoints

    def apply_endpoints(self) -> None:
        """The set of endpoints changed, or their labels: who is new, or has another profile, has shown nothing."""
        for endpoint in self._table:
            learner = self._of.get(endpoint)
            if learner is None:
                self._of[endpoint] = _Learner(SpeedLearner(endpoint.model))
            elif learner.speed.model != endpoint.model:
                learner.speed, learner.window_start = SpeedLearner(endpoint.model), None
        self._publish()

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self._of.pop(endpoint, None)
        self._failing.discard(endpoint)

    def restarted(self, endpoint: Endpoint, now: float) -> None:
        """The engine restarted: its counters begin again; the hardware is the same."""
        learner = self._of[endpoint]
        learner.window_start = None
        learner.speed.restart_window(now)
        learner.trust.restart()

    # ---- requests

    def placed(self, endpoint: Endpoint, uncached: float, held: float, cached: float, ttft_ms: float = 0.0) -> Lesson:
        """A request was placed: `uncached` and `held` prompt tokens as predicted, `cached` before trust is applied."""
        learner = self._of[endpoint]
        # The work of others is not known; they are taken to place as much for each of their sequences as we do.
        work_ms = self._table.columns.crowd(endpoint.slot) * endpoint.model.prefill(uncached, held)
        learner.trust.placed(cached)
        return Lesson(learner.speed.placed(work_ms, ttft_ms), work_ms, ttft_ms, cached)

    def placed_elsewhere(
        self, endpoint: Endpoint, work_ms: float, ttft_ms: float, forecasts: int, cached: float
    ) -> None:
        """Another process has placed requests: the sums of their lessons, with so many predicted TTFTs."""
        learner = self._of[endpoint]
        learner.trust.placed(cached)
        learner.speed.placed(work_ms, ttft_ms, forecasts)

    def loading(self, endpoint: Endpoint, load_ms: float) -> None:
        """An adapter must be loaded for a placed request; `load_ms` as predicted, 0 where nobody did."""
        slot, table = endpoint.slot, self._table
        sequences = float(table.inflight[slot]) + float(table.foreign[slot])
        self._of[endpoint].speed.loading(load_ms or LOAD_MS, sequences)

    def deferred(self, endpoint: Endpoint) -> None:
        """A placed request waits for a GPU slot: when it starts says little of how fast the endpoint is."""
        self._of[endpoint].speed.loading(LOAD_MS, 0.0)

    def withdrawn(self, endpoint: Endpoint, lesson: Lesson) -> None:
        """No pod answered the placed request, or another one did: what was predicted is compared with nothing."""
        learner = self._of.get(endpoint)
        if learner is not None:
            learner.speed.withdrawn(lesson.window, lesson.work_ms, lesson.ttft_ms)
            learner.trust.withdrawn(lesson.cached)

    def withdrawn_elsewhere(self, endpoint: Endpoint, placed_ms: float, lesson: Lesson) -> None:
        """The same for a request that another process placed; its window is not ours."""
        learner = self._of.get(endpoint)
        if learner is not None:
            self.withdrawn(endpoint, msgspec.structs.replace(lesson, window=learner.speed.window_at(placed_ms)))

    def advance(self, endpoint: Endpoint, now: float) -> None:
        """Call before the account of an endpoint changes: accounts for the time since its last change."""
        learner = self._of.get(endpoint)
        if learner is not None:
            self._table.columns.advance(endpoint.slot, now, learner.speed.clock)

    # ---- failures

    def failed(self, endpoint: Endpoint, now: float) -> None:
        """A connection failed or was reset, or the pod answered 5xx."""
        learner = self._of.get(endpoint)
        if learner is not None:
            learner.failures.failed(now)
            self._failing.add(endpoint)

    def forgiven(self, endpoint: Endpoint) -> None:
        """Its failures no longer count: it was left out for them, and may show what it does now."""
        learner = self._of.get(endpoint)
        if learner is not None and endpoint in self._failing:
            learner.failures = Failures()
            self._failing.discard(endpoint)
            self._table.failure_ms[endpoint.slot] = 0.0

    def succeeded(self, endpoint: Endpoint, now: float) -> None:
        """The pod answered."""
        if endpoint in self._failing:
            self._of[endpoint].failures.succeeded(now)

    def refresh_penalties(self, now: float) -> None:
        """Penalties fade with time: those that there are are brought up to date before a decision."""
        if not self._failing:
            return
        for endpoint in list(self._failing):
            penalty = self._of[endpoint].failures.penalty_ms(now)
            if penalty < NEGLIGIBLE_MS:
                penalty = 0.0
                self._failing.discard(endpoint)
            self._table.failure_ms[endpoint.slot] = penalty

    # ---- samples

    def sampled(self, endpoint: Endpoint, sample: EngineSample, now: float) -> None:
        """A sample was applied. Those with histograms end windows; each is an occasion to write what was learned."""
        self._end_window(endpoint, sample, now)
        if now - self._unpublished_ms >= PUBLISH_MS:
            self._publish()

    def _end_window(self, endpoint: Endpoint, sample: EngineSample, now: float) -> None:
        learner = self._of[endpoint]
        start, speed = learner.window_start, learner.speed
        if sample.inter_token is None or sample.ttft is None:
            return
        if start is None or start.inter_token is None or start.ttft is None:
            learner.window_start = sample
            speed.restart_window(now)
            return
        self.advance(endpoint, now)
        if not speed.due(now):
            return
        learner.window_start = sample
        steps = sample.inter_token.count - start.inter_token.count
        first_tokens = sample.ttft.count - start.ttft.count
        if steps < 0 or first_tokens < 0:
            speed.restart_window(now)
            learner.trust.restart()
            return
        speed.close_window(
            now,
            inter_token_s=sample.inter_token.sum_s - start.inter_token.sum_s,
            tokens=_tokens_in(steps, first_tokens, start, sample),
            ttft_s=sample.ttft.sum_s - start.ttft.sum_s,
            first_tokens=first_tokens,
            prefill=float(self._table.prefill_speed[endpoint.slot]),
        )
        self._table.set_prefill_share(endpoint, speed.prefill_share)
        if sample.cached_prompt_tokens is not None and start.cached_prompt_tokens is not None:
            learner.trust.close_window(max(0.0, sample.cached_prompt_tokens - start.cached_prompt_tokens))
            self._table.cache_trust[endpoint.slot] = learner.trust.trust
        self._learn_lengths(start, sample)
        self._unpublished_ms = min(self._unpublished_ms, now)

    def _learn_lengths(self, start: EngineSample, sample: EngineSample) -> None:
        if start.generated_tokens is None or start.requests_succeeded is None:
            return
        if sample.generated_tokens is None or sample.requests_succeeded is None:
            return
        tokens = sample.generated_tokens - start.generated_tokens
        answers = sample.requests_succeeded - start.requests_succeeded
        if answers >= LEAST_ANSWERS and tokens > 0:
            self._lengths.observe_mean(tokens / answers, answers)

    def _publish(self) -> None:
        """Writes the residuals of all endpoints into the table."""
        self._unpublished_ms = math.inf
        pooled: dict[StepModel | None, tuple[Residual, Residual]] = {None: (Residual(), Residual())}
        for learner in self._of.values():
            speed = learner.speed
            for profile in (speed.model, None):
                peers = pooled.setdefault(profile, (Residual(), Residual()))
                for total, own in zip(peers, (speed.prefill, speed.decode), strict=True):
                    total.log += own.log
                    total.evidence += own.evidence
        for endpoint, learner in self._of.items():
            speed = learner.speed
            prefill, decode = (
                own.factor(peers if peers.evidence >= LEAST_EVIDENCE else everybody)
                for own, peers, everybody in zip(
                    (speed.prefill, speed.decode), pooled[speed.model], pooled[None], strict=True
                )
            )
            self._table.set_speed(endpoint, prefill, decode)

    def counts(self) -> dict[str, int]:
        """How many observations were taken: for tests and metrics."""
        return {
            "speed_windows": sum(learner.speed.lessons for learner in self._of.values()),
            "failing_endpoints": len(self._failing),
        }


def _tokens_in(steps: float, first_tokens: float, start: EngineSample, sample: EngineSample) -> float:
    """Tokens after the first ones, generated between two samples.

    An engine that speculates observes the time of a step, in which a sequence gets several tokens: then its counter of
    tokens grows faster than its histogram.
    """
    if start.generated_tokens is None or sample.generated_tokens is None:
        return steps
    generated = sample.generated_tokens - start.generated_tokens - first_tokens
    return generated if SPECULATIVE * steps < generated < math.inf else steps
