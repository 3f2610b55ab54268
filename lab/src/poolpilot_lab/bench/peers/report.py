"""`report.md` from the rows: who ran, figures by scenario, and ratios of ours to each, paired over seeds. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.markdown import table
from poolpilot_lab.bench.peers.catalogue import BY_NAME, POOLPILOT
from poolpilot_lab.bench.peers.scenarios import SCENARIOS
from poolpilot_lab.bench.routing.statistics import geometric_mean, paired, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from poolpilot_lab.bench.peers.rows import Results, Row

TITLE: Final = "Real routers over simulated engines"
_NEVER: Final = "∞"

_TIMES: Final[dict[str, Callable[[Row], float | None]]] = {
    "TTFT mean": lambda row: row.ttft_mean_ms,
    "TTFT p50": lambda row: row.ttft_p50_ms,
    "TTFT p99": lambda row: row.ttft_p99_ms,
    "end to end mean": lambda row: row.e2e_mean_ms,
    "end to end p99": lambda row: row.e2e_p99_ms,
    "per output token p99": lambda row: row.tpot_p99_ms,
}
_RATIOS: Final[dict[str, Callable[[Row], float | None]]] = {
    **{head: value for head, value in _TIMES.items() if head != "TTFT p50"},
    "requests/s": lambda row: row.rps,
    "CPU": lambda row: row.router_cpu_us_per_request,
}


def report(results: Results) -> str:
    """The whole page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    machine = results.machine
    yield f"# {TITLE}"
    yield ""
    yield f"`{results.command}`"
    yield ""
    yield (
        f"{machine.processor}, {machine.cores} cores, {machine.at}, load average "
        f"{machine.load_average[0]:.1f} at the start. Routers are the real programs, engines simulate the accelerator "
        "in real time behind real HTTP: read ratios, not milliseconds. Every contestant of a seed gets the same "
        "clients and cold engines of the same hidden speeds."
    )
    seen = {row.contestant for row in results.rows}
    yield ""
    yield table(["contestant", "what"], [[one.name, one.what] for one in BY_NAME.values() if one.name in seen])
    for name, reason in results.left_out.items():
        yield ""
        yield f"Left out: {name}."
        yield ""
        yield from (f"    {line}" for line in reason.splitlines())
    for scenario in dict.fromkeys(row.scenario for row in results.rows):
        yield from _scenario(scenario, [row for row in results.rows if row.scenario == scenario])


def _scenario(name: str, rows: Sequence[Row]) -> Iterator[str]:
    groups = {one: [row for row in rows if row.contestant == one] for one in BY_NAME}
    groups = {one: found for one, found in groups.items() if found}
    known = SCENARIOS.get(name)
    yield ""
    yield f"## {name}{f': {known.summary}' if known else ''}"
    yield ""
    seeds = sorted({row.seed for row in rows})
    yield (
        f"Seeds {', '.join(map(str, seeds))}, {max(row.requests for row in rows):,} requests each. Times in ms, "
        f"geometric means over seeds; a failed request took for ever ({_NEVER}), means are of answered requests. "
        "CPU: of all between client and engine, µs per request, in brackets the picker's part."
    )
    yield ""
    heads = [
        *("contestant", *_TIMES),
        *("requests/s", "errors", "CPU", "from cache", "largest share"),
    ]
    lines = []
    for one, found in groups.items():
        cells = [one, *(_time(_mean(found, value)) for value in _TIMES.values())]
        cells += [
            f"{_mean(found, lambda row: row.rps):.1f}",
            f"{sum(row.errors for row in found):,} of {sum(row.requests for row in found):,}",
            _cpu(found),
            f"{sum(row.cached_share for row in found) / len(found):.0%}",
            f"{sum(max(row.shares.values(), default=0.0) for row in found) / len(found):.0%}",
        ]
        lines.append(cells)
    yield table(heads, lines, numbers=True)
    yield from _ratios(groups)
    yield from _shares(groups)
    yield from _doubts(rows)


def _ratios(groups: dict[str, list[Row]]) -> Iterator[str]:
    ours = {row.seed: row for row in groups.get(POOLPILOT.name, [])}
    others = {name: rows for name, rows in groups.items() if name != POOLPILOT.name}
    if not ours or not others:
        return
    yield ""
    yield (
        f"{POOLPILOT.name} ÷ each, paired over seeds, with the 95 % interval where there are several: below 1 is "
        "better for times and CPU, above 1 for requests/s."
    )
    yield ""
    lines = []
    for name, rows in others.items():
        pairs = [(ours[row.seed], row) for row in rows if row.seed in ours]
        ratios = (
            paired([_number(value(mine)) for mine, _ in pairs], [_number(value(other)) for _, other in pairs])
            for value in _RATIOS.values()
        )
        lines.append([name, *map(shown, ratios)])
    yield table(["against", *_RATIOS], lines, numbers=True)


def _shares(groups: dict[str, list[Row]]) -> Iterator[str]:
    engines = list(next(iter(groups.values()))[0].shares)
    yield ""
    yield "Share of the answers by engine, mean over seeds:"
    yield ""
    lines = [
        [name, *(f"{sum(row.shares.get(engine, 0.0) for row in rows) / len(rows):.0%}" for engine in engines)]
        for name, rows in groups.items()
    ]
    yield table(["contestant", *engines], lines, numbers=True)


def _doubts(rows: Sequence[Row]) -> Iterator[str]:
    """What a reader must know before believing."""
    found = [f"{row.contestant}, seed {row.seed}: {'; '.join(row.problems)}" for row in rows if row.problems]
    found += [
        f"{row.contestant}, seed {row.seed}: {count:,} × {reason}"
        for row in rows
        for reason, count in row.reasons.items()
    ]
    for seed in sorted({row.seed for row in rows}):
        lengths = {row.output_tokens for row in rows if row.seed == seed and not row.errors}
        if len(lengths) > 1:
            found.append(f"seed {seed}: answers were not equally long for all ({min(lengths):,} to {max(lengths):,})")
    if found:
        yield ""
        yield "To be known:"
        yield ""
        yield from (f"- {sentence}" for sentence in found)


def _mean(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float:
    return geometric_mean(_number(value(row)) for row in rows)


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _time(value: float) -> str:
    if math.isinf(value):
        return _NEVER
    return f"{value:.1f}" if value < 100.0 else f"{value:,.0f}"


def _cpu(rows: Sequence[Row]) -> str:
    whole = _time(_mean(rows, lambda row: row.router_cpu_us_per_request))
    if any(row.picker_cpu_us_per_request is None for row in rows):
        return whole
    return f"{whole} ({_time(_mean(rows, lambda row: row.picker_cpu_us_per_request))})"
