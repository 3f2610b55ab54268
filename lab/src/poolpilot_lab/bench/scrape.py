"""What reading the engines' telemetry costs: pages a second really read, cores, and how long the event loop is held.

Run `python -m poolpilot_lab.bench.scrape` (options: --endpoints, --interval, --mode, --seconds, --runs, --stages). The
scraper is composed as in the picker: `TelemetrySource` → `SglangLoadSource` → `PoolFeed` → `Pool`, on uvloop. The pages
come from a process of their own (`bench.pages`). Modes: `full` reads whole pages at the interval, `selected` asks for
the wanted families at the interval, both of busy engines; `idle` and `busy` are the default cadence.

Cores are CPU time of this process over the wall time of the run, the costs of the loop included. Loop lag is how much
later than asked a 2 ms timer fires, in a run apart, since the probe costs CPU too. `--stages` times each step by itself
on the page's own bytes: what is left of the cost per page is I/O and the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop

from poolpilot_lab.bench.pages import Pages, addresses, engine_page
from poolpilot_lab.bench.still import Still
from poolpilot_lab.engine.server import tune_collector
from poolpilot_lab.processes import Child, free_ports
from poolpilot_picker.app import monotonic_ms
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.predicted_finish import PredictedFinishPicker
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.engines import BUILTIN, Engine
from poolpilot_picker.sources.http import HttpClient
from poolpilot_picker.sources.http_response import ResponseReader
from poolpilot_picker.sources.page_reader import PageReader
from poolpilot_picker.sources.sglang_load import SglangLoadSource, server_info_reader
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MODES: Final = ("full", "selected", "idle", "busy")
PROBE_S: Final = 0.002
SETTLE_S: Final = 1.5


class Run(msgspec.Struct):
    """One measured run. Times in µs or ms as named."""

    pages_per_s: float
    cores: float
    us_per_page: float
    lag_p99_ms: float
    lag_max_ms: float
    slowest_refresh_ms: float
    """Age of the oldest newest sample at the end: how fairly endpoints are read."""
    errors: int


def engines(mode: str) -> dict[str, Engine]:
    """The engines; in `full` mode none of them selects."""
    return {name: msgspec.structs.replace(one, selects_by_name=mode != "full") for name, one in BUILTIN.items()}


def compose(specs: Sequence[EndpointSpec], mode: str, interval_ms: float) -> tuple[Pool, TelemetrySource]:
    """Pool and telemetry as the picker has them."""
    profile = Profile("default", picker=("predicted-finish-picker", PredictedFinishPicker()))
    pool = Pool("bench", profile, random.Random(1))
    feed = PoolFeed(pool, monotonic_ms)
    pushed = SglangLoadSource(feed, now=monotonic_ms, discover=server_info_reader(HttpClient, None))
    cadence = Cadence() if mode in ("idle", "busy") else Cadence(fast_ms=interval_ms, slow_ms=interval_ms)
    source = TelemetrySource(
        pushed, settings=Settings(cadence=cadence), engines=engines(mode), in_flight=feed.in_flight, now=monotonic_ms
    )
    pool.apply_endpoints(specs)
    source.update(specs)
    pushed.update(specs)
    return pool, source


async def _probe(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        asked = loop.time() + PROBE_S
        await asyncio.sleep(PROBE_S)
        lags.append(max(0.0, loop.time() - asked) * 1000.0)


async def _run(specs: Sequence[EndpointSpec], mode: str, interval_ms: float, seconds: float) -> Run:
    pool, source = compose(specs, mode, interval_ms)
    task = asyncio.create_task(source.run())
    try:
        await asyncio.sleep(SETTLE_S)
        before, began, samples = _cpu_s(), time.perf_counter(), source.stats.samples
        await asyncio.sleep(seconds)
        cores = (_cpu_s() - before) / (took := time.perf_counter() - began)
        pages = source.stats.samples - samples
        oldest = max(monotonic_ms() - float(pool.table.sample_ms[one.slot]) for one in pool.table)
        lags: list[float] = []
        probe = asyncio.create_task(_probe(lags))
        await asyncio.sleep(seconds / 2)
        probe.cancel()
        lags.sort()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return Run(
        pages_per_s=pages / took,
        cores=cores,
        us_per_page=cores * took / max(pages, 1) * 1e6,
        lag_p99_ms=lags[int(0.99 * len(lags))],
        lag_max_ms=lags[-1],
        slowest_refresh_ms=oldest,
        errors=sum(source.stats.errors.values()),
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(endpoints: int, mode: str, interval_ms: float, seconds: float, runs: int) -> list[Run]:
    """Starts the pages and measures so many runs against them."""
    port = free_ports(1)[0]
    specs = [EndpointSpec(host=host, port=port, uid=host) for host in addresses(endpoints)]
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable,
            "-m",
            "poolpilot_lab.bench.pages",
            str(endpoints),
            str(port),
            *(["--idle"] if mode == "idle" else []),
        ]
        async with Child("pages", argv, log=Path(folder, "log"), out=Path(folder, "out")) as pages:
            await pages.line(within_s=30.0)
            return [await _run(specs, mode, interval_ms, seconds) for _ in range(runs)]


def stages(page: bytes) -> list[tuple[str, float]]:
    """(step, µs) of one page, each step by itself, best of several batches: what the machine can do, not its mood."""
    head = (
        f"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: {len(page)}\r\n"
        "content-type: text/plain; version=1.0.0; charset=utf-8\r\n\r\n"
    )
    answer = head.encode() + page
    reader = PageReader(BUILTIN["vllm"])
    specs = [EndpointSpec(host="127.0.1.1", port=1)]
    pool, _ = compose(specs, "full", 50.0)
    feed = PoolFeed(pool, monotonic_ms)

    def http() -> None:
        one = ResponseReader(2**20)
        one.feed(answer)

    def often() -> None:
        reader.read(page, monotonic_ms(), everything=False)

    def everything() -> None:
        reader.read(page, monotonic_ms(), everything=True)

    sample, _ = reader.read(page, monotonic_ms(), everything=False)

    def apply() -> None:
        sample.taken_ms = monotonic_ms()
        feed.on_sample(specs[0], sample)

    steps = {"answer": http, "load families": often, "all families": everything, "apply": apply}
    return [(name, _best(step)) for name, step in steps.items()]


async def without_network(page: bytes, endpoints: int = 100, rounds: int = 40) -> float:
    """µs per page of everything but the network and the event loop, moving pages of so many endpoints."""
    specs = [EndpointSpec(host=host, port=1, uid=host) for host in addresses(endpoints)]
    pool, _ = compose(specs, "full", 50.0)
    feed = PoolFeed(pool, monotonic_ms)
    pages = Pages(page)
    ready: list[bytes] = []
    settings = Settings(cadence=Cadence(fast_ms=50.0, slow_ms=50.0, everything_ms=1e9, models_ms=1e9))
    still = Still(
        feed,
        specs,
        lambda target: ready.pop() if ready else pages.answer(target),
        settings,
        in_flight=feed.in_flight,
        engines=engines("full"),
    )
    await still.start()
    times = []
    for _ in range(rounds):
        ready[:] = [pages.answer(b"/metrics") for _ in range(endpoints)][::-1]
        began, asked = time.perf_counter(), 0
        while asked < endpoints:
            asked += still.turn()
        times.append((time.perf_counter() - began) / asked * 1e6)
    return min(times)


def _best(step: Callable[[], None], batch: int = 200, batches: int = 15) -> float:
    times = []
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(batch):
            step()
        times.append((time.perf_counter() - began) / batch * 1e6)
    return min(times)


def main() -> None:
    """Prints one row per run and the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--interval", type=float, default=50.0, help="ms between two pages of an endpoint")
    parser.add_argument("--mode", choices=MODES, default="full")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stages", action="store_true", help="time each step by itself instead")
    options = parser.parse_args()
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.stages:
            page = runner.run(engine_page())
            for name, cost in stages(page):
                print(f"{name:16}{cost:8.1f} µs")
            print(f"{'without network':16}{runner.run(without_network(page)):8.1f} µs")
            return
        arguments = (options.endpoints, options.mode, options.interval, options.seconds, options.runs)
        print("   pages/s   cores  µs/page   lag p99    max ms  oldest sample ms  errors")
        rows = runner.run(measure(*arguments))
        for row in rows:
            print(_row(row))
        if len(rows) > 1:
            middle = {name: statistics.median(getattr(row, name) for row in rows) for name in Run.__struct_fields__}
            print(_row(Run(**middle)), "median")


def _row(row: Run) -> str:
    return (
        f"{row.pages_per_s:10.0f}{row.cores:8.3f}{row.us_per_page:9.1f}{row.lag_p99_ms:10.2f}{row.lag_max_ms:10.2f}"
        f"{row.slowest_refresh_ms:18.0f}{row.errors:8.0f}"
    )


if __name__ == "__main__":
    main()
