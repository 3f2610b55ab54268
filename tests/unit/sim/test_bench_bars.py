"""Verdicts: what counts as a loss, when a bar is met, missed or open, and how soon a change was known."""

from __future__ import annotations

import math

import pytest

from poolpilot_lab.bench.routing.bars import losses, verdicts
from poolpilot_lab.bench.routing.events import back_to_normal, detection_s, failing_share, happened, within_s
from poolpilot_lab.bench.routing.report import report
from poolpilot_lab.bench.routing.tables import Cell, Run, Runs
from poolpilot_lab.sim.trip import POOLPILOT

FIGURES = {
    "ttft_mean_ms": 100.0,
    "ttft_p99_ms": 400.0,
    "e2e_mean_ms": 2_000.0,
    "e2e_p99_ms": 9_000.0,
    "tpot_p99_ms": 30.0,
    "goodput_rps": 10.0,
    "cached_token_share": 0.5,
    "slo_ttft_ms": 2_000.0,
    "starved": 0,
    "admitted": 1.0,
    "requests": 1_000,
    "longest_wait_ms": 900.0,
    "good_share": 1.0,
    "output_tok_s": 1.0,
    "ttft_p50_ms": 50.0,
    "alone_mean_ms": 20.0,
    "limit_ttft_mean_ms": 20.0,
    "limit_ttft_p99_ms": 50.0,
    "reuse_ceiling": 0.6,
}


def runs(seeds=20, scenario="S1", load=0.7, noise=0.0, **ours):
    """poolpilot, whose figures are those of `lmetric` times the factors given, and a worse baseline; noise: by draw."""
    made = []
    for seed in range(1, seeds + 1):
        luck = 1.0 + noise * (-1) ** seed
        mine = FIGURES | {name: FIGURES[name] * factor * luck for name, factor in ours.items()}
        made += [
            Run(scenario, load, POOLPILOT, seed, mine),
            Run(scenario, load, "lmetric", seed, dict(FIGURES)),
            Run(scenario, load, "random", seed, FIGURES | {"goodput_rps": 5.0, "e2e_p99_ms": 20_000.0}),
            Run(scenario, load, "oracle", seed, dict(FIGURES)),
        ]
    return Runs(made)


CELL = Cell("S1", 0.7)


def named(table, start):
    return next(one for one in verdicts({"results": table}) if one.bar.startswith(start))


def test_a_figure_five_percent_worse_is_a_loss_and_one_that_might_be_is_named_too() -> None:
    assert losses(runs(e2e_p99_ms=1.04), CELL) == []
    [sure] = losses(runs(e2e_p99_ms=1.10), CELL)
    assert (sure.name, sure.baseline, sure.sure) == ("e2e_p99_ms", "lmetric", True)
    [unsure] = losses(runs(e2e_p99_ms=1.02, noise=0.3), CELL)
    assert not unsure.sure and unsure.high > 1.05
    [goodput] = losses(runs(goodput_rps=0.9), CELL)
    assert goodput.value == pytest.approx(1.0 / 0.9)
    [alone] = losses(runs(seeds=1, goodput_rps=0.5), CELL)
    assert str(alone) == "S1 ρ 0.7 goodput 2.00 against lmetric", "one draw has no interval"


def test_a_later_first_token_counts_above_a_quarter_of_its_target() -> None:
    assert losses(runs(ttft_p99_ms=2.0), CELL) == [], "400 ms later, of 2,000"
    assert [loss.name for loss in losses(runs(ttft_p99_ms=2.5), CELL)] == ["ttft_p99_ms"]


def test_few_draws_decide_nothing() -> None:
    bar = "1 no loss above 5 %"
    assert named(runs(), bar).outcome == "met"
    assert named(runs(e2e_p99_ms=1.2), bar).outcome == "missed"
    assert "S1 ρ 0.7 E2E p99 1.20 (1.20–1.20) against lmetric" in named(runs(e2e_p99_ms=1.2), bar).found
    assert named(runs(seeds=19), bar).outcome == "open"


def test_every_baseline_counts_in_the_means() -> None:
    bar = "1 geometric mean over scenarios against every baseline, hidden speeds"
    good = runs(e2e_mean_ms=0.8, e2e_p99_ms=0.8, tpot_p99_ms=0.7, ttft_p99_ms=0.9)
    assert named(good, bar).outcome == "met"
    missed = named(runs(e2e_mean_ms=0.8, e2e_p99_ms=0.8, tpot_p99_ms=0.7), bar)
    assert missed.outcome == "missed"
    assert "TTFT p99 1.00 against lmetric" in missed.found


def test_an_unanswered_request_in_one_draw_does_not_decide_a_mean() -> None:
    made = runs().runs
    worst = [run._replace(figures=run.figures | {"e2e_p99_ms": math.inf}) for run in made[1:2]]
    ratio = Runs([made[0], *worst, *made[2:]]).overall([CELL], POOLPILOT, "lmetric", "e2e_p99_ms")
    assert 0.7 < ratio.value < 0.9


def test_the_report_says_by_itself_which_bars_hold() -> None:
    text = report({"results": runs(e2e_p99_ms=1.2)}, "full", {"S1": "a generator"})
    first = text.split("\n\n## ")[0]
    assert "✗ **missed**: 1 no loss above 5 % to the best baseline by goodput" in first
    assert "✓ met: 5 nobody starves" in first
    assert "**Losses** of more than 5 % to the best baseline by goodput: S1 ρ 0.7 E2E p99 1.20" in text


def timeline(placed, changes, ttft=100.0):
    """A run with a request every 0.1 s; placed(second) → endpoint."""
    times = [0.1 * number for number in range(2_000)]
    return {
        "timeline": {
            "changes": changes,
            "arrived_s": times,
            "endpoint": [placed(at) for at in times],
            "ttft_ms": [ttft(at) if callable(ttft) else ttft for at in times],
        }
    }


def test_a_change_is_known_when_most_of_the_share_has_moved() -> None:
    def placed(at):
        # Every second request before the change and 12 s into it, then every tenth; all is as before 7 s after it.
        often = 2 if at < 72.0 or at >= 127.0 else 10
        return 3 if round(at * 10) % often == 0 else 0

    figures = [timeline(placed, [[60.0, "slow", 3], [120.0, "heal", 3]])]
    assert detection_s(figures) == (20.0, 15.0)
    never = [
        timeline(lambda at: 3 if round(at * 10) % 2 and at < 110.0 else 0, [[60.0, "slow", 3], [120.0, "heal", 3]])
    ]
    assert detection_s(never).recovered == math.inf


def test_a_failing_pod_and_a_dead_one_leave_their_marks() -> None:
    failing = timeline(lambda at: 3 if round(at * 10) % 50 == 0 else 1, [[20.0, "fail", 3], [120.0, "heal", 3]])
    assert failing_share([failing]) == pytest.approx(0.02, abs=0.002)
    killed = timeline(
        lambda at: 0, [[60.0, "kill", 3]], lambda at: 100.0 if at < 60.0 else 900.0 if at < 110.0 else 150.0
    )
    assert back_to_normal([killed]) == pytest.approx(1.5)
    assert within_s([killed]) == math.inf
    better = timeline(lambda at: 0, [[60.0, "kill", 3]], lambda at: 900.0 if 60.0 < at < 93.0 else 109.0)
    assert within_s([better]) == 50.0
    better["timeline"]["lost_before_start"] = 0
    (said,) = happened("lmetric", [better])
    assert said.startswith("lmetric: 0 requests lost that had not started; TTFT p99 within 10 % of before after 50 s")
    assert said.endswith("from 60 s after on 1.00 × before.")
    assert happened("lmetric", [failing]) == ["lmetric: 2 % of the requests met the failing endpoint."]
    assert happened("lmetric", [{"requests": 9}]) == []
