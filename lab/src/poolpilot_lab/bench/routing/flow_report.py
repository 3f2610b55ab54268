"""The section of the report on flow control: each question with its table, by class where there are classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.markdown import table
from poolpilot_lab.bench.routing.flow_bars import by_seed, change, pairs
from poolpilot_lab.bench.routing.flow_parts import FLOW_PARTS
from poolpilot_lab.bench.routing.statistics import geometric_mean, short, shown
from poolpilot_lab.sim.flow_scenarios import SCALE_OUT
from poolpilot_lab.sim.policies import ORACLE
from poolpilot_lab.sim.scenarios import KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolpilot_lab.bench.routing.tables import Cell, Runs

PAIR: Final = 2
"""Scenarios of a question that differ in one thing."""


def flow_parts(runs: Runs) -> Iterable[str]:
    """Markdown, part by part."""
    for part in FLOW_PARTS:
        cells = [cell for cell in runs.cells if cell.scenario in part.scenarios]
        if not cells:
            continue
        yield f"### {part.title}"
        yield "\n".join(
            f"* {name}: {KNOWN[name].summary}." for name in part.scenarios if any(c.scenario == name for c in cells)
        )
        for cell in cells:
            yield f"{cell.scenario}, ρ {cell.load:.2g}, {runs.seeds(cell)} draw(s); TTFT p99 by class in ms:"
            yield _cell(runs, cell, part.scenarios)
            if cell.scenario == SCALE_OUT:
                yield _scaling(runs, cell)


def _cell(runs: Runs, cell: Cell, scenarios: Sequence[str]) -> str:
    policies = [policy for policy in runs.policies(cell) if policy != ORACLE]
    labels = sorted(runs.first(cell, policies[0]).figures.get("by_class", {}))
    counterparts = pairs(runs, cell.scenario, scenarios[0]) if len(scenarios) == PAIR else []
    against = [other for one, other in counterparts if one == cell and other != cell]
    shared = [
        label
        for label in labels
        if against and label in runs.first(against[0], policies[0]).figures.get("by_class", {})
    ]
    titles = ["policy", "TTFT mean", "p99", *labels, *(f"{label} ÷ {scenarios[0]}" for label in shared)]
    titles += ["TPOT p99", "goodput/s", "tok/s", "admitted", "starved", "service gap"]
    rows = []
    for policy in policies:
        row = [policy, *(short(runs.mean(cell, policy, name)) for name in ("ttft_mean_ms", "ttft_p99_ms"))]
        row += [short(geometric_mean(by_seed(runs, cell, policy, label).values())) for label in labels]
        row += [shown(change(runs, policy, label, cell, against[0])) for label in shared]
        row += [short(runs.mean(cell, policy, name)) for name in ("tpot_p99_ms", "goodput_rps", "output_tok_s")]
        admitted = runs.values(cell, policy, "admitted")
        row += [f"{sum(admitted) / len(admitted):.3f}", f"{sum(runs.values(cell, policy, 'starved')):.0f}"]
        row.append(short(max(runs.values(cell, policy, "fairness_gap_tokens"))))
        rows.append(row)
    return table(titles, rows)


def _scaling(runs: Runs, cell: Cell) -> str:
    """Worst over draws, but for the endpoints, which are those of the first."""
    titles = ["policy", "as many as needed after", "waiting in each engine: mean", "most", "endpoints (at s)"]
    rows = []
    for policy in [policy for policy in runs.policies(cell) if policy != ORACLE]:
        worst = [max(runs.values(cell, policy, f"engine_waiting_{name}")) for name in ("mean", "max")]
        there = dict(runs.first(cell, policy).figures["endpoints"])
        steps = ", ".join(f"{count} ({at:g})" for at, count in there.items())
        after = max(runs.values(cell, policy, "scaled_s"))
        rows.append([policy, f"{short(after)} s", f"{worst[0]:.2f}", f"{worst[1]:.1f}", steps])
    return table(titles, rows)
