"""The command line of `poolpilot bench routing`, checked: every complaint names flag, value and what is allowed."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.bench.flags import whole
from poolpilot_lab.bench.routing.engine_file import find_engine
from poolpilot_lab.bench.routing.sets import SETS, TABLES
from poolpilot_lab.sim import policies
from poolpilot_lab.sim.scenarios import KNOWN, SCENARIOS, TRACE, trace_scenario
from poolpilot_lab.workload.traces import FORMATS, TraceError, read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.engine.model import Profile
    from poolpilot_lab.sim.scenario import Scenario

PEERS: Final = "--peers"
"""Real routers instead of the simulation: a command of its own (`bench.peers`), with its own flags."""
MOST_LOAD: Final = 3.0
MOST_ENDPOINTS: Final = 1_000
MOST_SEEDS: Final = 1_000
LEAST_REQUESTS: Final = 200
MOST_REQUESTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    set_name: str
    scenarios: tuple[Scenario, ...]
    """Asked for, or all that have a number."""
    asked: bool
    """Whether scenarios were asked for: tables with scenarios of their own then take these."""
    policies: tuple[str, ...]
    loads: tuple[float, ...] | None
    """Asked for; None: the set's."""
    seeds: int
    tables: tuple[str, ...]
    requests: int | None
    out: Path
    workers: int
    engine: Profile | None = None
    endpoints: int | None = None

    def size(self, scenario: Scenario, rate: float) -> int:
        """Requests of one run."""
        if self.requests is not None:
            return self.requests
        usual = max(LEAST_REQUESTS, round(rate * scenario.run_s))
        most = SETS[self.set_name].most_requests
        return usual if most is None or self.asked else min(usual, most)

    def of(self, table: str) -> tuple[Scenario, ...]:
        """Scenarios of a table, on the engines and in the number asked for."""
        own = TABLES[table].own
        if self.asked and TABLES[table].parts:
            asked = {scenario.name for scenario in self.scenarios}
            parts = [part for part in TABLES[table].parts if asked & {*part.scenarios, *part.asked_by}]
            own = tuple(name for part in parts for name in part.scenarios)
        elif own is None or self.asked:
            return self.scenarios
        return tuple(self.fit(KNOWN[name]) for name in own)

    def fit(self, scenario: Scenario) -> Scenario:
        """The scenario on the engines and in the number asked for."""
        return _fitted(scenario, self.engine, self.endpoints)


def parse(argv: Sequence[str]) -> Options:
    """Reads the flags. Raises UsageError; exits with 2 on flags that argparse refuses."""
    parser = _parser()
    given = parser.parse_args(argv)
    size = SETS[given.set]
    asked = given.scenario is not None or given.trace is not None
    engine = find_engine(given.engine) if given.engine is not None else None
    endpoints = None
    if given.endpoints is not None:
        endpoints = whole("--endpoints", given.endpoints, 1, MOST_ENDPOINTS)
    chosen = [_fitted(scenario, engine, endpoints) for scenario in _scenarios(given)]
    names = {scenario.name for scenario in chosen}
    usual = tuple(name for name in size.tables if not asked or TABLES[name].own is None)
    usual += tuple(name for name, table in TABLES.items() if asked and table.beside and table.beside <= names)
    loads = _loads(given.loads) if given.loads is not None else None
    seeds = whole("--seeds", given.seeds, 1, MOST_SEEDS) if given.seeds is not None else None
    return Options(
        set_name=given.set,
        scenarios=tuple(chosen),
        asked=asked,
        policies=_policies(given.policy),
        loads=loads,
        seeds=size.seeds if seeds is None else seeds,
        tables=_names("--tables", given.tables, tuple(TABLES)) if given.tables is not None else usual,
        requests=(
            whole("--requests", given.requests, LEAST_REQUESTS, MOST_REQUESTS) if given.requests is not None else None
        ),
        out=_directory(given.out),
        workers=whole("--workers", given.workers, 1, 256),
        engine=engine,
        endpoints=endpoints,
    )


def _fitted(scenario: Scenario, engine: Profile | None, endpoints: int | None) -> Scenario:
    if engine is not None:
        scenario = scenario.with_engine(engine)
    return scenario if endpoints is None else scenario.with_endpoints(endpoints)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="poolpilot bench routing",
        description="Simulates fleets of engines with poolpilot's own decision code and with published policies, on "
        "the same arrivals. Writes DIR/results.json and DIR/report.md; what was run before is not run again.",
        epilog=f"scenarios: {', '.join(KNOWN)}; policies: {', '.join(policies.names())}; "
        f"slow, when asked for: {policies.ROLLOUT}",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--set",
        choices=tuple(SETS),
        default="quick",
        help="quick: ρ 0.7, one hidden draw, two tables, 4,000 requests a run at most; full: ρ 0.5, 0.7 and 0.9, "
        "twenty draws (five of overload, of what ties and of endpoints needed), all tables (default: %(default)s)",
    )
    parser.add_argument("--scenario", metavar="NAMES", help="comma-separated (default: all)")
    parser.add_argument("--policy", metavar="NAMES", help="comma-separated (default: all)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="run this recorded trace instead of the scenarios")
    parser.add_argument("--format", choices=FORMATS, help="of the trace")
    parser.add_argument("--engine", metavar="NAME|FILE", help="every endpoint is this engine")
    parser.add_argument("--endpoints", type=int, metavar="N", help="of the pool (default: the scenario's)")
    parser.add_argument("--loads", metavar="RHOS", help="comma-separated shares of the highest bearable rate")
    parser.add_argument("--seeds", type=int, metavar="N", help="hidden draws and arrivals per cell")
    parser.add_argument("--requests", type=int, metavar="N", help="of one run (default: the scenario's)")
    parser.add_argument("--tables", metavar="NAMES", help="comma-separated (default: the set's)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for results")
    parser.add_argument(
        PEERS, action="store_true", help="instead of all this: real routers over stand-in engines; --peers --help"
    )
    return parser


def _scenarios(given: argparse.Namespace) -> list[Scenario]:
    if given.trace is None:
        if given.format is not None:
            raise UsageError("--format: says how a trace is to be read; give it together with --trace FILE")
        names = list(SCENARIOS) if given.scenario is None else _names("--scenario", given.scenario, list(KNOWN))
        return [KNOWN[name] for name in names]
    if given.format is None:
        raise UsageError(f"--trace: needs --format, one of {', '.join(FORMATS)}")
    if given.scenario not in (None, TRACE):
        raise UsageError(f"--scenario: {given.scenario!r} cannot be combined with --trace")
    path = given.trace.resolve()
    make = partial(read_trace, path=path, trace_format=given.format)
    try:
        traffic = make(1.0, LEAST_REQUESTS, 1)
    except TraceError as error:
        raise UsageError(f"--trace: {error}") from None
    return [trace_scenario(make, traffic)]


def _policies(given: str | None) -> tuple[str, ...]:
    """The rollout only where it is asked for."""
    return (
        tuple(policies.names()) if given is None else _names("--policy", given, [*policies.names(), policies.ROLLOUT])
    )


def _names(flag: str, given: str | None, known: Sequence[str]) -> tuple[str, ...]:
    if given is None:
        return tuple(known)
    names = [name.strip() for name in given.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"{flag}: unknown {', '.join(map(repr, unknown)) or repr(given)}; known: {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def _loads(given: str) -> tuple[float, ...]:
    loads = []
    for text in given.split(","):
        try:
            load = float(text)
        except ValueError:
            load = math.nan
        if not 0.0 < load <= MOST_LOAD:
            raise UsageError(f"--loads: {text.strip()!r} is no number above 0 and up to {MOST_LOAD:g}")
        loads.append(load)
    return tuple(dict.fromkeys(loads))


def _directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: {path}: {error.strerror}") from None
    return path.resolve()
