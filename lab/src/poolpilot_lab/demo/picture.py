"""The picture: running, queued and KV occupancy of every endpoint, one policy beside the other.

Averages over a fleet look the same under both; one line per endpoint shows who is pinned and who idles. Small
multiples on shared axes; colours of Okabe and Ito, which colour-blind readers tell apart; labels at the lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from poolpilot_lab.demo.series import EndpointSeries

_COLOURS: Final = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_INK: Final = "#222222"
_FAINT: Final = "#8a8a8a"
_GRID: Final = "#e6e6e6"


class Panel(NamedTuple):
    """One policy: a column of the picture."""

    title: str
    subtitle: str
    endpoints: Sequence[EndpointSeries]


class _Row(NamedTuple):
    title: str
    values: str
    percent: bool = False


_ROWS: Final = (
    _Row("Running requests", "running"),
    _Row("Queued requests", "queued"),
    _Row("KV cache in use", "kv", percent=True),
)


def draw(path: Path, title: str, panels: Sequence[Panel], labels: Sequence[str]) -> None:
    """Writes a PNG; `labels` name the endpoints in their order. Raises OSError when the file cannot be written."""
    # Imported here: it takes a second, which every other use of the package would pay too.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 7.6), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        len(_ROWS),
        len(panels),
        sharex=True,
        sharey="row",
        squeeze=False,
        gridspec_kw={"left": 0.065, "right": 0.985, "top": 0.785, "bottom": 0.075, "hspace": 0.30, "wspace": 0.06},
    )
    end_s = max([1.0, *(at_s for panel in panels for series in panel.endpoints for at_s in series.at_s[-1:])])
    for row, axes in zip(_ROWS, grid, strict=True):
        top = _top(row, panels)
        for panel, axis in zip(panels, axes, strict=True):
            _panel(axis, row, panel, top, end_s, labels)
        axes[0].set_title(row.title, loc="left", fontsize=10, color=_INK, fontweight="bold", pad=6)
    for axis in grid[-1]:
        axis.set_xlabel("seconds since the first session", fontsize=8.5, color=_FAINT)
    figure.text(0.065, 0.965, title, fontsize=14, color=_INK, fontweight="bold", va="top")
    _key(figure, labels)
    for panel, axis in zip(panels, grid[0], strict=True):
        left = axis.get_position().x0
        figure.text(left, 0.873, panel.title, fontsize=11.5, color=_INK, fontweight="bold", va="top")
        figure.text(left, 0.847, panel.subtitle, fontsize=9, color=_FAINT, va="top")
    figure.savefig(path, format="png")


def _key(figure: Any, labels: Sequence[str]) -> None:
    """The names of the endpoints in the colours of their lines."""
    left = 0.065
    for index, label in enumerate(labels):
        figure.text(left, 0.918, f"● {label}", fontsize=9.5, color=_COLOURS[index % len(_COLOURS)], va="top")
        left += 0.035 + 0.0085 * len(label)


def _top(row: _Row, panels: Sequence[Panel]) -> float:
    if row.percent:
        return 1.0
    return max(4.0, *(max(getattr(s, row.values), default=0.0) for panel in panels for s in panel.endpoints))


def _panel(axis: Any, row: _Row, panel: Panel, top: float, end_s: float, labels: Sequence[str]) -> None:
    axis.set_xlim(0.0, end_s)
    axis.set_ylim(0.0, top * 1.12)
    axis.grid(axis="y", color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(_FAINT)
    axis.tick_params(labelsize=8, colors=_FAINT, length=0)
    axis.locator_params(axis="y", nbins=4)
    if row.percent:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for index, series in enumerate(panel.endpoints):
        values = getattr(series, row.values)
        axis.plot(series.at_s, values, color=_COLOURS[index % len(_COLOURS)], linewidth=1.5, solid_joinstyle="round")
    _label_highest(axis, row, panel, top, end_s, labels)


def _label_highest(axis: Any, row: _Row, panel: Panel, top: float, end_s: float, labels: Sequence[str]) -> None:
    """Names the line that reaches highest, at its peak, when it stands out."""
    peaks = sorted(
        ((max(values), sum(values), i) for i, s in enumerate(panel.endpoints) if (values := getattr(s, row.values))),
        reverse=True,
    )
    if not peaks or peaks[0][0] < 0.2 * top:
        return
    peak, _, index = peaks[0]
    series = panel.endpoints[index]
    at_s = series.at_s[getattr(series, row.values).index(peak)]
    text = f"{labels[index]}: {peak:.0%}" if row.percent else f"{labels[index]}: {peak:.0f}"
    align = "left" if at_s < 0.25 * end_s else "right" if at_s > 0.75 * end_s else "center"
    colour = _COLOURS[index % len(_COLOURS)]
    axis.annotate(text, (at_s, peak), (0, 3), textcoords="offset points", ha=align, fontsize=8.5, color=colour)
