"""Plots of a table of runs, one picture per scenario and one overall: made from stored figures only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from poolpilot_lab.bench.routing.statistics import short
from poolpilot_lab.sim.policies import CENTRAL_QUEUE, ORACLE
from poolpilot_lab.sim.trip import POOLPILOT

if TYPE_CHECKING:
    from pathlib import Path

    from poolpilot_lab.bench.routing.tables import Cell, Runs

BEST_SHOWN: Final = 5
"""Baselines in a picture besides ours and the references: more lines cannot be told apart."""
MOST_NAMED: Final = 16
"""Endpoints that a legend names."""
_OTHERS: Final = ("tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_OURS: Final = {POOLPILOT: "tab:blue", ORACLE: "black", CENTRAL_QUEUE: "gray"}


def draw(runs: Runs, out: Path) -> list[str]:
    """Writes `plots/SCENARIO.png` and `plots/oracle.png`; the names of what was written."""
    (out / "plots").mkdir(parents=True, exist_ok=True)
    written = []
    for scenario in dict.fromkeys(cell.scenario for cell in runs.cells):
        cells = sorted((cell for cell in runs.cells if cell.scenario == scenario), key=lambda cell: cell.load)
        name = f"plots/{scenario}.png"
        _scenario(runs, cells, out / name)
        written.append(name)
    if written:
        _oracle_bars(runs, out / "plots/oracle.png")
        written.append("plots/oracle.png")
    return written


def _shown(runs: Runs, cell: Cell) -> list[str]:
    there = runs.policies(cell)
    baselines = [policy for policy in there if policy not in _OURS]
    baselines.sort(key=lambda policy: (-runs.mean(cell, policy, "goodput_rps"), runs.mean(cell, policy, "e2e_p99_ms")))
    return [policy for policy in _OURS if policy in there] + baselines[:BEST_SHOWN]


def _style(policy: str, shown: list[str]) -> dict[str, Any]:
    style: dict[str, Any] = {"label": policy, "linewidth": 2.2 if policy == POOLPILOT else 1.1}
    others = [one for one in shown if one not in _OURS]
    style["color"] = _OURS[policy] if policy in _OURS else _OTHERS[others.index(policy)]
    if policy in (ORACLE, CENTRAL_QUEUE):
        style["linestyle"] = "--"
    return style


def _finite(values: list[float]) -> list[float]:
    """Infinite ones are left out of a line."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _scenario(runs: Runs, cells: list[Cell], file: Path) -> None:
    """TTFT p99 and goodput by load, distribution of TTFT and load per endpoint at one load."""
    middle = cells[len(cells) // 2]
    shown = _shown(runs, middle)
    figure, axes = plt.subplots(2, 2, figsize=(12, 8))
    for axis, name, title in (
        (axes[0][0], "ttft_p99_ms", "TTFT p99, ms"),
        (axes[0][1], "goodput_rps", "goodput, requests/s"),
    ):
        axis.set_title(title)
        if len(cells) > 1:
            _by_load(runs, cells, shown, name, axis)
        else:
            _at_one_load(runs, middle, shown, name, axis)
    if len(cells) > 1:
        axes[0][0].set_yscale("log")
        axes[0][0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes[0][0].yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes[0][0].yaxis.set_minor_locator(NullLocator())
    _distribution(runs, middle, shown, axes[1][0])
    axes[1][0].legend(fontsize=7)
    _endpoints(runs, middle, axes[1][1])
    figure.suptitle(f"{middle.scenario} (simulated)")
    # Always the same four: measuring every label for a tight layout would take longer than to draw them.
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.07, top=0.92, wspace=0.15, hspace=0.25)
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _by_load(runs: Runs, cells: list[Cell], shown: list[str], name: str, axis: Any) -> None:
    for policy in shown:
        there = [cell for cell in cells if policy in runs.policies(cell)]
        values = _finite([runs.mean(cell, policy, name) for cell in there])
        axis.plot([cell.load for cell in there], values, marker="o", **_style(policy, shown))
    axis.set_xlabel("load ρ")


def _at_one_load(runs: Runs, cell: Cell, shown: list[str], name: str, axis: Any) -> None:
    for place, policy in enumerate(reversed(shown)):
        value = runs.mean(cell, policy, name)
        color = _style(policy, shown)["color"]
        axis.barh(place, value if math.isfinite(value) else 0.0, color=color, alpha=0.5)
        axis.text(0.01, place, f"{policy}: {short(value)}", va="center", transform=axis.get_yaxis_transform())
    axis.set_yticks([])
    axis.set_xlabel(f"at load ρ {cell.load:.2g}")


def _distribution(runs: Runs, cell: Cell, shown: list[str], axis: Any) -> None:
    shares = [share / 100 for share in range(1, 101)]
    for policy in shown:
        quantiles = runs.first(cell, policy).figures["ttft_quantiles_ms"]
        axis.plot(_finite(quantiles), shares, **_style(policy, shown))
    axis.set_xscale("log")
    axis.set_xlabel("TTFT, ms")
    axis.set_title(f"share of requests, ρ {cell.load:.2g}, first seed")


def _endpoints(runs: Runs, cell: Cell, axis: Any) -> None:
    if POOLPILOT not in runs.policies(cell):
        axis.axis("off")
        return
    loads = runs.first(cell, POOLPILOT).figures["loads"]
    for number, line in enumerate(loads["endpoints"]):
        axis.plot(loads["seconds"], line, linewidth=0.9, label=str(number))
    if len(loads["endpoints"]) <= MOST_NAMED:
        axis.legend(fontsize=7, title="endpoint", title_fontsize=7)
    axis.set_xlabel("seconds")
    axis.set_title(f"sequences at each endpoint under poolpilot, ρ {cell.load:.2g}, first seed")


def _oracle_bars(runs: Runs, file: Path) -> None:
    cells = [cell for cell in runs.cells if {ORACLE, POOLPILOT} <= set(runs.policies(cell))]
    ratios = [runs.ratio(cell, POOLPILOT, ORACLE, "ttft_mean_ms").value for cell in cells]
    figure, axis = plt.subplots(figsize=(12, 4))
    axis.bar(range(len(cells)), [ratio if math.isfinite(ratio) else 0.0 for ratio in ratios])
    axis.set_xticks(range(len(cells)), [f"{cell.scenario} {cell.load:.2g}" for cell in cells], rotation=70, fontsize=7)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_title("mean TTFT, poolpilot ÷ greedy oracle (simulated)")
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)
