"""The tables at the end: policies side by side, then every endpoint under every policy. Both fit into 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_lab.demo.figures import DemoFigures, Figures

_MISSING: Final = "–"
_STYLE: Final[dict[str, Any]] = {
    "title_justify": "left",
    "title_style": "bold",
    "box": SIMPLE_HEAD,
    "pad_edge": False,
}


def duration(ms: float | None) -> str:
    """A time for people: three digits, in ms or s."""
    if ms is None:
        return _MISSING
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 10_000 else f"{ms / 1000:.1f} s"


_ROWS: Final[tuple[tuple[tuple[str, Callable[[Figures], str]], ...], ...]] = (
    (
        ("time to first token p50", lambda f: duration(f.ttft_ms.p50)),
        ("                    p95", lambda f: duration(f.ttft_ms.p95)),
        ("                    p99", lambda f: duration(f.ttft_ms.p99)),
    ),
    (
        ("per output token    p50", lambda f: duration(f.tpot_ms.p50)),
        ("                    p95", lambda f: duration(f.tpot_ms.p95)),
        ("                    p99", lambda f: duration(f.tpot_ms.p99)),
    ),
    (
        ("end to end          p50", lambda f: duration(f.e2e_ms.p50)),
        ("                    p95", lambda f: duration(f.e2e_ms.p95)),
        ("                    p99", lambda f: duration(f.e2e_ms.p99)),
    ),
    (
        ("requests/s", lambda f: f"{f.requests_per_s:.2f}"),
        ("prompt tokens from cache", lambda f: f"{f.cached_token_share:.0%}"),
        ("adapter loads", lambda f: f"{f.adapter_loads:,}"),
        ("preemptions", lambda f: f"{f.preemptions:,}"),
    ),
    (("errors", lambda f: f"{f.errors:,} of {f.requests:,}"),),
)


def policies_table(figures: DemoFigures) -> Table:
    """One column per policy; the last one is ours."""
    table = Table(title="The same clients and engines, three ways to choose", **_STYLE)
    table.add_column("", no_wrap=True)
    names = list(figures.policies)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, style="bold" if name == names[-1] else "")
    for group in _ROWS:
        for index, (label, value) in enumerate(group):
            style = "red" if label == "errors" and figures.errors else ""
            cells = [Text(value(figures.policies[name]), style) for name in names]
            table.add_row(label, *cells, end_section=index == len(group) - 1)
    return table


_ENDPOINT_COLUMNS: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("requests", lambda f: f"{f.requests:,}"),
    ("TTFT p95", lambda f: duration(f.ttft_ms.p95)),
    ("token p95", lambda f: duration(f.tpot_ms.p95)),
    ("cached", lambda f: f"{f.cached_token_share:.0%}"),
    ("loads", lambda f: f"{f.adapter_loads:,}"),
    ("preempted", lambda f: f"{f.preemptions:,}"),
)


def endpoints_table(figures: DemoFigures, labels: Sequence[str]) -> Table:
    """One row per policy and endpoint; `labels` name the engines in their order."""
    table = Table(title="Per endpoint", **_STYLE)
    table.add_column("", no_wrap=True)
    for heading, _ in _ENDPOINT_COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, policy in figures.policies.items():
        table.add_row(Text(name, "bold"))
        for index, (endpoint, label) in enumerate(zip(policy.endpoints, labels, strict=True)):
            last = index == len(policy.endpoints) - 1
            table.add_row(f"  {label}", *(value(endpoint) for _, value in _ENDPOINT_COLUMNS), end_section=last)
    return table
