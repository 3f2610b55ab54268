"""`report.md`: what was run, poolpilot against every baseline, each scenario, losses, sources."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.routing.statistics import geometric_mean
from poolpilot_lab.bench.routing.tables import COMPARED, Cell, Runs
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.policies import CENTRAL_QUEUE, ORACLE
from poolpilot_lab.sim.scenarios import SCENARIOS, VARIANTS
from poolpilot_lab.sim.trip import POOLPILOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LOSS: Final = 1.05
"""Above this a ratio of latencies is a loss (of goodput: below its inverse)."""
FULL: Final = 0.9
"""Up to this load nobody may starve and everybody is admitted."""
VARIED: Final = ("ladder", "ablation")
TITLES: Final = {
    "results": "Hidden speeds (±26 %), poolpilot with the generic prior",
    "identical": "Identical hardware, poolpilot with the generic prior",
    "profile": "Hidden speeds, poolpilot with the published coefficients",
    "ladder": "Ladder: poolpilot with more knowledge",
    "ablation": "Ablation: poolpilot with a term less",
}
_NAMES: Final = {
    "ttft_p99_ms": "TTFT p99",
    "e2e_mean_ms": "E2E mean",
    "e2e_p99_ms": "E2E p99",
    "tpot_p99_ms": "TPOT p99",
    "goodput_rps": "goodput",
}


def report(tables: Mapping[str, Runs], set_name: str, sources: Mapping[str, str]) -> str:
    """The whole report as Markdown."""
    parts = [_head(tables, set_name)]
    for name, runs in tables.items():
        if runs.runs:
            parts += [f"## {TITLES[name]}", *(_varied(runs) if name in VARIED else _table_parts(runs))]
    parts += ["## Sources", _sources(tables, sources)]
    return "\n\n".join(parts) + "\n"


def _head(tables: Mapping[str, Runs], set_name: str) -> str:
    main = tables.get("results", Runs([]))
    losses = sum(len(_losses(main, cell)) for cell in main.cells)
    seeds = max((main.seeds(cell) for cell in main.cells), default=0)
    requests = [run.figures["requests"] for run in main.runs]
    lines = [
        "# Routing benchmark",
        (
            f"Set `{set_name}`: {len(main.runs)} runs, {len(main.cells)} scenarios × loads, {seeds} seed(s) each, "
            f"{min(requests, default=0):,} to {max(requests, default=0):,} measured requests a run. "
            f"Against the best baseline by goodput of each cell poolpilot loses more than 5 % on {losses} figure(s); "
            "they are listed."
        ),
        (
            "All figures are **simulated**. The engine model's time per output token is validated on measured rows; "
            "its time to first token is not, so only rankings and ratios are claimed.\n"
            "Loads are shares ρ of the highest rate at which the greedy oracle's backlog stays bounded, found for each "
            "hidden draw. Rejected and unfinished requests count as infinitely late.\n"
            "The world has hidden speeds per endpoint, step noise, stalls and late telemetry."
        ),
    ]
    ours = [run.figures for run in main.runs if run.policy == POOLPILOT]
    below = [run for run in main.runs if run.policy == POOLPILOT and run.load <= FULL]
    if ours:
        starved = sum(run.figures["starved"] for run in below)
        admitted = min((run.figures["admitted"] for run in below), default=1.0)
        longest = max(figures["longest_wait_ms"] for figures in ours)
        lines.append(
            f"Under poolpilot at ρ ≤ {FULL:g}: {starved} starved requests, {100 * admitted:.4g} % admitted at least; "
            f"the longest wait for a first token at any load was {_short(longest / 1000.0)} s."
        )
    if seeds < 5 or min(requests, default=0) < 10_000:
        lines.append(
            "**This run breaks the sample-size rule** (at least 5 seeds and 10,000 requests after warm-up): "
            "differences of a few percent mean nothing."
        )
    return "\n\n".join(lines)


def _table_parts(runs: Runs) -> Iterable[str]:
    for load in sorted({cell.load for cell in runs.cells}):
        table = _overall(runs, load)
        if table:
            scenarios = ", ".join(cell.scenario for cell in runs.cells if cell.load == load)
            yield f"### ρ {load:.2g}: poolpilot ÷ baseline, geometric mean over {scenarios}"
            yield table
    for cell in runs.cells:
        yield f"### {cell.scenario}, ρ {cell.load:.2g}"
        yield _cell(runs, cell)
        groups = _groups(runs, cell)
        if groups:
            yield groups
        best = runs.best_baseline(cell)
        if best is not None and POOLPILOT in runs.policies(cell):
            yield _against_best(runs, cell, best)


def _varied(runs: Runs) -> Iterable[str]:
    """Each variant against poolpilot as it is: geometric mean over the cells, and where it differs most."""
    variants = [policy for policy in runs.policies(runs.cells[0]) if policy not in (POOLPILOT, ORACLE)]
    rows = []
    for variant in variants:
        means = [
            _short(geometric_mean(runs.ratio(cell, variant, POOLPILOT, name).value for cell in runs.cells))
            for name in COMPARED
        ]
        tails = {cell: runs.ratio(cell, variant, POOLPILOT, "ttft_p99_ms").value for cell in runs.cells}
        ends = sorted(tails, key=lambda cell: -tails[cell])
        where = "; ".join(f"{cell.scenario} {cell.load:.2g}: {_short(tails[cell])}" for cell in (ends[0], ends[-1]))
        rows.append([variant.removeprefix(POOLPILOT), *means, where])
    cells = ", ".join(f"{cell.scenario} {cell.load:.2g}" for cell in runs.cells)
    yield f"Variant ÷ poolpilot, geometric mean over {cells}."
    yield markdown(["variant", *(_NAMES[name] for name in COMPARED), "TTFT p99, highest and lowest"], rows)


def _overall(runs: Runs, load: float) -> str:
    rows = []
    for baseline in BASELINES:
        ratios = runs.overall(load, baseline)
        if not math.isnan(ratios["ttft_p99_ms"]):
            rows.append([baseline, *(_short(ratios[name]) for name in COMPARED)])
    return markdown(["baseline", *(_NAMES[name] for name in COMPARED)], rows) if rows else ""


_COLUMNS: Final = (
    ("ttft_mean_ms", "TTFT mean"),
    ("ttft_p50_ms", "p50"),
    ("ttft_p99_ms", "p99 ms"),
    ("e2e_mean_ms", "E2E mean"),
    ("e2e_p99_ms", "p99 ms"),
    ("tpot_p99_ms", "TPOT p99"),
    ("goodput_rps", "goodput/s"),
    ("output_tok_s", "tok/s"),
)


def _cell(runs: Runs, cell: Cell) -> str:
    there = runs.policies(cell)
    order = [name for name in (POOLPILOT, *BASELINES, CENTRAL_QUEUE, ORACLE) if name in there]
    rows = []
    for policy in order:
        values = [_short(runs.mean(cell, policy, name)) for name, _ in _COLUMNS]
        shares = runs.values(cell, policy, "cached_token_share")
        rows.append([policy, *values, f"{sum(shares) / len(shares):.3f}"])
    return markdown(["policy", *(title for _, title in _COLUMNS), "cached"], rows)


def _groups(runs: Runs, cell: Cell) -> str:
    """TTFT p99 by class, of ours and of the best baseline; by tenant only the worst."""
    lines = []
    for policy in dict.fromkeys((POOLPILOT, runs.best_baseline(cell) or POOLPILOT)):
        if policy not in runs.policies(cell):
            continue
        figures = runs.first(cell, policy).figures
        classes = [f"{name} {_short(group['ttft_p99_ms'])}" for name, group in figures.get("by_class", {}).items()]
        if classes:
            lines.append(f"{policy}, TTFT p99 ms by class: {', '.join(classes)}.")
        tenants = figures.get("by_tenant", {})
        if tenants:
            worst = max(tenants, key=lambda name: tenants[name]["ttft_p99_ms"])
            lines.append(
                f"{policy}: worst tenant {worst} with TTFT p99 {_short(tenants[worst]['ttft_p99_ms'])} ms, "
                f"service gap {_short(figures['fairness_gap_tokens'])} tokens."
            )
    return "\n".join(lines)


def _losses(runs: Runs, cell: Cell) -> list[str]:
    best = runs.best_baseline(cell)
    if best is None or POOLPILOT not in runs.policies(cell):
        return []
    found = []
    for name in ("ttft_p99_ms", "e2e_p99_ms", "tpot_p99_ms", "goodput_rps"):
        ratio = runs.ratio(cell, POOLPILOT, best, name).value
        if (1.0 / ratio if name == "goodput_rps" else ratio) > LOSS:
            found.append(name)
    return found


def _against_best(runs: Runs, cell: Cell, best: str) -> str:
    parts = []
    losses = _losses(runs, cell)
    for name in COMPARED:
        ratio = runs.ratio(cell, POOLPILOT, best, name)
        interval = "" if math.isinf(ratio.high) else f" ({_short(ratio.low)}–{_short(ratio.high)})"
        parts.append(f"{_NAMES[name]} {_short(ratio.value)}{interval}{' **loss**' if name in losses else ''}")
    lines = [f"poolpilot ÷ {best} (best baseline by goodput): " + ", ".join(parts) + "."]
    if ORACLE in runs.policies(cell):
        oracle = runs.ratio(cell, POOLPILOT, ORACLE, "ttft_mean_ms").value
        limit = runs.mean(cell, POOLPILOT, "ttft_mean_ms") / runs.mean(cell, POOLPILOT, "limit_ttft_mean_ms")
        tail = runs.mean(cell, POOLPILOT, "ttft_p99_ms") / runs.mean(cell, POOLPILOT, "limit_ttft_p99_ms")
        reuse = runs.ratio(cell, POOLPILOT, ORACLE, "cached_token_share").value
        lines.append(
            f"Mean TTFT {_short(oracle)} × greedy oracle, {_short(limit)} × limit; p99 {_short(tail)} × limit; reuse "
            f"{_short(reuse)} × oracle's, ceiling {runs.mean(cell, POOLPILOT, 'reuse_ceiling'):.3f}."
        )
    return "\n".join(lines)


def _sources(tables: Mapping[str, Runs], sources: Mapping[str, str]) -> str:
    ran = {run.policy for runs in tables.values() for run in runs.runs}
    lines = [f"* {name}: {_summary(name)}. {source}." for name, source in sources.items()]
    lines += [f"* {name}: {baseline.source}." for name, baseline in BASELINES.items() if name in ran]
    return "\n".join(lines)


def _summary(name: str) -> str:
    known = SCENARIOS | VARIANTS
    return known[name].summary if name in known else "a recorded trace"


def _short(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 10.0 else f"{value:,.0f}"


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
