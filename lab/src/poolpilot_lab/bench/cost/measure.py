"""One run: what the processes of one contestant used, without requests and with them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from poolpilot_lab.bench.cost import machine, probe
from poolpilot_lab.bench.cost.cases import CHUNK_MS, CHUNKS, NO_PICKER
from poolpilot_lab.bench.cost.pickers import streams_by_worker
from poolpilot_lab.bench.cost.rows import Row
from poolpilot_lab.bench.cost.tools import LoadResult, Quantiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolpilot_lab.bench.cost.cases import Trial
    from poolpilot_lab.bench.cost.stage import Entry
    from poolpilot_lab.bench.cost.tools import Generator, LoadSpec, ProbeResult

SETTLE_S = 0.5
"""After a pause: scrapes that hung are given up, connections that were closed are opened again."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one contestant at one time."""

    at: float
    picker_s: float
    envoy_s: float
    pages: int


@dataclass(frozen=True, slots=True)
class Used:
    """Between two readings."""

    seconds: float
    picker_s: float
    envoy_s: float
    pages: int

    @property
    def picker_cores(self) -> float:
        """CPU seconds per second."""
        return self.picker_s / self.seconds

    @property
    def envoy_cores(self) -> float:
        """CPU seconds per second."""
        return self.envoy_s / self.seconds


async def read(entry: Entry) -> Reading:
    """Now."""
    pages = (await entry.servers.counts()).pages
    return Reading(
        time.monotonic(), machine.cpu_seconds(entry.picker_pids), machine.cpu_seconds(entry.envoy_pids), pages
    )


def between(first: Reading, last: Reading) -> Used:
    """What was used from one to the other."""
    return Used(
        last.at - first.at, last.picker_s - first.picker_s, last.envoy_s - first.envoy_s, last.pages - first.pages
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    row: Row
    clients: LoadResult | None
    reply: ProbeResult | None = None
    shares: tuple[float, ...] = ()
    """Of the run's streams, by worker, where there are several."""


async def run_once(trial: Trial, entry: Entry, generator: Generator, run: int) -> Measured:
    """Wakes the contestant, measures it, and puts it to sleep again."""
    with entry.awake():
        await entry.servers.shape(CHUNKS, CHUNK_MS)
        await asyncio.sleep(SETTLE_S)
        if trial.warm is not None:
            await generator.run(_aimed(trial.warm, entry, run))
        # Asking several workers costs them as much as some hundred requests: not in what is measured.
        first = await _streams(entry) if trial.load is not None else {}
        before = await read(entry)
        await asyncio.sleep(trial.idle_s)
        idle_end = await read(entry)
        idle = between(before, idle_end)
        if trial.load is None:
            return Measured(row(trial, entry, run, idle, None, None), None)
        result, memory = await _play(trial, trial.load, entry, generator, run)
        used = between(idle_end, await read(entry))
        figures = row(trial, entry, run, idle, used, result, slope(memory))
        reply = None
        if trial.probes and entry.picker is not None:
            asked = probe.spec(entry.picker.ports[0], entry.endpoints[0], trial.load.rate, trial.probes, run)
            reply = await generator.probe(asked)
        return Measured(figures, result, reply, shares(first, await _streams(entry)))


async def _streams(entry: Entry) -> dict[str, float]:
    return await streams_by_worker(entry.picker) if entry.picker is not None else {}


def shares(first: Mapping[str, float], last: Mapping[str, float]) -> tuple[float, ...]:
    """Of what was counted from one to the other, by worker; empty if nothing was."""
    counted = [last[worker] - first.get(worker, 0.0) for worker in sorted(last)]
    return tuple(count / sum(counted) for count in counted) if sum(counted) > 0 else ()


async def _play(
    trial: Trial, load: LoadSpec, entry: Entry, generator: Generator, run: int
) -> tuple[LoadResult, list[tuple[int, int]]]:
    """The load in as many segments as the trial has; (requests so far, bytes resident) after each."""
    results: list[LoadResult] = []
    memory: list[tuple[int, int]] = []
    for segment in range(trial.segments):
        part = replace(load, requests=load.requests // trial.segments)
        results.append(await generator.run(_aimed(part, entry, run * trial.segments + segment)))
        memory.append((sum(result.count for result in results), machine.rss_bytes(entry.picker_pids)))
    return (results[0] if len(results) == 1 else joined(results)), memory


def slope(memory: Sequence[tuple[int, int]]) -> float | None:
    """Bytes per request by least squares over the second half; None where there are too few points to tell."""
    late = memory[len(memory) // 2 :]
    if len(late) < 3 or late[0][0] == late[-1][0]:
        return None
    return statistics.linear_regression(*zip(*late, strict=True)).slope


def joined(results: Sequence[LoadResult]) -> LoadResult:
    """Segments as one run: counts add up; of quantiles, the median of the segments'."""
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result.reasons)

    def middle(kind: str) -> Quantiles:
        each = [asdict(getattr(result, kind)) for result in results]
        return Quantiles(**{name: statistics.median(one[name] for one in each) for name in each[0]})

    return LoadResult(
        count=sum(result.count for result in results),
        errors=sum(result.errors for result in results),
        reasons=dict(reasons),
        seconds=sum(result.seconds for result in results),
        chunks=sum(result.chunks for result in results),
        latency_ms=middle("latency_ms"),
        first_byte_ms=middle("first_byte_ms"),
        late_p99_ms=max(result.late_p99_ms for result in results),
        connections=sum(result.connections for result in results),
    )


def _aimed(spec: LoadSpec, entry: Entry, seed: int) -> LoadSpec:
    return replace(spec, seed=seed, target=entry.gateway.address)


def row(
    trial: Trial,
    entry: Entry,
    run: int,
    idle: Used,
    used: Used | None,
    result: LoadResult | None,
    bytes_per_request: float | None = None,
) -> Row:
    """The figures of one run."""
    contestant = entry.contestant
    picked = contestant.picker != NO_PICKER
    done = result.count if result is not None else 0
    window = used or idle
    per_request = per_request_us(idle.picker_cores, used.picker_s, used.seconds, done) if used and picked else None
    return Row(
        run=run,
        case=trial.case,
        picker=contestant.picker,
        transport=contestant.transport,
        body_mode=contestant.body_mode,
        endpoints=trial.endpoints,
        concurrency=(trial.load.concurrency or None) if trial.load is not None else None,
        workers=contestant.workers,
        scrape=contestant.scrape,
        requests=done,
        rps=done / result.seconds if result is not None else None,
        cpu_us_per_request=per_request,
        idle_cores=idle.picker_cores if picked else None,
        refresh_hz=window.pages / window.seconds / trial.endpoints if picked else None,
        envoy_cpu_us_per_request=per_request_us(idle.envoy_cores, used.envoy_s, used.seconds, done) if used else None,
        p50_ms=result.latency_ms.p50 if done and result is not None else None,
        p99_ms=result.latency_ms.p99 if done and result is not None else None,
        rss_mb=machine.rss_bytes(entry.picker_pids) / 1e6 if picked else None,
        slope_bytes_per_request=bytes_per_request if picked else None,
        errors=result.errors if result is not None else 0,
    )


def per_request_us(idle_cores: float, busy_s: float, seconds: float, requests: int) -> float | None:
    """µs, the cost without requests taken off; None where nothing was answered."""
    if not requests:
        return None
    return 1e6 * (busy_s - idle_cores * seconds) / requests
