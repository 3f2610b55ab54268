"""Cost against endpoints, prompt size and chunks, as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost.cases import CHUNKS
from poolpilot_lab.bench.cost.gateway import BodyMode
from poolpilot_lab.bench.cost.groups import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from poolpilot_lab.bench.cost.groups import Group
    from poolpilot_lab.bench.cost.rows import Row

Lines = dict[str, list[tuple[float, float]]]
"""Points by what the legend calls them."""

PROMPT_BYTES: Final = {"short": 1_000, "long": 400_000, "million": 4_000_000}


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """Names of the files written; a picture of which there would be less than two points is left out."""
    groups = grouped(rows)
    each = "CPU µs per request"
    pictures = (
        ("idle-cores", "Cost without requests", "endpoints", "cores", idle_cores(groups), True),
        ("prompt-size", "Cost of a request by the size of its body", "bytes", each, by_size(groups), True),
        ("chunks", "Cost of a request by the chunks of its answer", "chunks", each, by_chunks(groups), False),
    )
    return [
        f"{name}.png"
        for name, title, across, up, lines, logarithmic in pictures
        if any(len(points) > 1 for points in lines.values())
        and _drawn(folder / f"{name}.png", title, across, up, lines, logarithmic=logarithmic)
    ]


def idle_cores(groups: Sequence[Group]) -> Lines:
    """Cores by number of endpoints."""
    lines: Lines = {}
    for group in groups:
        stat = group.stat("idle_cores")
        if group.case == "idle" and stat is not None:
            lines.setdefault(f"{group.who}, {group.scrape}", []).append((group.endpoints, stat.median))
    return lines


def by_size(groups: Sequence[Group]) -> Lines:
    """CPU per request by bytes of the request's body."""
    return _loaded(groups, {case: float(size) for case, size in PROMPT_BYTES.items()})


def by_chunks(groups: Sequence[Group]) -> Lines:
    """CPU per request by chunks of the answer: none, and those of the case `stream` with fewer streams."""
    fewest = min((group.concurrency or 0 for group in groups if group.case == "stream"), default=0)
    chosen = [group for group in groups if group.case != "stream" or group.concurrency == fewest]
    return _loaded(chosen, {"short": 0.0, "stream": float(CHUNKS)})


def _loaded(groups: Sequence[Group], across: dict[str, float]) -> Lines:
    lines: Lines = {}
    for group in groups:
        stat = group.stat("cpu_us_per_request")
        if group.case in across and stat is not None and group.body_mode != BodyMode.NONE:
            lines.setdefault(f"{group.who}, {group.body_mode}", []).append((across[group.case], stat.median))
    return {name: sorted(points) for name, points in lines.items()}


def _drawn(path: Path, title: str, across: str, up: str, lines: Lines, *, logarithmic: bool) -> bool:
    # Late: it takes half a second, and most runs of this module's package draw nothing.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_title(title, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    return True
