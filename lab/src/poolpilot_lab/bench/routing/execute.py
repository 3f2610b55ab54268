"""Runs: first the highest rates, then groups of runs on the same arrivals, in parallel, each stored when done.

A group is one (table, scenario, load, seed) with all its policies; it makes its traffic once. What is stored under the
same fingerprint is not run again.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from poolpilot_lab.bench.files import write_whole
from poolpilot_lab.bench.routing.fingerprint import fingerprint
from poolpilot_lab.bench.routing.rates import known_rate
from poolpilot_lab.bench.routing.sets import TABLES
from poolpilot_lab.sim.capacity import highest_rate, speed
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.flow_scaled import ScaledSimulation
from poolpilot_lab.sim.limits import limits
from poolpilot_lab.sim.measures import details, row, timeline
from poolpilot_lab.sim.policies import ROLLOUT, make_router
from poolpilot_lab.sim.scenarios import KNOWN
from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_lab.sim.variants import ALL, PLAIN, PROFILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from poolpilot_lab.sim.scenario import Scenario

SLOW: Final = {ROLLOUT: 100.0}
"""Policies that take so many times as long as others."""
STORED_S: Final = 0.3
"""A group that took less was stored."""

Stored = dict[str, Any]
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RateTask:
    """The highest rate of a scenario for one draw of engines."""

    scenario: Scenario
    table: str
    seed: int
    out: Path


@dataclass(frozen=True, slots=True)
class Group:
    """Runs on the same arrivals."""

    scenario: Scenario
    table: str
    load: float
    rate: float
    seed: int
    requests: int
    policies: tuple[str, ...]
    out: Path

    @property
    def work(self) -> float:
        """About how long it takes, beside others."""
        return self.requests * sum(SLOW.get(policy, 1.0) for policy in self.policies)


class Remaining:
    """How long what is left will take, from how long what was run took: by their work, stored groups apart."""

    def __init__(self, groups: Sequence[Group], workers: int) -> None:
        self._left = sum(group.work for group in groups)
        self._workers = workers
        self._seconds = self._done = 0.0

    def done(self, group: Group, seconds: float) -> float:
        """A group took so long; seconds until the rest is done (NaN: nothing was run yet)."""
        self._left -= group.work
        if seconds > STORED_S:
            self._seconds += seconds
            self._done += group.work
        return self._left * self._seconds / self._done / self._workers if self._done else math.nan


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_parallel(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int
) -> Iterator[tuple[_Task, _Result]]:
    """Results as they come. Stops at the first error; an interrupt leaves what is stored."""
    if workers == 1 or len(tasks) == 1:
        for task in tasks:
            yield task, work(task)
        return
    # Two processes that each wait for threads of the other's linear algebra get nothing done.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    executor = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts_to_the_parent
    )
    try:
        futures = {executor.submit(work, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        # What runs is not worth waiting for: it is run again the next time.
        executor.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    executor.shutdown()


def find_rate(task: RateTask) -> float:
    """As it comes with the package, from the store, or by bisection."""
    scenario, seed = task.scenario, task.seed
    if scenario.unlimited:
        return scenario.guess
    if scenario.rate_of:
        scenario = with_the_rate_of(scenario)
    variation = TABLES[task.table].variation
    if variation.sigma == 0.0:
        # Engines that do not differ: one draw is as good as another.
        seed = 1
    known = known_rate(scenario, task.table, seed)
    if known is not None:
        return known
    if scenario.scaled and seed != 1:
        world = scenario.steady_world(variation)
        return find_rate(replace(task, seed=1)) * speed(world, seed) / speed(world, 1)
    mark = fingerprint("rate", scenario.key, task.table, seed)
    file = task.out / "rates" / f"{scenario.name}-{task.table}-{seed}.json"
    stored = load_stored(file, mark)
    if stored is None:
        rate = highest_rate(scenario, scenario.steady_world(variation), seed)
        stored = store(file, mark, {"rate": rate})
    return float(stored["rate"])


def with_the_rate_of(scenario: Scenario) -> Scenario:
    """The scenario whose highest rate counts, on the fleet that is asked for."""
    base = KNOWN[scenario.rate_of]
    there = scenario.steady_world().fleet
    return base if there == base.steady_world().fleet else replace(base, fleet=there, guess=scenario.guess)


def run_timed(group: Group) -> tuple[list[Stored], float]:
    """As `run_group`, and how many seconds it took."""
    began = time.monotonic()
    return run_group(group), time.monotonic() - began


def run_group(group: Group) -> list[Stored]:
    """Every policy's run, new or stored: {"policy": …, "row": …, "details": …}."""
    scenario, seed = group.scenario, group.seed
    world = scenario.world(TABLES[group.table].variation)
    traffic = scenario.traffic(group.rate, group.requests, seed)
    known_profile = group.table == "profile"
    # What is there by now stays: the collector need not look at it again before every run.
    gc.collect()
    gc.freeze()
    known = None
    results = []
    for policy in group.policies:
        mark = fingerprint(scenario.key, group.table, group.rate, seed, group.requests, policy)
        name = f"{group.load:.4g}-{seed}-{policy}.json"
        file = group.out / "runs" / group.table / scenario.name / name
        stored = load_stored(file, mark)
        if stored is None:
            router = make_router(policy, world, seed, PROFILE if known_profile and policy == POOLPILOT else None)
            # Nothing in a run makes cycles worth collecting before its end; the collector would take a tenth of it.
            gc.collect()
            gc.disable()
            began = time.process_time()
            variant = ALL.get(policy, PLAIN)
            kind = Simulation if world.scaling is None else ScaledSimulation
            simulation = kind(variant.world(world), traffic, router, seed, scenario.warm_share)
            record = simulation.run()
            gc.enable()
            spent = time.process_time() - began
            if known is None or traffic.closed:
                known = limits(record, world, seed)
            what = {
                "source": traffic.source,
                "rate": group.rate,
                "simulated_per_s": len(record.trips) / max(1e-3, spent),
                "slo_ttft_ms": scenario.slo.ttft_ms,
                **({"timeline": timeline(record, world)} if world.changes else {}),
                **(simulation.figures if isinstance(simulation, ScaledSimulation) else {}),
            }
            stored = store(
                file,
                mark,
                {
                    "policy": policy,
                    "row": row(record, scenario.slo, known),
                    "details": details(record, scenario.slo, known) | what,
                },
            )
        results.append(stored)
    return results


def load_stored(file: Path, mark: str) -> Stored | None:
    """What is stored under this fingerprint."""
    try:
        stored: Stored = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return stored if stored.get("fingerprint") == mark else None


def store(file: Path, mark: str, what: Stored) -> Stored:
    """Writes it as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {"fingerprint": mark, **what}
    write_whole(file, json.dumps(made).encode())
    return made
