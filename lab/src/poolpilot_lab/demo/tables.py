"""The tables at the end: policies side by side, then every endpoint under every policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_lab.demo.figures import DemoFigures, EndpointFigures, Figures, Percentiles

_MISSING: Final = "–"
_STYLE: Final[dict[str, Any]] = {"title_justify": "left", "title_style": "bold", "box": SIMPLE_HEAD}


def duration(ms: float | None) -> str:
    """A time for people: three digits, in ms or s."""
    if ms is None:
        return _MISSING
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 10_000 else f"{ms / 1000:.1f} s"


def _three(times: Percentiles) -> str:
    return " / ".join(duration(value) for value in (times.p50, times.p95, times.p99))


def _count(value: int) -> str:
    return f"{value:,}"


_ROWS: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("TTFT p50 / p95 / p99", lambda f: _three(f.ttft_ms)),
    ("time per output token", lambda f: _three(f.tpot_ms)),
    ("end to end", lambda f: _three(f.e2e_ms)),
    ("requests/s", lambda f: f"{f.requests_per_s:.2f}"),
    ("prompt tokens from cache", lambda f: f"{f.cached_token_share:.0%}"),
    ("adapter loads", lambda f: _count(f.adapter_loads)),
    ("preemptions", lambda f: _count(f.preemptions)),
    ("errors", lambda f: f"{f.errors:,} of {f.requests:,}"),
)


def policies_table(figures: DemoFigures) -> Table:
    """One column per policy; the last one is ours."""
    table = Table(title="The same clients and engines, three ways to choose", **_STYLE)
    table.add_column("", no_wrap=True)
    names = list(figures.policies)
    for name in names:
        table.add_column(name, justify="right", style="bold" if name == names[-1] else "")
    for label, value in _ROWS:
        style = "red" if label == "errors" and figures.errors else ""
        table.add_row(label, *(Text(value(figures.policies[name]), style) for name in names))
    return table


def endpoints_table(figures: DemoFigures, labels: Sequence[str]) -> Table:
    """One row per policy and endpoint; `labels` name the engines in their order."""
    table = Table(title="Per endpoint", **_STYLE)
    for heading in ("", "endpoint", "engine"):
        table.add_column(heading, no_wrap=True)
    for heading in ("requests", "TTFT p50", "p95", "per token p95", "cached", "loads", "preempted", "errors"):
        table.add_column(heading, justify="right")
    for name, policy in figures.policies.items():
        for index, (endpoint, label) in enumerate(zip(policy.endpoints, labels, strict=True)):
            last = index == len(policy.endpoints) - 1
            table.add_row("" if index else name, *_endpoint_cells(endpoint, label), end_section=last)
    return table


def _endpoint_cells(endpoint: EndpointFigures, label: str) -> list[str]:
    return [
        endpoint.address,
        label,
        _count(endpoint.requests),
        duration(endpoint.ttft_ms.p50),
        duration(endpoint.ttft_ms.p95),
        duration(endpoint.tpot_ms.p95),
        f"{endpoint.cached_token_share:.0%}",
        _count(endpoint.adapter_loads),
        _count(endpoint.preemptions),
        _count(endpoint.errors),
    ]
