"""Rows → a page of Markdown: medians, spreads and ratios. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost.bars import bars
from poolpilot_lab.bench.cost.cases import REPLIES_RATE, share_of_clients
from poolpilot_lab.bench.cost.gateway import BodyMode
from poolpilot_lab.bench.cost.groups import Group, Replies, Stat, against_one, grouped, paired, peer_of, ratio
from poolpilot_lab.bench.cost.pickers import SCRAPE_MS
from poolpilot_lab.bench.markdown import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolpilot_lab.bench.cost.machine import Machine
    from poolpilot_lab.bench.cost.rows import Row

_LOADED_SHARE: Final = 0.75
"""Of the cores: with this much going on besides, figures say more about the machine."""


@dataclass(frozen=True, slots=True)
class Context:
    """Of one bench: where, how, how long, how busy."""

    machine: Machine
    command: str
    seconds: float
    most_load: float
    """Highest load average over a minute that was seen, the bench's own included."""
    notes: tuple[str, ...] = ()
    replies: Sequence[Replies] = ()
    most_streams: float | None = None
    """Of one worker, by what an even share would be; None where there is one worker."""


def report(rows: Sequence[Row], context: Context, plots: Sequence[str] = ()) -> str:
    """The whole page."""
    groups = grouped(rows)
    parts = [
        _heading(rows, context),
        _same_mode(groups),
        _several(groups),
        _savings(groups),
        _idle(groups),
        _latency(groups),
        _replies(context.replies),
        _pick(groups),
        _memory(groups),
        _bars(groups, context),
        "\n".join(f"![{plot.removesuffix('.png').replace('-', ' ')}]({plot})" for plot in plots),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(rows: Sequence[Row], context: Context) -> str:
    machine = context.machine
    runs = max(row.run for row in rows)
    errors = sum(row.errors for row in rows)
    about = (
        f"{machine.at}, {context.seconds / 60:.0f} minutes, {len(rows):,} runs, at most {runs} of each contestant, "
        f"alternating; {errors:,} errors. {machine.processor}, {machine.cores} cores, Linux {machine.kernel}, "
        f"Python {machine.python}; the picker has {machine.picker_core}. Load average {machine.load_average[0]:.2f} "
        f"before, at most {context.most_load:.2f} during (the bench itself makes about 2)."
    )
    spread = "Medians; in brackets (highest − lowest) ÷ median of the runs."
    lines = ["# What a picker costs", "", f"`{context.command}`", "", about, "", spread]
    if machine.load_average[0] > _LOADED_SHARE * machine.cores:
        lines += ["", "**The machine was busy with other work when this began: do not quote these figures.**"]
    if context.most_streams is not None:
        lines += [
            "",
            f"The busiest worker had {context.most_streams:.2f} × its even share of the streams (median).",
        ]
    lines += [f"\n{note}" for note in context.notes]
    return "\n".join(lines)


def _section(title: str, text: str, body: str) -> str:
    return f"## {title}\n\n{text}\n\n{body}" if body else ""


def _figure(stat: Stat | None, digits: int = 0, scale: float = 1.0) -> str:
    if stat is None:
        return "–"
    spread = f" ({stat.spread:.0%})" if stat.count > 1 and stat.spread is not None else ""
    return f"{stat.median * scale:,.{digits}f}{spread}"


def _loaded(group: Group) -> list[str]:
    stat = group.stat
    return [
        _figure(stat("cpu_us_per_request"), 1),
        _figure(stat("envoy_cpu_us_per_request"), 1),
        _figure(stat("rps")),
        _figure(stat("p50_ms"), 2),
        _figure(stat("p99_ms"), 2),
        _figure(stat("idle_cores"), 3),
        _figure(stat("refresh_hz"), 1),
        f"{group.errors:,}",
    ]


_LOADED_HEADS: Final = (
    "picker µs/request", "Envoy µs/request", "requests/s", "p50 ms", "p99 ms", "idle cores", "pages Hz", "errors",
)  # fmt: skip
_LOADED_CASES: Final = ("short", "stream", "long", "million", "mix")


def _same_mode(groups: Sequence[Group]) -> str:
    chosen = [group for group in groups if group.case in _LOADED_CASES and group.body_mode == BodyMode.FULL_DUPLEX]
    rows = [[group.played, group.who, *_loaded(group), *_ratios(group, groups)] for group in _sorted(chosen)]
    text = (
        "Both bodies pass through the picker chunk by chunk, all read every page of every endpoint every "
        f"{SCRAPE_MS} ms, all weigh load, cache and prefix. Ratios: this picker's CPU, and Envoy's, by those of Go's."
    )
    return _section(
        "Same mode, same features, same scrape settings",
        text,
        table(("case", "picker", *_LOADED_HEADS, "picker ÷ Go", "Envoy ÷ Go"), rows),
    )


def _several(groups: Sequence[Group]) -> str:
    rows = []
    for group in _sorted(groups):
        whole = against_one(group, groups)
        if whole is None:
            continue
        share = _like(group, groups, workers=1, concurrency=share_of_clients(group.workers))
        pairs = paired(group, whole, "cpu_us_per_request")
        rows.append(
            [
                group.played,
                group.who,
                group.body_mode or "–",
                _figure(whole.stat("cpu_us_per_request"), 1),
                _figure(group.stat("cpu_us_per_request"), 1),
                f"{pairs.median:.3f} ({pairs.lowest:.2f} to {pairs.highest:.2f})" if pairs is not None else "–",
                _ratio(group, whole, "cpu_us_per_request"),
                _ratio(group, whole, "envoy_cpu_us_per_request"),
                _ratio(group, share, "cpu_us_per_request") if group.concurrency else "–",
            ]
        )
    text = (
        "CPU per request, by that of one worker with all the requests (of the medians, and the median of the runs in "
        "pairs), and by that of one worker with as many at once as each of these has: who has less to do finds less in "
        "each read, and pays more for a request, alone too. `short`: clients that wait for their answers, and fall "
        "into step; `latency`: requests that arrive as a Poisson process."
    )
    heads = (
        "case", "picker", "body mode", "one, µs/request", "several, µs/request", "÷ in pairs",
        "picker ÷ one with all", "Envoy ÷ with one", "picker ÷ one with a share",
    )  # fmt: skip
    return _section("Several workers", text, table(heads, rows))


def _like(group: Group, groups: Sequence[Group], **changed: object) -> Group | None:
    return next((one for one in groups if one.like(group, **changed)), None)


def _savings(groups: Sequence[Group]) -> str:
    chosen = [
        group
        for group in groups
        if group.case in _LOADED_CASES and group.body_mode in {BodyMode.NONE, BodyMode.BUFFERED}
    ]
    rows = []
    for group in _sorted(chosen):
        full = next((one for one in groups if one.like(group, body_mode=BodyMode.FULL_DUPLEX)), None)
        rows.append(
            [
                group.played,
                group.who,
                group.body_mode or "",
                *_loaded(group),
                _ratio(group, full, "cpu_us_per_request"),
                *_ratios(group, groups),
            ]
        )
    text = (
        "`none`: the response's body stays away from the picker. `buffered`: the request's also comes in one piece; "
        "of 1 % of the exchanges the response is observed all the same. Go's pickers know neither: the last columns "
        "compare with Go in full duplex."
    )
    heads = ("case", "picker", "body mode", *_LOADED_HEADS, "÷ full duplex", "picker ÷ Go", "Envoy ÷ Go")
    return _section("What other body modes save", text, table(heads, rows))


def _ratios(group: Group, groups: Sequence[Group]) -> list[str]:
    peer = peer_of(group, groups)
    return [_ratio(group, peer, "cpu_us_per_request"), _ratio(group, peer, "envoy_cpu_us_per_request")]


def _ratio(group: Group, other: Group | None, field: str) -> str:
    value = ratio(group, other, field)
    return "–" if value is None else f"{value:.3f}"


def _sorted(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (group.order, group.endpoints, group.concurrency or 0))


def _idle(groups: Sequence[Group]) -> str:
    rows = [
        [
            f"{group.endpoints:,}",
            group.who,
            group.scrape or "",
            _figure(group.stat("idle_cores"), 3),
            _figure(group.stat("refresh_hz"), 1),
            _figure(group.stat("rss_mb")),
        ]
        for group in groups
        if group.case == "idle"
    ]
    text = (
        f"No requests. `full-{SCRAPE_MS}ms` asks for {1000 / SCRAPE_MS:g} whole pages a second of each endpoint; Hz is "
        "what was reached. `adaptive` is poolpilot's default."
    )
    heads = ("endpoints", "picker", "scraping", "cores", "Hz per endpoint", "RSS MB")
    return _section("Idle", text, table(heads, rows))


def _latency(groups: Sequence[Group]) -> str:
    chosen = [group for group in groups if group.case == "latency"]
    rows = []
    for group in chosen:
        alone = next((one for one in chosen if one.picker == "none" and one.rate == group.rate), None)
        rows.append(
            [
                f"{group.rate:g}/s" if group.rate else "",
                group.who,
                _figure(group.stat("p50_ms"), 3),
                _figure(group.stat("p99_ms"), 3),
                _added(group, alone, "p50_ms"),
                _added(group, alone, "p99_ms"),
            ]
        )
    text = (
        "Short chat that arrives as a Poisson process, from the time a request was due to the last byte of its answer; "
        "added: less the same through Envoy without a picker, median of the runs in pairs."
    )
    heads = ("requests", "picker", "p50 ms", "p99 ms", "added p50 ms", "added p99 ms")
    return _section("Added latency", text, table(heads, rows))


def _replies(replies: Sequence[Replies]) -> str:
    rows = [
        [
            one.who,
            f"{sum(result.count for result in one.results):,}",
            f"{sum(result.errors for result in one.results):,}",
            *(f"{one.handed(quantile):.3f}" for quantile in ("p50", "p90", "p99", "p999")),
            *(f"{one.read(quantile):.3f}" for quantile in ("p50", "p99")),
        ]
        for one in replies
    ]
    text = (
        f"Short chat at {REPLIES_RATE:g} requests/s on one connection to the picker, without an Envoy. From handing "
        "the last byte of a request to the socket to the picker's handing the first of the reply to its own, by the "
        "stamp of the kernel on the reply's packet: the picker's wake-up is in it, the prober's is not. Beside it the "
        "time to having read the reply, with the prober's wake-up."
    )
    unstamped = sum(result.unstamped for one in replies for result in one.results)
    if unstamped:
        text += (
            f" Of {unstamped:,} replies the kernel told no time: there the time to having read them stands for both."
        )
    heads = ("picker", "requests", "errors", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "p50 ms, read", "p99 ms, read")
    return _section("Reply", text, table(heads, rows))


def _added(group: Group, alone: Group | None, field: str) -> str:
    if alone is None or alone is group:
        return "–"
    pairs = group.pairs(alone, field)
    return f"{statistics.median(mine - theirs for mine, theirs in pairs):.3f}" if pairs else "–"


def _pick(groups: Sequence[Group]) -> str:
    rows = [
        [
            f"{group.endpoints:,}",
            _figure(group.stat("p50_ms"), 3),
            _figure(group.stat("p99_ms"), 3),
            _figure(group.stat("cpu_us_per_request"), 0),
            _figure(group.stat("rss_mb")),
        ]
        for group in groups
        if group.case == "pick"
    ]
    text = (
        "Decision and booking in one process without a network: prompts of 8,192 tokens, 30 % of the endpoints hold "
        "their beginning, 200 requests in flight, 50 adapters. The CPU time includes the end of a request."
    )
    return _section("Pick", text, table(("endpoints", "p50 ms", "p99 ms", "CPU µs", "RSS MB"), rows))


def _memory(groups: Sequence[Group]) -> str:
    rows = [
        [
            group.who,
            f"{group.requests:,}",
            f"{group.endpoints:,}",
            _figure(group.stat("rss_mb")),
            _figure(group.stat("slope_bytes_per_request"), 1),
            _figure(group.stat("rps")),
        ]
        for group in groups
        if group.case == "memory"
    ]
    text = "Short chat with ever new prompts; resident memory at the end, and its slope over the second half."
    heads = ("picker", "requests", "endpoints", "RSS MB", "bytes/request", "requests/s")
    return _section("Memory", text, table(heads, rows))


def _bars(groups: Sequence[Group], context: Context) -> str:
    rows = [
        [bar.what, bar.who, f"≤ {bar.most:g}", f"{bar.value:.3g}", "yes" if bar.holds else "**no**"]
        for bar in bars(groups, context.replies, context.most_streams)
    ]
    return _section(
        "Bars", "What the project holds itself to.", table(("what", "picker", "bar", "measured", "holds"), rows)
    )
