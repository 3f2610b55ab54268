"""A pool and its engines in simulated time: the picker's own code places, the lab's engine model answers.

Prefix chains have the engines' block size, so what the picker predicts can be compared with what an engine finds.
Samples are taken every 200 ms and arrive 20 ms later; every 5 s they carry the histograms.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core_pools import BLOCK, START, chain, request
from poolpilot_lab.engine.model import PROFILES, Accelerator, Engine, EngineSettings, Sequence, Variation
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.state.samples import EngineSample, HistogramTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from poolpilot_lab.engine.model import Histogram
    from poolpilot_picker.flow.pool import Placement, Pool

SAMPLE_MS = 200.0
DELAY_MS = 20.0
HISTOGRAMS_MS = 5_000.0


def make_engine(
    profile: str = "llama-3.1-8b-h100",
    *,
    kv_tokens: int = 440_000,
    max_loras: int = 0,
    seed: int = 0,
    sigma: float = 0.0,
) -> Engine:
    """An engine with blocks as long as those of the tests' prefix chains."""
    settings = EngineSettings(
        num_gpu_blocks=kv_tokens // BLOCK + 1, block_size=BLOCK, max_model_len=200_000, max_loras=max_loras
    )
    return Engine(settings, Accelerator(PROFILES[profile], Variation(sigma=sigma, step_noise=0.1), seed))


@dataclass
class Job:
    """One request to come, and what became of it."""

    at_ms: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[tuple[object, int], ...] = ()
    model: str = "base"
    limit: int | None = None
    endpoint: str = ""
    cached_tokens: int = 0
    ttft_ms: float = float("inf")
    e2e_ms: float = float("inf")
    outcome: Outcome | None = None
    placement: Placement | None = field(default=None, repr=False)


class Fleet:
    """`engines`: one per endpoint of the pool, by slot. `fails(address, now)` makes an endpoint answer 500 in 20 ms."""

    def __init__(
        self,
        pool: Pool,
        engines: Iterable[Engine],
        *,
        fails: Callable[[str, float], bool] = lambda address, now: False,
        seed: int = 0,
    ) -> None:
        self.pool = pool
        self.engines = {endpoint.address: engine for endpoint, engine in zip(pool.table, engines, strict=True)}
        self.now = START
        self._fails = fails
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._version = dict.fromkeys(self.engines, 0)
        self._histograms_at = dict.fromkeys(self.engines, 0.0)
        self._left = 0

    def at(self, time_ms: float, what: Callable[[], None]) -> None:
        """Does something at a time of the simulation."""
        heapq.heappush(self._events, (time_ms, next(self._number), what))

    def run(self, jobs: list[Job], until_ms: float = 600_000.0) -> list[Job]:
        """Plays the jobs (`at_ms` from the start) until all are answered."""
        self._left = len(jobs)
        for job in jobs:
            self.at(START + job.at_ms, lambda job=job: self._arrive(job))
        for index, address in enumerate(self.engines):
            self.at(START + SAMPLE_MS * index / len(self.engines), lambda address=address: self._sample(address))
        while self._left and self._events and self.now < START + until_ms:
            self.now, _, what = heapq.heappop(self._events)
            what()
        return jobs

    def _arrive(self, job: Job) -> None:
        asked = request(job.prompt_tokens, model=job.model, max_tokens=job.limit, prefix=job.prefix)
        placement = job.placement = self.pool.place(asked, self.now)
        address = job.endpoint = placement.booking.endpoint.address
        if self._fails(address, self.now):
            self.at(self.now + 20.0, lambda: self._end(job, Outcome.FAILED))
            return
        engine = self.engines[address]
        sequence = Sequence(
            prompt_tokens=job.prompt_tokens,
            output_tokens=job.output_tokens,
            block_hashes=chain(*job.prefix).hashes,
            adapter=job.model if job.model != "base" else None,
            tag=job,
        )
        engine.add(sequence, self.now)
        if engine.busy_until is None:
            self._plan(address)
        else:
            end = engine.interrupt(self.now)
            if end is not None:
                self._schedule(address, end)

    def _plan(self, address: str) -> None:
        end = self.engines[address].plan(self.now, steps=64)
        if end is not None:
            self._schedule(address, end)

    def _schedule(self, address: str, end: float) -> None:
        self._version[address] += 1
        version = self._version[address]
        self.at(end, lambda: self._step_ended(address, version))

    def _step_ended(self, address: str, version: int) -> None:
        if version != self._version[address]:
            return
        outcome = self.engines[address].settle(self.now)
        for sequence in outcome.first_tokens:
            job = sequence.tag
            job.ttft_ms = self.now - START - job.at_ms
            job.cached_tokens = sequence.cached_tokens
            if job.placement.observe:
                self.pool.first_token(job.placement, self.now)
        for sequence in outcome.finished:
            job = sequence.tag
            if job.placement.observe:
                self.pool.usage(job.placement, job.prompt_tokens, job.output_tokens)
            self._end(job, Outcome.SERVED)
        self._plan(address)

    def _end(self, job: Job, outcome: Outcome) -> None:
        job.outcome = outcome
        job.e2e_ms = self.now - START - job.at_ms
        self.pool.finish(job.placement, outcome, self.now)
        self._left -= 1

    def _sample(self, address: str) -> None:
        engine, endpoint = self.engines[address], self.pool.table.find(address)
        told = engine.telemetry
        sample = EngineSample(
            taken_ms=self.now,
            running=float(told.gauges.running),
            waiting=float(told.gauges.waiting),
            kv_usage=told.gauges.kv_usage,
            kv_capacity_tokens=engine.blocks.total * BLOCK,
            max_adapters=engine.settings.max_loras or None,
            active_adapters=tuple(engine.adapters_in_flight) if engine.settings.max_loras else None,
            preemptions=float(told.preemptions),
            generated_tokens=float(told.generation_tokens),
            cached_prompt_tokens=float(told.prefix_hits),
            requests_succeeded=float(sum(told.finished.values())),
        )
        if self.now >= self._histograms_at[address]:
            self._histograms_at[address] = self.now + HISTOGRAMS_MS
            sample.ttft, sample.inter_token = _totals(told.ttft), _totals(told.inter_token)
        if endpoint is not None:
            self.at(self.now + DELAY_MS, lambda: self.pool.apply_sample(endpoint, sample, self.now))
        self.at(self.now + SAMPLE_MS * self._rng.uniform(0.9, 1.1), lambda: self._sample(address))


def _totals(histogram: Histogram) -> HistogramTotals:
    return HistogramTotals(histogram.sum, float(histogram.count))


def poisson(rng: random.Random, rate_per_s: float, count: int) -> list[float]:
    """Arrival times in ms."""
    times, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate_per_s) * 1000.0
        times.append(now)
    return times


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean."""
    kept = list(values)
    return sum(kept) / len(kept)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    kept = sorted(values)
    return kept[min(len(kept) - 1, int(share * len(kept)))]
