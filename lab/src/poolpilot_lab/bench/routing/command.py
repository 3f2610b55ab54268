"""`poolpilot bench routing`: flags → highest rates → groups of runs → results.json, report.md. Exit 0, 1, 2 or 130."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from poolpilot_lab.bench.errors import BenchError
from poolpilot_lab.bench.routing.execute import Group, RateTask, Remaining, find_rate, in_parallel, run_timed
from poolpilot_lab.bench.routing.options import PEERS, Options, parse
from poolpilot_lab.bench.routing.plots import draw
from poolpilot_lab.bench.routing.report import report
from poolpilot_lab.bench.routing.sets import SETS, TABLES
from poolpilot_lab.bench.routing.statistics import geometric_mean
from poolpilot_lab.bench.routing.tables import Run, Runs
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.policies import ORACLE, REFERENCES, ROLLOUT
from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_lab.workload.traces import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.sim.scenario import Scenario


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark. 0: results are written; 2: wrong flags, names or files; 130: interrupted, runs are kept."""
    if any(flag.partition("=")[0] == PEERS for flag in argv):
        # Real programs and no simulation: nothing of it is imported where it is not asked for.
        return int(importlib.import_module("poolpilot_lab.bench.peers.command").main(argv))
    try:
        options = parse(argv)
        _bench(options)
    except (BenchError, TraceError) as error:
        print(f"poolpilot bench routing: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, BenchError) else 2
    return 0


def _bench(options: Options) -> None:
    began = time.monotonic()
    tasks = [
        RateTask(scenario, table, seed, options.out)
        for (table, _, seed), scenario in {
            (_world(table), scenario.name, seed): scenario
            for table in options.tables
            for scenario in options.of(table)
            for seed in _seeds(options, table, scenario)
        }.items()
    ]
    rates: dict[tuple[str, str, int], float] = {}
    for number, (task, rate) in enumerate(in_parallel(find_rate, tasks, options.workers), 1):
        rates[task.scenario.name, task.table, task.seed] = rate
        _say(began, f"highest rate {number}/{len(tasks)}: {task.scenario.name}, seed {task.seed}: {rate:.3g}/s")
    groups = [group for table in options.tables for group in _groups(options, table, rates)]
    runs: dict[str, list[Run]] = {table: [] for table in options.tables}
    sources: dict[str, str] = {}
    # The longest first: at the end nobody waits for one that began late.
    groups.sort(key=lambda group: -group.work)
    remaining = Remaining(groups, options.workers)
    for number, (group, (stored, seconds)) in enumerate(in_parallel(run_timed, groups, options.workers), 1):
        name = group.scenario.name
        for one in stored:
            runs[group.table].append(Run(name, group.load, one["policy"], group.seed, one["row"] | one["details"]))
            sources[name] = one["details"]["source"]
        left = remaining.done(group, seconds)
        _say(
            began,
            f"{number}/{len(groups)}, about {duration(left)} left: "
            f"{group.table}, {name}, load {group.load:.2g}, seed {group.seed}",
        )
    _write(options, runs, sources)


def _seeds(options: Options, table: str, scenario: Scenario) -> range:
    """Hidden draws that the table has of a scenario."""
    seeds = range(1, options.seeds + 1)[: TABLES[table].seeds]
    return seeds if options.asked else seeds[: scenario.draws]


def _groups(options: Options, table: str, rates: dict[tuple[str, str, int], float]) -> list[Group]:
    def highest(scenario: Scenario, seed: int) -> float:
        return rates[scenario.name, _world(table), seed]

    groups = []
    for scenario in options.of(table):
        drawn = _seeds(options, table, scenario)
        found = [highest(scenario, seed) for seed in drawn]
        for load, nominal in _loads(options, table, scenario, geometric_mean(found)):
            for seed in drawn:
                rate = nominal or load * highest(scenario, seed)
                groups.append(
                    Group(
                        scenario=scenario,
                        table=table,
                        load=load,
                        rate=rate,
                        seed=seed,
                        requests=options.size(scenario, rate),
                        policies=_policies(options, table, scenario.name),
                        out=options.out,
                    )
                )
    return groups


def _world(table: str) -> str:
    """The table whose highest rates are this one's."""
    return "results" if TABLES[table].same_world else "identical"


def _loads(options: Options, table: str, scenario: Scenario, highest: float) -> list[tuple[float, float | None]]:
    """(load, rate that belongs to the scenario): as asked for, else of table, scenario or set, and its nominal one."""
    if options.loads is not None:
        return [(load, None) for load in options.loads]
    part = TABLES[table].part(scenario.name)
    own = TABLES[table].loads if part is None else part.loads
    if own is not None:
        # Who asks what happens at other loads is not in a table of one load, unless it names the scenario.
        elsewhere = scenario.loads is not None and TABLES[table].own is None and not options.asked
        return [] if elsewhere else [(load, None) for load in own]
    usual = SETS[options.set_name].loads
    if scenario.loads is not None:
        usual = scenario.loads if options.set_name == "full" else scenario.loads[1:2]
    nominal = scenario.nominal
    return [(load, None) for load in usual] + ([(nominal / highest, nominal)] if nominal is not None else [])


def _policies(options: Options, table: str, scenario: str) -> tuple[str, ...]:
    """The oracle runs, but for parts that say otherwise: rows name its mean."""
    part = TABLES[table].part(scenario)
    if part is not None:
        asked = [policy for policy in part.policies if policy not in BASELINES or policy in options.policies]
        return (*asked, ORACLE) if part.oracle else tuple(asked)
    own = TABLES[table].policies
    if own is not None:
        return (*own, ORACLE)
    order = [POOLPILOT, *BASELINES, *REFERENCES, ROLLOUT]
    return tuple(policy for policy in order if policy in options.policies or policy == ORACLE)


def _write(options: Options, runs: dict[str, list[Run]], sources: dict[str, str]) -> None:
    tables: dict[str, Runs] = {}
    for table, found in runs.items():
        place = {scenario.name: number for number, scenario in enumerate(options.of(table))}
        tables[table] = Runs(sorted(found, key=lambda run: (place[run.scenario], run.load, run.seed)))
        parts = [policy for part in TABLES[table].parts for policy in part.policies]
        kept = (*options.policies, *(TABLES[table].policies or ()), *parts)
        _write_json(options, table, [row for row in tables[table].rows() if row["policy"] in kept])
    (options.out / "report.md").write_text(report(tables, options.set_name, sources), encoding="utf-8")
    first = options.tables[0]
    draw(tables[first], options.out)
    written = ", ".join(f"{table}.json ({len(runs.runs)} runs)" for table, runs in tables.items())
    print(f"{options.out}: {written}, report.md, plots")


def _write_json(options: Options, table: str, rows: list[dict[str, Any]]) -> None:
    (options.out / f"{table}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def duration(seconds: float) -> str:
    """As people say it."""
    if math.isnan(seconds):
        return "? min"
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"


def _say(began: float, text: str) -> None:
    print(f"[{time.monotonic() - began:6.0f} s] {text}", file=sys.stderr, flush=True)
