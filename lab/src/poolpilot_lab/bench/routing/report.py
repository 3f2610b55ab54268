"""`report.md`: which bars hold, what was run, poolpilot against every baseline, each scenario, losses, sources."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.markdown import table
from poolpilot_lab.bench.routing.bars import ENOUGH_DRAWS, FULL, NAMES, losses, told, verdicts
from poolpilot_lab.bench.routing.events import happened
from poolpilot_lab.bench.routing.flow_report import flow_parts
from poolpilot_lab.bench.routing.sets import TABLES
from poolpilot_lab.bench.routing.statistics import short, shown
from poolpilot_lab.bench.routing.tables import COMPARED, Cell, Runs
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.policies import CENTRAL_QUEUE, ORACLE, REFERENCES, ROLLOUT
from poolpilot_lab.sim.scenarios import KNOWN
from poolpilot_lab.sim.trip import POOLPILOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LEAST_DRAWS: Final = 5
LEAST_REQUESTS: Final = 10_000
ATTAINED: Final = 0.95


def report(tables: Mapping[str, Runs], set_name: str, sources: Mapping[str, str]) -> str:
    """The whole report as Markdown."""
    parts = _head(tables, set_name)
    for name, runs in tables.items():
        if runs.runs:
            parts += [f"## {TABLES[name].title}", *_table(name, runs)]
    parts += ["## Sources", _sources(tables, sources)]
    return "\n\n".join(parts) + "\n"


def _table(name: str, runs: Runs) -> Iterable[str]:
    if TABLES[name].varied:
        return _varied(runs)
    if name == "flow":
        return flow_parts(runs)
    if name == "endpoints":
        return _endpoints_needed(runs)
    return _table_parts(runs)


def _head(tables: Mapping[str, Runs], set_name: str) -> list[str]:
    main = tables.get("results", Runs([]))
    made = verdicts(tables)
    count = Counter(verdict.outcome for verdict in made)
    seeds = max((main.seeds(cell) for cell in main.cells), default=0)
    requests = [run.figures["requests"] for run in main.runs]
    total = min((sum(main.values(c, p, "requests")) for c in main.cells for p in main.policies(c)), default=0)
    marks = {"met": "✓ met", "missed": "✗ **missed**", "open": "– open"}
    lines = [f"* {marks[verdict.outcome]}: {verdict.bar}. {verdict.found or 'no runs'}." for verdict in made]
    return [
        "# Routing benchmark",
        (
            f"All of it is simulated. Of {len(made)} bars {count['met']} are met, {count['missed']} missed, "
            f"{count['open']} open (not run, or with fewer than {ENOUGH_DRAWS} hidden draws: their figures are hints):"
        ),
        "\n".join(lines),
        (
            f"Set `{set_name}`: {len(main.runs)} runs, {len(main.cells)} scenarios × loads, {seeds} hidden draw(s) "
            f"each, {min(requests, default=0):,} to {max(requests, default=0):,} measured requests a run, {total:,} at "
            "least over all draws of a cell. Ratios are geometric means over draws, paired on the same arrivals and "
            "engines, with the 95 % t interval of their logarithms in brackets; a ratio counts as 100 at most."
        ),
        (
            "The engine model's time per output token is validated on measured rows; its time to first token is not, "
            "so only rankings and ratios are claimed. Loads are shares ρ of the highest rate at which the greedy "
            "oracle's backlog stays bounded, found for each hidden draw. Refused and unfinished requests count as "
            "infinitely late. The world has hidden speeds per endpoint (but for identical hardware), step times from "
            "tables that differ from the formula, step noise, stalls and late telemetry."
        ),
        *_rule(seeds, total),
        *_waits(main),
    ]


def _rule(seeds: int, requests: float) -> list[str]:
    if seeds >= LEAST_DRAWS and requests >= LEAST_REQUESTS:
        return []
    said = (
        f"**This run breaks the sample-size rule** (at least {LEAST_DRAWS} draws and {LEAST_REQUESTS:,} requests after "
        "warm-up in each cell): differences of a few percent mean nothing."
    )
    return [said]


def _waits(main: Runs) -> list[str]:
    ours = [run for run in main.runs if run.policy == POOLPILOT]
    if not ours:
        return []
    longest = max(ours, key=lambda run: run.figures["longest_wait_ms"])
    wait = short(longest.figures["longest_wait_ms"] / 1000.0)
    where = f"{longest.scenario}, ρ {longest.load:.2g}"
    speeds = sorted(run.figures["simulated_per_s"] for run in ours if "simulated_per_s" in run.figures)
    pace = (
        f" Simulated requests per second and core, our pick inside: {speeds[0]:,.0f} to {speeds[-1]:,.0f}."
        if speeds
        else ""
    )
    return [f"Under poolpilot the longest wait for a first token was {wait} s ({where}).{pace}"]


def _table_parts(runs: Runs) -> Iterable[str]:
    below = [cell for cell in runs.cells if cell.load <= FULL + 1e-9]
    groups = [(f"ρ {load:.2g}", [c for c in runs.cells if c.load == load]) for load in sorted({c.load for c in below})]
    if len(groups) > 1:
        groups.append((f"all loads up to {FULL:g}", below))
    for title, cells in groups:
        table = _overall(runs, cells)
        if table:
            names = ", ".join(dict.fromkeys(cell.scenario for cell in cells))
            yield f"### {title}: poolpilot ÷ baseline, geometric mean over {names}"
            yield table
    sure, wide = told(runs, below)
    if sure:
        yield "**Losses** of more than 5 % to the best baseline by goodput: " + "; ".join(sure) + "."
    if wide:
        yield "Losses of more than 5 % that the intervals do not exclude: " + "; ".join(wide) + "."
    for cell in runs.cells:
        yield f"### {cell.scenario}, ρ {cell.load:.2g}"
        yield _cell(runs, cell)
        split = _groups(runs, cell)
        if split:
            yield split
        best = runs.best_baseline(cell)
        told_of = [policy for policy in (POOLPILOT, best, ORACLE) if policy in runs.policies(cell)]
        lines = [line for p in told_of for line in happened(p, [run.figures for run in runs.of(cell, p)])]
        if lines:
            yield "\n".join(f"* {line}" for line in lines)
        if best is not None and POOLPILOT in runs.policies(cell):
            yield _against_best(runs, cell, best)


def _varied(runs: Runs) -> Iterable[str]:
    """Each variant against poolpilot as it is: over all cells, then cell by cell."""
    variants = [policy for policy in runs.policies(runs.cells[0]) if policy not in (POOLPILOT, *REFERENCES)]
    groups = [("all", runs.cells)] if len(runs.cells) > 1 else []
    groups += [(f"{cell.scenario}, ρ {cell.load:.2g}", [cell]) for cell in runs.cells]
    for title, cells in groups:
        rows = [
            [
                variant.removeprefix(POOLPILOT),
                *(shown(runs.overall(cells, variant, POOLPILOT, name)) for name in COMPARED),
            ]
            for variant in variants
        ]
        yield f"Variant ÷ poolpilot, {title}:"
        yield table(["variant", *(NAMES[name] for name in COMPARED)], rows)


def _endpoints_needed(runs: Runs) -> Iterable[str]:
    """How many endpoints keep the targets for the same traffic: from the highest load that a policy bears."""
    rows = []
    scenarios = list(dict.fromkeys(cell.scenario for cell in runs.cells))
    policies = [p for p in (POOLPILOT, *BASELINES, *REFERENCES) if p in runs.policies(runs.cells[0])]
    bears = {(s, p): _bearable(runs, s, p) for s in scenarios for p in policies}
    for policy in policies:
        row = [policy]
        for scenario in scenarios:
            ours, theirs = bears[scenario, POOLPILOT], bears[scenario, policy]
            row.append(f"{theirs:.2f} → × {ours / theirs:.2f}" if theirs else "below the lowest load")
        rows.append(row)
    yield (
        f"The highest load at which {100 * ATTAINED:g} % of the requests meet both targets (interpolated between the "
        "loads that were run), and from it the endpoints needed for the same traffic, as a multiple of what poolpilot "
        "needs. That a pool of another size caches otherwise is left out."
    )
    yield table(["policy", *scenarios], rows)


def _bearable(runs: Runs, scenario: str, policy: str) -> float:
    """0 when even the lowest load is too high."""
    before: tuple[float, float] | None = None
    for cell in sorted((cell for cell in runs.cells if cell.scenario == scenario), key=lambda cell: cell.load):
        values = runs.values(cell, policy, "good_share")
        share = sum(values) / len(values)
        if share < ATTAINED:
            if before is None:
                return 0.0
            load, above = before
            return load + (above - ATTAINED) / (above - share) * (cell.load - load)
        before = (cell.load, share)
    return before[0] if before else 0.0


def _overall(runs: Runs, cells: Sequence[Cell]) -> str:
    rows = []
    for baseline in BASELINES:
        ratios = [runs.overall(cells, POOLPILOT, baseline, name) for name in COMPARED]
        if not math.isnan(ratios[0].value):
            rows.append([baseline, *map(shown, ratios)])
    return table(["baseline", *(NAMES[name] for name in COMPARED)], rows)


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

_ADAPTERS: Final = (("adapter_wait_p99_ms", "adapter wait p99 ms"), ("adapter_loads", "loads"))


def _cell(runs: Runs, cell: Cell) -> str:
    there = runs.policies(cell)
    order = [name for name in (POOLPILOT, *BASELINES, *REFERENCES, ROLLOUT) if name in there]
    loads = any(run.figures.get("adapter_loads") for policy in order for run in runs.of(cell, policy))
    rows = []
    for policy in order:
        values = [short(runs.mean(cell, policy, name)) for name, _ in _COLUMNS]
        shares = runs.values(cell, policy, "cached_token_share")
        rows.append([policy, *values, f"{sum(shares) / len(shares):.3f}"])
        if loads:
            rows[-1] += [short(_plain_mean(runs.values(cell, policy, name))) for name, _ in _ADAPTERS]
    titles = [title for _, title in (*_COLUMNS, ("", "cached"), *(_ADAPTERS if loads else ()))]
    return table(["policy", *titles], rows)


def _plain_mean(values: Sequence[float]) -> float:
    """Arithmetic: nobody may have waited in a draw."""
    return sum(values) / len(values)


def _groups(runs: Runs, cell: Cell) -> str:
    """TTFT p99 by class, of ours and of the best baseline; by tenant only the worst."""
    lines = []
    for policy in dict.fromkeys((POOLPILOT, runs.best_baseline(cell) or POOLPILOT)):
        if policy not in runs.policies(cell):
            continue
        figures = runs.first(cell, policy).figures
        classes = [f"{name} {short(group['ttft_p99_ms'])}" for name, group in figures.get("by_class", {}).items()]
        if classes:
            lines.append(f"{policy}, TTFT p99 ms by class: {', '.join(classes)}.")
        tenants = figures.get("by_tenant", {})
        if tenants:
            worst = max(tenants, key=lambda name: tenants[name]["ttft_p99_ms"])
            lines.append(
                f"{policy}: worst tenant {worst} with TTFT p99 {short(tenants[worst]['ttft_p99_ms'])} ms, "
                f"service gap {short(figures['fairness_gap_tokens'])} tokens."
            )
    return "\n".join(lines)


def _against_best(runs: Runs, cell: Cell, best: str) -> str:
    lost = {loss.name for loss in losses(runs, cell) if loss.sure}
    parts = [
        f"{NAMES[name]} {shown(runs.ratio(cell, POOLPILOT, best, name))}{' **loss**' if name in lost else ''}"
        for name in COMPARED
    ]
    lines = [f"poolpilot ÷ {best} (best baseline by goodput): " + ", ".join(parts) + "."]
    if ORACLE in runs.policies(cell):
        oracle = shown(runs.ratio(cell, POOLPILOT, ORACLE, "ttft_mean_ms"))
        limit = runs.mean(cell, POOLPILOT, "ttft_mean_ms") / runs.mean(cell, POOLPILOT, "limit_ttft_mean_ms")
        tail = runs.mean(cell, POOLPILOT, "ttft_p99_ms") / runs.mean(cell, POOLPILOT, "limit_ttft_p99_ms")
        reuse = runs.ratio(cell, POOLPILOT, ORACLE, "cached_token_share").value
        alone = runs.mean(cell, POOLPILOT, "ttft_mean_ms") / runs.mean(cell, POOLPILOT, "alone_mean_ms")
        line = f"Mean TTFT {oracle} × greedy oracle"
        if CENTRAL_QUEUE in runs.policies(cell):
            line += f", {shown(runs.ratio(cell, POOLPILOT, CENTRAL_QUEUE, 'ttft_mean_ms'))} × central queue (L3)"
        if ROLLOUT in runs.policies(cell):
            line += f", {shown(runs.ratio(cell, POOLPILOT, ROLLOUT, 'ttft_mean_ms'))} × rollout oracle (E2E mean "
            line += f"{shown(runs.ratio(cell, POOLPILOT, ROLLOUT, 'e2e_mean_ms'))})"
        lines.append(
            f"{line}, {short(alone)} × alone on an idle engine (L1), {short(limit)} × pooled limit (L2); p99 "
            f"{short(tail)} × limit (L4); reuse {short(reuse)} × oracle's, ceiling (L0) "
            f"{runs.mean(cell, POOLPILOT, 'reuse_ceiling'):.3f}."
        )
    return "\n".join(lines)


def _sources(tables: Mapping[str, Runs], sources: Mapping[str, str]) -> str:
    ran = {run.policy for runs in tables.values() for run in runs.runs}
    lines = [f"* {name}: {_summary(name)}. {source}." for name, source in sources.items()]
    lines += [f"* {name}: {baseline.source}." for name, baseline in BASELINES.items() if name in ran]
    return "\n".join(lines)


def _summary(name: str) -> str:
    return KNOWN[name].summary if name in KNOWN else "a recorded trace"
