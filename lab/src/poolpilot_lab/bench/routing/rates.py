"""Highest rates that come with the package: `python -m poolpilot_lab.bench.routing.rates` finds them.

A rate belongs to a scenario as it was defined when the rate was found; when the definition changes it is not used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from poolpilot_lab.sim.scenario import Scenario

FILE: Final = Path(__file__).with_name("rates.json")
MODEL: Final = 2
"""Grows when a change of the engine model or of the oracle moves the rates."""


def mark(scenario: Scenario) -> str:
    """Of a scenario's definition."""
    return hashlib.sha256(f"{MODEL} {scenario.key}".encode()).hexdigest()[:16]


def known_rate(scenario: Scenario, table: str, seed: int) -> float | None:
    """Requests/s, where it was found for the scenario as it is."""
    found = _found(_stored(), scenario, table).get(str(seed))
    return None if found is None else float(found)


def _found(stored: dict[str, Any], scenario: Scenario, table: str) -> dict[str, float]:
    """Seed → requests/s."""
    entry = stored.get(scenario.name, {})
    return dict(entry.get(table, {})) if entry.get("mark") == mark(scenario) else {}


def _stored() -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(FILE.read_text())
    except (OSError, ValueError):
        return {}
    return stored


def remember(scenario: Scenario, table: str, seed: int, rate: float) -> None:
    """Adds a rate to the file."""
    stored = _stored()
    entry = stored.get(scenario.name)
    if entry is None or entry.get("mark") != mark(scenario):
        entry = stored[scenario.name] = {"mark": mark(scenario)}
    entry.setdefault(table, {})[str(seed)] = round(rate, 4)
    FILE.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")


def main(argv: list[str]) -> int:
    """Finds what is missing, in parallel; what is there stays."""
    # Imported here: the runs import this module.
    from poolpilot_lab.bench.routing.execute import RateTask, find_rate, in_parallel
    from poolpilot_lab.sim.scenarios import KNOWN, SCENARIOS

    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", 1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scenario", default=",".join(SCENARIOS))
    parser.add_argument("--table", default="results")
    parser.add_argument("--store", type=Path, default=Path("out/rates"), help="of the runs in progress")
    given = parser.parse_args(argv)
    chosen = dict.fromkeys(KNOWN[name].rate_of or name for name in given.scenario.split(","))
    for seed in range(1, given.seeds + 1):
        tasks = [
            RateTask(_better_guess(KNOWN[name], given.table), given.table, seed, given.store)
            for name in chosen
            if known_rate(KNOWN[name], given.table, seed) is None
        ]
        for task, rate in in_parallel(find_rate, tasks, given.workers):
            remember(task.scenario, task.table, task.seed, rate)
            print(f"{task.scenario.name} seed {task.seed}: {rate:.4g}/s", flush=True)
    return 0


def _better_guess(scenario: Scenario, table: str) -> Scenario:
    """The median of what other draws had, by the speed of their engines."""
    from poolpilot_lab.bench.routing.sets import TABLES
    from poolpilot_lab.sim.capacity import speed

    world = scenario.steady_world(TABLES[table].variation)
    found = [rate / speed(world, int(seed)) for seed, rate in _found(_stored(), scenario, table).items()]
    return replace(scenario, guess=statistics.median(found)) if found else scenario


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
