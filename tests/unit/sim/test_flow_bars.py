"""The bars of flow control: which hold, by figures that are given, and when the table runs at all."""

from __future__ import annotations

import math

import pytest

from poolpilot_lab.bench.routing import command
from poolpilot_lab.bench.routing.bars import verdicts
from poolpilot_lab.bench.routing.flow_bars import flow_bars
from poolpilot_lab.bench.routing.flow_parts import DROP, HARD, PROBABILISTIC, QUEUES
from poolpilot_lab.bench.routing.flow_report import flow_parts
from poolpilot_lab.bench.routing.options import parse
from poolpilot_lab.bench.routing.tables import Run, Runs
from poolpilot_lab.sim.flow_policies import FLOW, FLOW_POLICIES
from poolpilot_lab.sim.flow_scenarios import ADVERSARY, BACKLOGGED, BULLY, CHAT, EVEN, FLOOD, SCALE_OUT
from poolpilot_lab.sim.policies import ORACLE
from poolpilot_lab.sim.trip import POOLPILOT

FIGURES = {
    "ttft_mean_ms": 100.0,
    "ttft_p99_ms": 400.0,
    "e2e_mean_ms": 9_000.0,
    "tpot_p99_ms": 30.0,
    "goodput_rps": 10.0,
    "output_tok_s": 1_000.0,
    "admitted": 1.0,
    "starved": 0,
    "longest_wait_ms": 900.0,
    "fairness_gap_tokens": 5_000.0,
    "dearest_tokens": 9_000.0,
    "longest_prompt_tokens": 4_000,
}


def row(scenario: str, load: float, policy: str, seed: int, p99: dict[str, float] | None = None, **figures):
    by_class = {label: {"ttft_p99_ms": value, "e2e_p99_ms": 1.0} for label, value in (p99 or {}).items()}
    return Run(scenario, load, policy, seed, FIGURES | figures | {"by_class": by_class})


def table(
    *,
    seeds: int = 5,
    others: float = 120.0,
    critical: float = 140.0,
    tokens: float = 950.0,
    scaled: float = 80.0,
    waiting: float = 0.5,
    warm: float = 510.0,
    **flow,
) -> Runs:
    """Flow control as given; what it is compared with moves by twice as much."""
    made = []
    for seed in range(1, seeds + 1):
        for policy, far in ((FLOW, others), (POOLPILOT, 300.0), ("lmetric", 400.0)):
            made += [
                row(EVEN, 1.2, policy, seed, {"others": 100.0}),
                row(
                    BULLY,
                    1.2,
                    policy,
                    seed,
                    {"others": far, "bully": 9e3},
                    output_tok_s=tokens if policy == FLOW else 1e3,
                ),
                row(CHAT, 0.9, policy, seed, {"short": 100.0}),
                row(FLOOD, 0.9, policy, seed, {"short": far, "flood": 9e3}),
                row(ADVERSARY, 1.1, policy, seed, **flow),
                row(BACKLOGGED, 1.8, policy, seed, **flow),
            ]
        for policy, scaled_s in ((FLOW, scaled), (POOLPILOT, 90.0)):
            figures = {"engine_waiting_mean": waiting, "engine_waiting_max": 9.0, "endpoints": [(0.0, 4), (60.0, 8)]}
            made.append(row(SCALE_OUT, 1.0, policy, seed, {"before": 1.0}, scaled_s=scaled_s, **figures))
        made.append(row(EVEN, 1.2, ORACLE, seed, {"others": 90.0}))
        for load in (0.7, 1.0, 1.2, 1.5):
            for policy in (FLOW, DROP, PROBABILISTIC, HARD, POOLPILOT):
                value = 100.0 if load == 0.7 else critical if policy in (FLOW, DROP) else 900.0
                good = 12.0 if load == 1.5 and policy == DROP else 10.0
                made.append(row("S13", load, policy, seed, {"critical": value, "sheddable": 9e3}, goodput_rps=good))
        for policy in (FLOW, QUEUES, POOLPILOT):
            made.append(row("S6", 0.95, policy, seed, {"chat": 50.0}, ttft_p99_ms=400.0 if policy == FLOW else 500.0))
            if policy != QUEUES:
                made.append(row("S1", 0.9, policy, seed, ttft_p99_ms=warm if policy == FLOW else 500.0))
    return Runs(made)


def held(runs: Runs) -> dict[str, bool]:
    return {bar.bar: bar.good for bar in flow_bars(runs)}


def test_all_hold_where_all_is_well_and_the_report_has_every_question() -> None:
    runs = table()
    assert len(held(runs)) == 10 and all(held(runs).values())
    said = [one for one in verdicts({"flow": runs}) if one.bar.startswith("6 ")]
    assert [one.outcome for one in said] == ["met"] * 10
    text = "\n".join(flow_parts(runs))
    assert f"| {FLOW} | 100 | 400 |" in text and "1.20 (1.20–1.20)" in text
    assert ORACLE not in text
    assert f"| {FLOW} | 80 s | 0.50 | 9.0 | 4 (0), 8 (60) |" in text


@pytest.mark.parametrize(
    ("what", "bars"),
    [
        ({"others": 210.0}, {"others than the bully", "short requests"}),
        ({"others": 160.0}, {"others than the bully"}),
        ({"critical": 160.0}, {"overload: TTFT p99"}),
        ({"tokens": 890.0}, {"throughput"}),
        ({"starved": 1}, {"nobody starves"}),
        ({"scaled": 91.0}, {"scaling out"}),
        ({"scaled": math.inf}, {"scaling out"}),
        ({"waiting": 1.1}, {"scaling out"}),
        ({"warm": 530.0}, {"warm caches"}),
        ({"admitted": 0.99}, {"nobody starves"}),
        ({"fairness_gap_tokens": 1e8}, {"service gap"}),
    ],
)
def test_each_bar_can_be_missed(what, bars) -> None:
    missed = {bar for bar, good in held(table(**what)).items() if not good}
    assert len(missed) == len(bars)
    assert all(any(start in bar for bar in missed) for start in bars)


def test_few_draws_decide_nothing() -> None:
    assert {one.outcome for one in verdicts({"flow": table(seeds=2)}) if one.bar.startswith("6 ")} == {"open"}


def test_it_runs_beside_the_scenarios_that_it_explains(tmp_path) -> None:
    asked = ["--scenario", "S6,S7,S13,poisson-mix", "--out", str(tmp_path)]
    options = parse(asked)
    assert options.tables == ("results", "flow")
    assert [one.name for one in options.of("results")] == ["S6", "S7", "S13", "poisson-mix"]
    assert {EVEN, BULLY, CHAT, FLOOD, BACKLOGGED, ADVERSARY, "S13", "S6"} < {one.name for one in options.of("flow")}
    assert parse(["--scenario", "S6", "--out", str(tmp_path)]).tables == ("results",)
    only = parse(["--scenario", "S13", "--tables", "flow", "--out", str(tmp_path)])
    assert [one.name for one in only.of("flow")] == ["S13", SCALE_OUT]


def test_results_have_no_flow_control_and_the_table_has_the_baselines_that_were_asked_for(tmp_path) -> None:
    options = parse(["--scenario", "S6,S7,S13,poisson-mix", "--policy", "poolpilot,lmetric", "--out", str(tmp_path)])
    assert not set(FLOW_POLICIES) & set(command._policies(options, "results", "S13"))
    assert command._policies(options, "flow", BULLY) == (FLOW, f"{FLOW}-first-come", POOLPILOT, "lmetric", ORACLE)
    assert [load for load, _ in command._loads(options, "flow", options.of("flow")[0], 100.0)] == [0.9, 1.2]
