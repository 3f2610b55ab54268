"""The bars that the routing benchmark is judged by, and whether the runs at hand meet them: verdicts with figures.

A verdict is *met*, *missed*, or *open* where the runs cannot tell: they are not there, or too few. Ties and starvation
are judged by any number of draws.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from poolpilot_lab.bench.routing.events import back_to_normal, detection_s, failing_share, lost_before_start, within_s
from poolpilot_lab.bench.routing.flow_bars import flow_bars
from poolpilot_lab.bench.routing.statistics import shown
from poolpilot_lab.bench.routing.tables import Cell, Runs
from poolpilot_lab.sim.baselines import BASELINES
from poolpilot_lab.sim.policies import ORACLE
from poolpilot_lab.sim.trip import POOLPILOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ENOUGH_DRAWS: Final = 20
FLOW_DRAWS: Final = 5
"""Of flow control, whose bars are whole factors."""
LOSS: Final = 1.05
FULL: Final = 0.9
"""Up to this load nobody may starve and all are admitted."""
JUDGED: Final = tuple(f"S{number}" for number in range(1, 13))
ONE_PICKER: Final = (*(name for name in JUDGED if name != "S12"), "poisson-mix")
MEANS: Final = {"e2e_mean_ms": 0.88, "e2e_p99_ms": 0.85, "tpot_p99_ms": 0.78, "ttft_p99_ms": 0.95}
UNIFORM: Final = "poisson-mix-naive"
"""Its engines' steps take as long whatever runs in them."""
NAMES: Final = {
    "ttft_mean_ms": "TTFT mean",
    "ttft_p99_ms": "TTFT p99",
    "e2e_mean_ms": "E2E mean",
    "e2e_p99_ms": "E2E p99",
    "tpot_p99_ms": "TPOT p99",
    "goodput_rps": "goodput",
    "adapter_wait_p99_ms": "adapter wait p99",
}

Outcome = Literal["met", "missed", "open"]


class Verdict(NamedTuple):
    """One bar. `found`: the figures, worst first."""

    bar: str
    outcome: Outcome
    found: str


class Loss(NamedTuple):
    """A figure on which poolpilot is, or may be, more than 5 % worse than the best baseline by goodput of a cell."""

    cell: Cell
    baseline: str
    name: str
    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """The draws together say so, not only the width of the interval."""
        return self.value > LOSS

    def __str__(self) -> str:
        where = f"{self.cell.scenario} ρ {self.cell.load:.2g} {NAMES[self.name]}"
        interval = "" if math.isinf(self.high) else f" ({self.low:.2f}–{self.high:.2f})"
        return f"{where} {self.value:.2f}{interval} against {self.baseline}"


def verdicts(tables: Mapping[str, Runs]) -> list[Verdict]:
    """Every bar, in the order of their numbers."""
    made: list[Verdict] = []
    for judge in _JUDGES:
        made += judge(tables)
    return made


def losses(runs: Runs, cell: Cell) -> list[Loss]:
    """Against the best baseline by goodput: what the 95 % interval does not exclude. Ratios above 1 are worse."""
    best = runs.best_baseline(cell)
    if best is None or POOLPILOT not in runs.policies(cell):
        return []
    found = []
    for name in ("ttft_p99_ms", "e2e_p99_ms", "tpot_p99_ms", "goodput_rps"):
        value, low, high = runs.ratio(cell, POOLPILOT, best, name)
        if name == "goodput_rps":
            value, low, high = 1.0 / value, 1.0 / high, 1.0 / low if low > 0.0 else math.inf
        bounded = high if math.isfinite(high) and runs.seeds(cell) > 1 else value
        if bounded <= LOSS:
            continue
        if name == "ttft_p99_ms":
            mine, theirs = runs.mean(cell, POOLPILOT, name), runs.mean(cell, best, name)
            slo = runs.first(cell, POOLPILOT).figures.get("slo_ttft_ms", 2_000.0)
            # The interval's end counts as the point does: how much later that would be.
            later = max(mine - theirs, theirs * (bounded - 1.0))
            if later <= 0.25 * slo:
                continue
        found.append(Loss(cell, best, name, value, low, high))
    return sorted(found, key=lambda loss: -loss.value)


def told(runs: Runs, cells: Iterable[Cell]) -> tuple[list[str], list[str]]:
    """Losses of these cells as text: those that are sure, and those that intervals do not exclude."""
    found = [loss for cell in cells for loss in losses(runs, cell)]
    return [str(loss) for loss in found if loss.sure], [str(loss) for loss in found if not loss.sure]


def _judged_cells(runs: Runs, names: tuple[str, ...], most: float = FULL) -> list[Cell]:
    return [cell for cell in runs.cells if cell.scenario in names and cell.load <= most + 1e-9]


def _draws(runs: Runs, cells: list[Cell]) -> int:
    return min((runs.seeds(cell) for cell in cells), default=0)


def _outcome(good: bool, draws: int) -> Outcome:
    return "open" if draws < ENOUGH_DRAWS else "met" if good else "missed"


def _against_best(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("results", Runs([]))
    cells = [cell for cell in _judged_cells(runs, JUDGED) if POOLPILOT in runs.policies(cell)]
    sure, wide = told(runs, cells)
    said = f"{len(sure)} of {4 * len(cells)} figures are more than 5 % worse" + (f": {'; '.join(sure)}" if sure else "")
    if wide:
        said += f". Not excluded by the interval, besides: {'; '.join(wide)}"
    draws = _draws(runs, cells)
    yield Verdict(
        "1 no loss above 5 % to the best baseline by goodput, S1–S12", _outcome(not sure and not wide, draws), said
    )


def _means(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    for table, names, limits in (
        ("results", ONE_PICKER, MEANS),
        ("identical", ONE_PICKER, dict.fromkeys(MEANS, 1.02)),
    ):
        runs = tables.get(table, Runs([]))
        cells = _judged_cells(runs, names)
        missed, worst = [], []
        for name, limit in limits.items():
            ratios = {
                baseline: runs.overall(cells, POOLPILOT, baseline, name)
                for baseline in BASELINES
                if any({POOLPILOT, baseline} <= set(runs.policies(cell)) for cell in cells)
            }
            if not ratios:
                continue
            top = max(ratios, key=lambda baseline: ratios[baseline].value)
            over = sorted((b for b in ratios if ratios[b].value > limit), key=lambda b: -ratios[b].value)
            missed += [f"{NAMES[name]} {ratios[b].value:.2f} against {b}" for b in over]
            worst.append(f"{NAMES[name]} ≤ {limit:g}: highest {shown(ratios[top])} ({top})")
        what = "hidden speeds" if table == "results" else "identical hardware"
        said = "; ".join(worst) + (f". Missed: {'; '.join(missed)}" if missed else "")
        yield Verdict(
            f"1 geometric mean over scenarios against every baseline, {what}",
            _outcome(bool(worst) and not missed, _draws(runs, cells)),
            said or "no runs",
        )


def _uniform(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("uniform", Runs([]))
    cells = [cell for cell in runs.cells if POOLPILOT in runs.policies(cell)]
    spread = []
    for cell in cells:
        values = {policy: runs.mean(cell, policy, "e2e_p99_ms") for policy in runs.policies(cell)}
        there = [value for policy, value in values.items() if policy in BASELINES]
        if there:
            spread.append((cell.scenario, values[POOLPILOT] / min(there), max(there) / min(there)))
    said = "; ".join(f"{n}: ours {mine:.3f} × the best, the worst {worst:.3f} ×" for n, mine, worst in spread)
    # Where steps ignore load nobody can differ; equal requests on real engines still punish who spreads them unevenly.
    tied = [worst for name, _, worst in spread if name == UNIFORM]
    yield Verdict(
        "1 uniform load: all tie (E2E p99)", "open" if not tied else "met" if max(tied) <= 1.02 else "missed", said
    )


def _oracle(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("results", Runs([]))
    cells = [
        c for c in _judged_cells(runs, (*JUDGED, "poisson-mix"), 0.7) if {POOLPILOT, ORACLE} <= set(runs.policies(c))
    ]
    ratios = {cell: runs.ratio(cell, POOLPILOT, ORACLE, "ttft_mean_ms") for cell in cells}
    over = sorted((cell for cell in cells if ratios[cell].value > 1.10), key=lambda cell: -ratios[cell].value)
    said = ", ".join(f"{cell.scenario} ρ {cell.load:.2g} {ratios[cell].value:.2f}" for cell in over)
    top = max((ratio.value for ratio in ratios.values()), default=math.nan)
    yield Verdict(
        "2 mean TTFT ≤ 1.10 × greedy oracle at ρ ≤ 0.7",
        _outcome(bool(cells) and not over, _draws(runs, cells)),
        f"above: {said}" if over else f"highest {top:.2f}",
    )
    reuse = []
    good = True
    for name, least in (("S1", 0.97), ("S4", 0.97), ("S5", 0.95)):
        for cell in cells:
            if cell.scenario == name:
                ratio = runs.ratio(cell, POOLPILOT, ORACLE, "cached_token_share").value
                reuse.append(f"{name} ρ {cell.load:.2g} {ratio:.3f}")
                good &= ratio >= least
    known = [cell for cell in cells if cell.scenario in ("S1", "S4", "S5")]
    yield Verdict(
        "2 reuse ≥ 97 % of the oracle's in S1 and S4, ≥ 95 % in S5",
        _outcome(good and bool(reuse), _draws(runs, known)),
        ", ".join(reuse),
    )


def _ratios(runs: Runs, cells: list[Cell], ours: str, limits: Mapping[str, float]) -> tuple[bool, str]:
    """Against the best baseline by goodput of each cell."""
    good, said = True, []
    for cell in cells:
        best = runs.best_baseline(cell)
        if best is None or ours not in runs.policies(cell):
            continue
        for name, limit in limits.items():
            ratio = runs.ratio(cell, ours, best, name)
            good &= ratio.value <= limit
            said.append(f"{NAMES[name]} {shown(ratio)} (≤ {limit:g})")
        said[-1] += f" against {best}"
    return good and bool(said), ", ".join(said)


def _events(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("results", Runs([]))
    mixed = [cell for cell in runs.cells if cell.scenario == "S10" and abs(cell.load - 0.7) < 1e-9]
    good, said = _ratios(runs, mixed, POOLPILOT, {"tpot_p99_ms": 0.75, "e2e_p99_ms": 0.85, "ttft_p99_ms": 1.0})
    yield Verdict("3 S10, H100/A100/L40S, ρ 0.7", _outcome(good, _draws(runs, mixed)), said or "no runs")
    slowed = tables.get("slowed", Runs([]))
    slow = slowed.cells
    good, said = _ratios(slowed, slow, POOLPILOT, {"tpot_p99_ms": 0.7, "e2e_p99_ms": 0.92})
    for cell in slow:
        seen = detection_s([run.figures for run in slowed.of(cell, POOLPILOT)])
        said += f"; detected in {seen.detected:.0f} s, recovered in {seen.recovered:.0f} s (≤ 30)"
        good &= seen.detected <= 30.0 and seen.recovered <= 30.0
    yield Verdict("3 one of eight at half speed", _outcome(good, _draws(slowed, slow)), said or "no runs")
    fail = tables.get("fail", Runs([]))
    for cell in [cell for cell in fail.cells if POOLPILOT in fail.policies(cell)]:
        share = failing_share([run.figures for run in fail.of(cell, POOLPILOT)])
        yield Verdict(
            "3 fast-failing pod", _outcome(share <= 0.05, fail.seeds(cell)), f"its share {share:.3f} (≤ 0.05)"
        )
    kill = tables.get("kill", Runs([]))
    for cell in [cell for cell in kill.cells if POOLPILOT in kill.policies(cell)]:
        figures = [run.figures for run in kill.of(cell, POOLPILOT)]
        lost = lost_before_start(figures)
        after = back_to_normal(figures)
        yield Verdict(
            "3 S11, one of eight dies at ρ 0.8",
            _outcome(lost == 0 and after <= 1.10, kill.seeds(cell)),
            f"{lost} lost that had not started; TTFT p99 from 60 s after on {after:.2f} × before (≤ 1.10), within 10 % "
            f"first after {within_s(figures):.0f} s",
        )


def _stale(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    single, runs = tables.get("stale", Runs([])), tables.get("results", Runs([]))
    fresh = [cell for cell in single.cells if cell.scenario == "S12-1-50"]
    stale = [cell for cell in single.cells if cell.scenario == "S12-1-5000"]
    many = [cell for cell in runs.cells if cell.scenario == "S12" and abs(cell.load - 0.7) < 1e-9]

    def worse(cell: Cell, table: Runs, policy: str, name: str) -> float:
        return table.mean(cell, policy, name) / single.mean(fresh[0], policy, name)

    if fresh and stale:
        found = {
            name: worse(stale[0], single, POOLPILOT, name) for name in ("ttft_p99_ms", "e2e_p99_ms", "tpot_p99_ms")
        }
        said = ", ".join(f"{NAMES[name]} {value:.2f}" for name, value in found.items())
        good = max(found.values()) <= 1.05
        yield Verdict("3 S12, one picker, 5 s scrape ≤ 1.05 × 50 ms", _outcome(good, single.seeds(stale[0])), said)
    if fresh and many:
        name = "ttft_p99_ms"
        mine = worse(many[0], runs, POOLPILOT, name)
        theirs = {b: worse(many[0], runs, b, name) for b in BASELINES if b in runs.policies(many[0])}
        better = sorted((b for b in theirs if theirs[b] < mine), key=lambda b: theirs[b])
        said = f"TTFT p99 {mine:.2f} × its own with one picker and fresh telemetry" + (
            "; less than ours: " + ", ".join(f"{b} {theirs[b]:.2f}" for b in better) if better else "; all others more"
        )
        yield Verdict(
            "3 S12, four unshared pickers degrade less than every baseline",
            _outcome(not better, runs.seeds(many[0])),
            said,
        )


def _adapters(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("adapters", Runs([]))
    cells = [cell for cell in runs.cells if {POOLPILOT, "lora-affinity"} <= set(runs.policies(cell))]
    good, said = bool(cells), []
    for name in ("ttft_p99_ms", "adapter_wait_p99_ms"):
        if cells:
            ratio = runs.overall(cells, POOLPILOT, "lora-affinity", name)
            single = {cell: runs.ratio(cell, POOLPILOT, "lora-affinity", name).value for cell in cells}
            top = max(cells, key=lambda cell: single[cell])
            good &= ratio.value <= 0.7 and single[top] <= 0.85
            said.append(f"{NAMES[name]} {shown(ratio)} (≤ 0.7), highest {single[top]:.2f} in {top.scenario} (≤ 0.85)")
    yield Verdict(
        "4 adapters against the LoRA-affinity blend", _outcome(good, _draws(runs, cells)), "; ".join(said) or "no runs"
    )


def _starved(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("results", Runs([]))
    below = [run for run in runs.runs if run.policy == POOLPILOT and run.load <= FULL + 1e-9]
    starved = sum(run.figures["starved"] for run in below)
    admitted = min((run.figures["admitted"] for run in below), default=math.nan)
    where = sorted({run.scenario for run in below if run.figures["starved"]})
    yield Verdict(
        "5 nobody starves and all are admitted at ρ ≤ 0.9",
        "open" if not below else "met" if not starved and admitted == 1.0 else "missed",
        f"{starved} starved{' in ' + ', '.join(where) if where else ''}, {100 * admitted:.4g} % admitted at least",
    )


def _flow(tables: Mapping[str, Runs]) -> Iterator[Verdict]:
    runs = tables.get("flow")
    if runs is None:
        return
    for bar, good, draws, said in flow_bars(runs):
        yield Verdict(bar, "open" if draws < FLOW_DRAWS else "met" if good else "missed", said)


_JUDGES: Final[tuple[Callable[[Mapping[str, Runs]], Iterator[Verdict]], ...]] = (
    _against_best,
    _means,
    _uniform,
    _oracle,
    _events,
    _stale,
    _adapters,
    _starved,
    _flow,
)
