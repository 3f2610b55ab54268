"""`poolpilot bench NAME`: dispatches to one benchmark's package, imported only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Final, NamedTuple


class Benchmark(NamedTuple):
    """Where its `main(argv) -> exit code` lives."""

    module: str
    summary: str


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "routing": Benchmark(
        "poolpilot_lab.bench.routing.command",
        "policies compared in simulated fleets, against published ones and limits",
    ),
    "validate": Benchmark("poolpilot_lab.bench.validate.command", "the engine model against measured rows"),
    "cost": Benchmark("poolpilot_lab.bench.cost.command", "CPU, memory and latency of pickers behind a real Envoy"),
}


def usage() -> str:
    """The list of benchmarks, as printed by `poolpilot bench --help`."""
    width = max(map(len, BENCHMARKS))
    lines = [f"  {name:{width}}  {benchmark.summary}" for name, benchmark in BENCHMARKS.items()]
    return "\n".join(
        ["usage: poolpilot bench NAME [options]", "", *lines, "", "poolpilot bench NAME --help says more."]
    )


def main(argv: list[str]) -> int:
    """Entry point of `poolpilot bench`; 2 for a name that is none."""
    if not argv or argv[0] in {"help", "-h", "--help"}:
        print(usage())
        return 0 if argv else 2
    if argv[0] not in BENCHMARKS:
        print(f"poolpilot bench: unknown benchmark {argv[0]!r}; known: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(BENCHMARKS[argv[0]].module).main(argv[1:]))
