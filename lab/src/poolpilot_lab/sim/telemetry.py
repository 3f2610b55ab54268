"""An engine's metrics as the picker's sources read them: gauges always, histograms and facts every few seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from poolpilot_lab.engine import compiled
from poolpilot_lab.sim.router import Sampling
from poolpilot_picker.flow.learners import LEAST_ANSWERS
from poolpilot_picker.learning.speed import WINDOW_MS
from poolpilot_picker.state.samples import EngineSample, HistogramTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from poolpilot_lab.engine.model import Engine, Histogram
    from poolpilot_lab.sim.world import World
    from poolpilot_picker.learning.lengths import OutputLengths
    from poolpilot_picker.state.endpoints import Endpoint

EVERYTHING_MS: Final = 5_000.0
"""Between two readings with histograms (`sources.cadence`)."""
IDLE_FACTOR: Final = 7.5
"""An idle endpoint is read so much less often (`sources.cadence`: 200 ms and 1,500 ms)."""
JITTER: Final = 0.1
"""Share by which a pause is varied."""


class Cadence(NamedTuple):
    """When engines are read. Times in ms."""

    scrape_ms: float
    """Between two readings of an engine that has work."""
    delay_ms: float
    """From a reading until it arrives."""
    idle_factor: float = IDLE_FACTOR
    everything_ms: float = EVERYTHING_MS
    jitter: float = JITTER


Arrived = tuple[int, int, EngineSample, float]
"""(picker, endpoint, sample, when it arrives)."""


def read(engine: Engine, now: float, *, everything: bool, tokens_per_step: float = 1.0) -> EngineSample:
    """A sample of vLLM's fields. tokens_per_step: by which generated tokens are counted more than steps; the time
    between tokens stays the time between steps, as vLLM tells it."""
    told = engine.telemetry
    gauges = told.gauges
    sample = EngineSample(
        taken_ms=now,
        running=float(gauges.running),
        waiting=float(gauges.waiting),
        kv_usage=gauges.kv_usage,
        preemptions=float(told.preemptions),
    )
    loaded = adapters(engine)
    if loaded is not None:
        sample.max_adapters, sample.active_adapters, sample.waiting_adapters = loaded
    if everything:
        sample.block_tokens = engine.settings.block_size
        sample.kv_capacity_tokens = engine.blocks.total * engine.settings.block_size
        sample.prefix_caching = engine.settings.enable_prefix_caching
        sample.generated_tokens = tokens_per_step * told.generation_tokens
        sample.prompt_tokens = float(told.prompt_tokens)
        sample.cached_prompt_tokens = float(told.prefix_hits)
        sample.cache_queried_tokens = float(told.prefix_queries)
        sample.requests_succeeded = float(told.finished["stop"] + told.finished["length"])
        sample.ttft, sample.inter_token = _totals(told.ttft), _totals(told.inter_token)
    return sample


def adapters(engine: Engine) -> tuple[int, tuple[str, ...], tuple[str, ...]] | None:
    """(slots, adapters that run, adapters that only wait); None without slots."""
    slots = engine.settings.max_loras
    return (slots, *engine.adapters_told()) if slots else None


def _totals(histogram: Histogram) -> HistogramTotals:
    return HistogramTotals(histogram.sum, float(histogram.count))


class AnswerWindows:
    """What a pool learns of answers' lengths from the engines' counters, window by window, and nothing else of them.

    For policies that read no speeds: those are most of what a pool does with histograms.
    """

    def __init__(self) -> None:
        self._began: dict[Endpoint, tuple[EngineSample, float]] = {}

    def learn(self, endpoint: Endpoint, sample: EngineSample, now: float, lengths: OutputLengths) -> None:
        """As `flow.learners.Learners.sampled` does."""
        start, since = self._began.get(endpoint, (sample, now))
        if start is not sample and now - since < WINDOW_MS:
            return
        self._began[endpoint] = sample, now
        answers = _grown(start.requests_succeeded, sample.requests_succeeded)
        tokens = _grown(start.generated_tokens, sample.generated_tokens)
        if answers >= LEAST_ANSWERS and tokens > 0:
            lengths.observe_mean(tokens / answers, answers)


def _grown(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else now - before


class Scraping(Protocol):
    """What the simulation asks of `Scrapes`, or of its compiled twin."""

    @property
    def next_ms(self) -> float:
        """When the next engine is read; infinite: never."""
        ...

    @property
    def due_ms(self) -> float:
        """When the first of the samples on their way arrives; infinite: there is none."""
        ...

    @property
    def whole_pending(self) -> bool:
        """A sample with histograms is on its way."""
        ...

    def advance(self, now: float) -> None:
        """Reads all that is to be read until `now`: before anything changes in an engine."""
        ...

    def take(self, now: float) -> list[Arrived]:
        """What has arrived by `now`, in this order."""
        ...


class Scrapes:
    """Every picker's readings of every engine, made when somebody asks: `engine/compiled/_scrapes.pyx` does the same.

    Between two events of the simulation no engine changes, so its readings can be made together, before the second.
    """

    def __init__(
        self,
        engines: list[Engine],
        tokens_per_step: list[float],
        there: list[bool],
        first: Sequence[float],
        cadence: Cadence,
        sampling: Sampling,
        draw: Callable[[], float],
    ) -> None:
        """there: live, whether an endpoint can be read. first: when each picker reads each engine first, picker by
        picker. sampling: with LATEST and GAUGES, of an endpoint's samples that arrived by the time somebody asks only
        the last is told, those with histograms and of idle engines apart. draw: in [0, 1)."""
        self._engines = engines
        self._tokens_per_step = tokens_per_step
        self._there = there
        self._at = list(first)
        self._everything_at = [0.0] * len(first)
        self._cadence = cadence
        self._sampling = sampling
        self._draw = draw
        self._pending: list[Arrived] = []
        self.next_ms = min(self._at, default=math.inf)

    @property
    def due_ms(self) -> float:
        """As `Scraping.due_ms`."""
        return self._pending[0][3] if self._pending else math.inf

    @property
    def whole_pending(self) -> bool:
        """As `Scraping.whole_pending`."""
        return any(sample.ttft is not None for _, _, sample, _ in self._pending)

    def advance(self, now: float) -> None:
        """As `Scraping.advance`."""
        _, delay_ms, idle_factor, everything_ms, jitter = self._cadence
        while self.next_ms <= now:
            at, pause = self.next_ms, self._cadence.scrape_ms
            index = self._at.index(at)
            picker, endpoint = divmod(index, len(self._engines))
            if self._there[endpoint]:
                engine = self._engines[endpoint]
                everything = at >= self._everything_at[index]
                if everything:
                    self._everything_at[index] = at + (1.0 - jitter) * max(everything_ms, pause)
                sample = read(engine, at, everything=everything, tokens_per_step=self._tokens_per_step[endpoint])
                if self._sampling is Sampling.GAUGES and not everything:
                    sample.max_adapters = sample.active_adapters = sample.waiting_adapters = None
                self._pending.append((picker, endpoint, sample, at + delay_ms))
                if not engine.in_flight:
                    pause *= idle_factor
            low, high = 1.0 - jitter, 1.0 + jitter
            self._at[index] = at + pause * (low + (high - low) * self._draw())
            self.next_ms = min(self._at)

    def take(self, now: float) -> list[Arrived]:
        """As `Scraping.take`."""
        due = [one for one in self._pending if one[3] <= now]
        del self._pending[: len(due)]
        if not self._sampling.latest_only:
            return due
        last = {(picker, endpoint): number for number, (picker, endpoint, _, _) in enumerate(due)}
        return [
            one
            for number, one in enumerate(due)
            if last[one[:2]] == number or one[2].ttft is not None or not (one[2].running or one[2].waiting)
        ]


def scrapes(
    engines: list[Engine],
    there: list[bool],
    world: World,
    scrape_ms: float,
    now: float,
    sampling: Sampling,
    rng: Random,
) -> Scraping:
    """Readings of a run that begins now, compiled where they can be. scrape_ms: between two of an engine with work;
    there: live, whether an endpoint can be read; rng: for when each is read."""
    first = [now + rng.uniform(0.0, scrape_ms) for _ in range(world.pickers) for _ in engines]
    cadence = Cadence(scrape_ms, world.telemetry_delay_ms, IDLE_FACTOR if world.scrape_ms is None else 1.0)
    tokens = [world.tokens_per_step(endpoint) for endpoint in range(len(engines))]
    core = compiled.wanted("_scrapes")
    if core is None:
        return Scrapes(engines, tokens, there, first, cadence, sampling, rng.random)
    look = adapters if sampling is not Sampling.GAUGES and world.max_loras else None
    made: Scraping = core.Scrapes(engines, tokens, there, first, cadence, sampling.latest_only, rng.random, read, look)
    return made
