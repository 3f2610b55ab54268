"""The bars of flow control, judged by the runs of the table `flow`: (bar, whether it holds, draws, figures)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from poolpilot_lab.bench.routing.flow_parts import DROP, FIRST_COME, HARD, PROBABILISTIC, QUEUES, WARM
from poolpilot_lab.bench.routing.statistics import Ratio, geometric_mean, paired, short, shown
from poolpilot_lab.bench.routing.tables import Cell, Runs
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.flow_policies import FLOW
from poolpilot_lab.sim.flow_scenarios import ADVERSARY, BACKLOGGED, BULLY, CHAT, EVEN, FLOOD, SCALE_OUT
from poolpilot_lab.sim.measures import OUTPUT_WEIGHT, PROMPT_WEIGHT
from poolpilot_lab.sim.policies import ORACLE
from poolpilot_lab.sim.scenarios import KNOWN
from poolpilot_lab.sim.trip import POOLPILOT

if TYPE_CHECKING:
    from collections.abc import Iterator

BULLY_BAR: Final = 1.5
FLOOD_BAR: Final = 2.0
CRITICAL_BAR: Final = 1.5
THROUGHPUT: Final = 0.9
KEPT: Final = 1.05
EMPTY: Final = 1.0
"""Sequences that wait in an engine, mean: a quarter of what an autoscaler would want there to add another."""


class Bar(NamedTuple):
    """One bar."""

    bar: str
    good: bool
    draws: int
    said: str


def by_seed(runs: Runs, cell: Cell, policy: str, label: str) -> dict[int, float]:
    """TTFT p99 of a class, ms."""
    return {run.seed: run.figures["by_class"][label]["ttft_p99_ms"] for run in runs.of(cell, policy)}


def change(runs: Runs, policy: str, label: str, cell: Cell, without: Cell) -> Ratio:
    """TTFT p99 of a class in `cell` ÷ in the one that it is compared with, by draws that both have."""
    mine, other = by_seed(runs, cell, policy, label), by_seed(runs, without, policy, label)
    both = sorted(mine.keys() & other.keys())
    return paired([mine[seed] for seed in both], [other[seed] for seed in both])


def pairs(runs: Runs, scenario: str, without: str) -> list[tuple[Cell, Cell]]:
    """Cells of a scenario, each with its counterpart at the same load."""
    there = [cell for cell in runs.cells if cell.scenario == scenario]
    return [(cell, Cell(without, cell.load)) for cell in there if Cell(without, cell.load) in runs.cells]


def flow_bars(runs: Runs) -> Iterator[Bar]:
    """All that the runs can tell of."""
    yield from _gap(runs)
    yield from _unmoved(runs, "others than the bully", BULLY, EVEN, "others", BULLY_BAR)
    yield from _unmoved(runs, "short requests under a flood", FLOOD, CHAT, "short", FLOOD_BAR)
    yield from _starved(runs)
    yield from _throughput(runs)
    yield from _overload(runs)
    yield from _late(runs)
    yield from _warm(runs)
    yield from _scaled(runs)


def _gap(runs: Runs) -> Iterator[Bar]:
    for cell in [cell for cell in runs.cells if cell.scenario == BACKLOGGED]:
        capacity = sum(profile.kv_tokens for profile in KNOWN[cell.scenario].fleet)
        gaps = {policy: runs.values(cell, policy, "fairness_gap_tokens") for policy in runs.policies(cell)}
        dearest = max(runs.values(cell, FLOW, "dearest_tokens"))
        prompt = max(runs.values(cell, FLOW, "longest_prompt_tokens"))
        bound = 2.0 * max(PROMPT_WEIGHT * prompt, OUTPUT_WEIGHT * capacity)
        worst = max(gaps[FLOW])
        said = (
            f"{short(worst)} tokens at most, VTC's bound {short(bound)}, twice the dearest request {short(2 * dearest)}"
        )
        said += "".join(f"; {policy} {short(max(gap))}" for policy, gap in gaps.items() if policy not in (FLOW, ORACLE))
        yield Bar("6 service gap of two backlogged tenants within VTC's bound", worst <= bound, len(gaps[FLOW]), said)


def _unmoved(runs: Runs, who: str, scenario: str, without: str, label: str, most: float) -> Iterator[Bar]:
    for cell, other in pairs(runs, scenario, without):
        mine = change(runs, FLOW, label, cell, other)
        level = geometric_mean(by_seed(runs, cell, FLOW, label).values())
        levels = {
            policy: geometric_mean(by_seed(runs, cell, policy, label).values())
            for policy in (POOLPILOT, *BASELINES)
            if policy in runs.policies(cell)
        }
        good, said = mine.value <= most, f"{shown(mine)} × as without, {short(level)} ms"
        if levels:
            best = min(levels, key=lambda policy: levels[policy])
            good &= level < levels[best]
            theirs = change(runs, best, label, cell, other)
            said += f"; best of the others: {best} {shown(theirs)} ×, {short(levels[best])} ms"
        yield Bar(
            f"6 {who}, ρ {cell.load:.2g}: TTFT p99 ≤ {most:g} × and below every baseline's",
            good,
            runs.seeds(cell),
            said,
        )


def _starved(runs: Runs) -> Iterator[Bar]:
    cells = [cell for cell in runs.cells if cell.scenario == ADVERSARY]
    for cell in cells:
        ran = runs.policies(cell)
        starved = {p: sum(runs.values(cell, p, "starved")) for p in (FLOW, FIRST_COME, POOLPILOT) if p in ran}
        admitted = min(runs.values(cell, FLOW, "admitted"))
        longest = max(runs.values(cell, FLOW, "longest_wait_ms")) / 1000.0
        said = ", ".join(f"{policy} {count:.0f}" for policy, count in starved.items())
        said += f"; {100 * admitted:.4g} % admitted, longest wait {longest:.1f} s"
        yield Bar("6 nobody starves beside an adversary", not starved[FLOW] and admitted == 1.0, runs.seeds(cell), said)


def _throughput(runs: Runs) -> Iterator[Bar]:
    """Against the best of all that were run there, beyond saturation."""
    cells = [cell for cell in runs.cells if cell.load >= 1.0 and FLOW in runs.policies(cell)]
    cells = [cell for cell in cells if cell.scenario != SCALE_OUT]
    ratios = {}
    for cell in cells:
        best = max(runs.policies(cell), key=lambda policy: runs.mean(cell, policy, "output_tok_s"))
        ratios[cell] = (runs.ratio(cell, FLOW, best, "output_tok_s"), best)
    if not ratios:
        return
    said = ", ".join(f"{c.scenario} ρ {c.load:.2g} {shown(r)} of {best}" for c, (r, best) in ratios.items())
    good = min(ratio.value for ratio, _ in ratios.values()) >= THROUGHPUT
    yield Bar("6 throughput ≥ 90 % of the best, fair or not", good, min(map(runs.seeds, cells)), said)


def _overload(runs: Runs) -> Iterator[Bar]:
    cells = {cell.load: cell for cell in runs.cells if cell.scenario == "S13"}
    if not {0.7, 1.0, 1.5} <= set(cells):
        return
    policies = [p for p in (FLOW, DROP, PROBABILISTIC, HARD, POOLPILOT) if p in runs.policies(cells[0.7])]
    said, worst = [], {}
    for policy in policies:
        ratios = {load: change(runs, policy, "critical", cells[load], cells[0.7]) for load in cells if load >= 1.0}
        worst[policy] = max(ratio.value for ratio in ratios.values())
        said.append(f"{policy} " + ", ".join(f"ρ {load:.2g} {shown(ratio)}" for load, ratio in ratios.items()))
    draws = min(runs.seeds(cell) for cell in cells.values())
    good = max(worst.get(FLOW, math.inf), worst.get(DROP, math.inf)) <= CRITICAL_BAR
    yield Bar("6 overload: TTFT p99 of what is critical ≤ 1.5 × its value at ρ 0.7", good, draws, "; ".join(said))
    kept = {}
    for policy in policies:
        low, high = runs.values(cells[1.0], policy, "goodput_rps"), runs.values(cells[1.5], policy, "goodput_rps")
        kept[policy] = paired(high, low)
    told = [
        f"{policy} {shown(ratio)} ({short(runs.mean(cells[1.5], policy, 'goodput_rps'))}/s)"
        for policy, ratio in kept.items()
    ]
    good = kept[DROP].value >= 1.0 if DROP in kept else False
    yield Bar("6 overload: goodput at ρ 1.5 ≥ at 1.0, with sheddable: drop", good, draws, "; ".join(told))


def _late(runs: Runs) -> Iterator[Bar]:
    yield from _no_worse(
        "6 late binding: TTFT p99 no worse than bound at once, and than with a queue for each endpoint",
        runs,
        [cell for cell in runs.cells if 0.8 <= cell.load <= 0.95 and QUEUES in runs.policies(cell)],
        ((POOLPILOT, "ttft_p99_ms"), (QUEUES, "ttft_p99_ms")),
        1.0 + 1e-9,
    )


def _warm(runs: Runs) -> Iterator[Bar]:
    """Who holds requests back must not spread what belongs together over the endpoints that have room."""
    yield from _no_worse(
        "6 warm caches: TTFT p99 and E2E mean at most 5 % above those of binding at once",
        runs,
        [cell for cell in runs.cells if cell.scenario in WARM and {FLOW, POOLPILOT} <= set(runs.policies(cell))],
        ((POOLPILOT, "ttft_p99_ms"), (POOLPILOT, "e2e_mean_ms")),
        KEPT,
    )


def _no_worse(
    bar: str, runs: Runs, cells: list[Cell], against: tuple[tuple[str, str], ...], most: float
) -> Iterator[Bar]:
    """In each cell, flow control ÷ each (policy, figure) is at most `most`."""
    if not cells:
        return
    said, good = [], True
    for cell in cells:
        ratios = [runs.ratio(cell, FLOW, policy, figure) for policy, figure in against]
        good &= all(ratio.value <= most for ratio in ratios)
        said.append(f"{cell.scenario} ρ {cell.load:.2g} {' and '.join(map(shown, ratios))}")
    yield Bar(bar, good, min(map(runs.seeds, cells)), "; ".join(said))


def _scaled(runs: Runs) -> Iterator[Bar]:
    for cell in [cell for cell in runs.cells if cell.scenario == SCALE_OUT]:
        policies = [policy for policy in (FLOW, POOLPILOT) if policy in runs.policies(cell)]
        after = {policy: runs.values(cell, policy, "scaled_s") for policy in policies}
        waits = {policy: runs.values(cell, policy, "engine_waiting_mean") for policy in policies}
        good = max(waits[FLOW]) <= EMPTY and max(after[FLOW]) < math.inf
        good &= all(mine <= other for mine, other in zip(after[FLOW], after.get(POOLPILOT, after[FLOW]), strict=True))
        said = "; ".join(
            f"{policy} scaled after {short(max(after[policy]))} s, {max(waits[policy]):.2g} waiting in each engine"
            for policy in policies
        )
        yield Bar("6 scaling out on the picker's signal, engines' queues empty", good, len(waits[FLOW]), said)
