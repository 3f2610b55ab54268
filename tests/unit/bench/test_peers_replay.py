"""The cross-check with Dynamo's offline replay: the trace that is handed over, our side of it, and the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from poolpilot_lab.bench.peers import replay
from poolpilot_lab.bench.peers.replay import Figures, Point, compared, mooncake, simulated
from poolpilot_lab.workload.calls import Call, Traffic
from poolpilot_lab.workload.traces import MOONCAKE_BLOCK

if TYPE_CHECKING:
    from pathlib import Path


def calls() -> Traffic:
    """Two prompts with one block in common, of two and a half blocks each."""
    tokens = 2 * MOONCAKE_BLOCK + MOONCAKE_BLOCK // 2
    return Traffic(
        [Call(0.0, tokens, 3, [7, 8]), Call(5_000.25, tokens, 0, [7, 9]), Call(9_000.0, 512, 2, [7, 8])],
        MOONCAKE_BLOCK,
        "made",
    )


def test_a_prompt_has_an_id_for_every_block_and_shares_what_it_shares() -> None:
    rows = [json.loads(line) for line in mooncake(calls())]
    assert [len(row["hash_ids"]) for row in rows] == [3, 3, 1]
    first, second, third = (row["hash_ids"] for row in rows)
    assert first[0] == second[0] == third[0]
    assert len({*first, *second}) == 5
    assert [row["timestamp"] for row in rows] == [0.0, 5_000.25, 9_000.0]
    assert [row["output_length"] for row in rows] == [3, 1, 2]


def test_our_side_gives_both_policies_and_a_warm_cache_is_seen() -> None:
    traffic = calls()
    traffic.calls[1].output_tokens = 2
    point = simulated(traffic, 1.0, 2)
    assert point.rate == 1.0
    assert point.round_robin.ttft_mean_ms > 0
    # Two endpoints in turn: none of the three finds its prefix; where it lies, the second saves a block.
    assert point.round_robin.cached_share == 0.0
    assert point.kv_router.cached_share == pytest.approx(512 / (2 * 1_280 + 512))


def test_gains_are_by_round_robin_at_the_same_rate() -> None:
    idle = Point(0.1, Figures(100.0, 200.0, 1_000.0, 0.05), Figures(100.0, 200.0, 1_000.0, 0.06))
    busy = Point(3.0, Figures(150.0, 400.0, 2_000.0, 0.05), Figures(75.0, 100.0, 1_800.0, 0.1))
    lines = compared({"Dynamo": [idle, busy]}).splitlines()
    assert lines[-1] == "| Dynamo | 3 | 1.50 | 0.50 | 0.25 | 0.90 | 5.0% | 10.0% |"
    assert len(lines) == 4


@pytest.mark.parametrize("rates", ["0", "fast", "1,", "-1"])
def test_a_rate_that_is_none_is_named(rates: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        replay.main(["--trace", "t", "--out", "o", f"--rates={rates}"])
    assert ended.value.code == 2
    assert "--rates" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--requests", "--endpoints"])
def test_a_number_that_is_none_is_named_before_anything_is_installed(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main(["--trace", "t", "--out", str(tmp_path / "o"), flag, "0"]) == 2
    assert f"{flag}: 0 is out of range, allowed are 1 to" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
