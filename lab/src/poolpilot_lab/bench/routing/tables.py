"""Runs → tables: rows as `results.json` holds them, and the comparisons that the report prints."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from poolpilot_lab.bench.routing.statistics import Ratio, geometric_mean, log_ratio, of_logs, paired
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.policies import ORACLE

if TYPE_CHECKING:
    from collections.abc import Sequence

FIELDS: Final = (
    *("scenario", "load", "policy", "seed", "requests", "admitted", "starved"),
    *("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms", "tpot_p99_ms"),
    *("goodput_rps", "output_tok_s", "cached_token_share", "reuse_ceiling"),
    *("oracle_ttft_mean_ms", "limit_ttft_mean_ms", "limit_ttft_p99_ms"),
    *("adapter_loads", "adapter_wait_p99_ms", "fairness_gap_tokens", "load_cv", "load_max_over_mean"),
)
"""Of a row, in this order; then `by_class` and `by_tenant` where the scenario has them."""
COMPARED: Final = ("ttft_p99_ms", "e2e_mean_ms", "e2e_p99_ms", "tpot_p99_ms", "goodput_rps")


class Run(NamedTuple):
    """One run with all its figures."""

    scenario: str
    load: float
    policy: str
    seed: int
    figures: dict[str, Any]


class Cell(NamedTuple):
    """A scenario at a load."""

    scenario: str
    load: float


def result_row(run: Run, oracle: Run | None) -> dict[str, Any]:
    """The row of `results.json`."""
    figures = run.figures
    known = {
        "scenario": run.scenario,
        "load": run.load,
        "policy": run.policy,
        "seed": run.seed,
        "oracle_ttft_mean_ms": oracle.figures["ttft_mean_ms"] if oracle is not None else math.nan,
    }
    made = {name: known[name] if name in known else figures[name] for name in FIELDS}
    return made | {name: figures[name] for name in ("by_class", "by_tenant") if name in figures}


class Runs:
    """The runs of one table, found by what they are."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self._by: dict[tuple[Cell, str], dict[int, Run]] = defaultdict(dict)
        for run in runs:
            self._by[Cell(run.scenario, run.load), run.policy][run.seed] = run

    @property
    def cells(self) -> list[Cell]:
        """In the order in which they were run."""
        return list(dict.fromkeys(cell for cell, _ in self._by))

    def policies(self, cell: Cell) -> list[str]:
        """Those that ran there."""
        return [policy for known, policy in self._by if known == cell]

    def oracle_of(self, run: Run) -> Run | None:
        """The oracle's run on the same arrivals."""
        return self._by.get((Cell(run.scenario, run.load), ORACLE), {}).get(run.seed)

    def rows(self) -> list[dict[str, Any]]:
        """Rows of `results.json`."""
        return [result_row(run, self.oracle_of(run)) for run in self.runs]

    def values(self, cell: Cell, policy: str, name: str) -> list[float]:
        """A figure by seed."""
        return [run.figures[name] for _, run in sorted(self._by[cell, policy].items())]

    def mean(self, cell: Cell, policy: str, name: str) -> float:
        """Geometric mean over seeds."""
        return geometric_mean(self.values(cell, policy, name))

    def of(self, cell: Cell, policy: str) -> list[Run]:
        """Its runs there, by seed."""
        return [run for _, run in sorted(self._by[cell, policy].items())]

    def first(self, cell: Cell, policy: str) -> Run:
        """The run of the lowest seed."""
        return min(self._by[cell, policy].items())[1]

    def seeds(self, cell: Cell) -> int:
        """How many there are."""
        return max(len(runs) for (known, _), runs in self._by.items() if known == cell)

    def ratio(self, cell: Cell, ours: str, theirs: str, name: str) -> Ratio:
        """Paired over the seeds that both have."""
        mine, other = self._by[cell, ours], self._by[cell, theirs]
        both = sorted(mine.keys() & other.keys())
        return paired([mine[s].figures[name] for s in both], [other[s].figures[name] for s in both])

    def best_baseline(self, cell: Cell) -> str | None:
        """The baseline with the highest goodput there; equal ones by the lower E2E p99."""
        there = [policy for policy in self.policies(cell) if policy in BASELINES]

        def merit(policy: str) -> tuple[float, float]:
            return round(self.mean(cell, policy, "goodput_rps"), 3), -self.mean(cell, policy, "e2e_p99_ms")

        return max(there, key=merit) if there else None

    def logs(self, cell: Cell, ours: str, theirs: str, name: str) -> dict[int, float]:
        """Logarithm of ours ÷ theirs by seed."""
        mine, other = self._by[cell, ours], self._by[cell, theirs]
        return {
            seed: log_ratio(mine[seed].figures[name], other[seed].figures[name])
            for seed in sorted(mine.keys() & other.keys())
        }

    def overall(self, cells: Sequence[Cell], ours: str, theirs: str, name: str) -> Ratio:
        """Geometric mean over the cells of ours ÷ theirs; the interval is that over hidden draws."""
        by_seed: dict[int, list[float]] = defaultdict(list)
        there = [cell for cell in cells if {ours, theirs} <= set(self.policies(cell))]
        for cell in there:
            for seed, log in self.logs(cell, ours, theirs, name).items():
                by_seed[seed].append(log)
        # A draw that a cell has not yet would shift the mean by that cell's own ratio.
        whole = [sum(logs) / len(logs) for logs in by_seed.values() if len(logs) == len(there)]
        return of_logs(whole)
