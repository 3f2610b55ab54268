"""Rows and report of the comparison with real routers, from recorded runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from msgspec.structs import replace

from poolpilot_lab.bench.cost.machine import Machine
from poolpilot_lab.bench.peers.report import report
from poolpilot_lab.bench.peers.rows import Results, Row, read, row
from poolpilot_lab.client.load import Outcome

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = Outcome(
    session=0,
    turn=0,
    kind="chat",
    model="m",
    sent_ms=1_000.0,
    end_ms=2_000.0,
    ttft_ms=100.0,
    tpot_ms=10.0,
    output_tokens=7,
    endpoint="engine-1",
)
MACHINE = Machine("processor", 2, "6.1", "3.11", "no core for itself", (0.5, 0.4, 0.3), "2026-11-30T00:00:00Z")


def made(contestant: str, seed: int, *outcomes: Outcome) -> Row:
    return row(
        "chat",
        contestant,
        seed,
        outcomes,
        ["engine-1", "engine-2"],
        router_cpu_s=0.004,
        picker_cpu_s=0.001 if contestant == "poolpilot" else None,
        cached_share=0.5,
    )


def answers(*ttft_ms: float) -> list[Outcome]:
    return [dataclasses.replace(ANSWER, session=number, ttft_ms=ms) for number, ms in enumerate(ttft_ms)]


def test_a_row_has_the_figures_of_its_run() -> None:
    slow = dataclasses.replace(
        ANSWER, ttft_ms=300.0, tpot_ms=None, sent_ms=2_000.0, end_ms=5_000.0, endpoint="engine-2"
    )
    found = made("poolpilot", 1, ANSWER, slow)
    assert (found.requests, found.errors, found.seconds, found.rps) == (2, 0, 4.0, 0.5)
    assert (found.ttft_mean_ms, found.ttft_p50_ms, found.ttft_p99_ms) == (200.0, 100.0, 300.0)
    assert (found.e2e_mean_ms, found.e2e_p99_ms, found.tpot_p99_ms) == (2_000.0, 3_000.0, 10.0)
    assert (found.router_cpu_us_per_request, found.picker_cpu_us_per_request) == (2_000.0, 500.0)
    assert found.shares == {"engine-1": 0.5, "engine-2": 0.5}
    assert found.output_tokens == 14


def test_a_failed_request_took_for_ever() -> None:
    failed = dataclasses.replace(ANSWER, error="status 503", ttft_ms=0.0, output_tokens=0)
    found = made("smg", 1, ANSWER, failed)
    assert (found.errors, found.reasons) == (1, {"status 503": 1})
    assert (found.ttft_mean_ms, found.ttft_p50_ms, found.ttft_p99_ms, found.tpot_p99_ms) == (100.0, 100.0, None, None)


def test_a_run_without_answers_is_no_crash() -> None:
    failed = dataclasses.replace(ANSWER, error="never sent", end_ms=0.0)
    found = made("smg", 1, failed)
    assert (found.rps, found.ttft_mean_ms, found.router_cpu_us_per_request) == (0.0, None, None)


def results(*rows: Row, **more: dict[str, str]) -> Results:
    return Results(command="poolpilot bench routing --peers", machine=MACHINE, rows=list(rows), **more)


def test_the_file_holds_what_was_written(tmp_path: Path) -> None:
    written = results(made("poolpilot", 1, ANSWER), left_out={"smg": "no network"})
    written.write(tmp_path / "peers.json")
    assert read(tmp_path / "peers.json") == written


def test_ratios_are_ours_by_theirs_over_the_same_seeds() -> None:
    page = report(
        results(
            made("poolpilot", 1, *answers(100.0)),
            made("smg", 1, *answers(200.0)),
            made("poolpilot", 2, *answers(100.0)),
            made("smg", 2, *answers(800.0)),
            # Of a seed that ours was not run with: in the figures, in no ratio.
            made("smg", 3, *answers(1.0)),
        )
    )
    [line] = [line for line in page.splitlines() if line.startswith("| smg | 0.25")]
    # TTFT mean 1/2 and 1/8; end to end the same; no CPU difference.
    assert line.split(" | ")[3].startswith("1.00")
    assert "Real routers over simulated engines" in page
    assert "| poolpilot | default flags" in page


def test_losses_failures_and_who_was_left_out_are_said() -> None:
    failed = dataclasses.replace(ANSWER, error="status 503")
    late = replace(made("poolpilot", 1, *answers(300.0)), problems=["9% of the engines' steps came late"])
    page = report(results(late, made("smg", 1, ANSWER, failed), left_out={"gie-epp": "no Go compiler"}))
    assert "Left out: gie-epp." in page
    assert "    no Go compiler" in page
    assert "- poolpilot, seed 1: 9% of the engines' steps came late" in page
    assert "- smg, seed 1: 1 × status 503" in page
    assert "| smg | 100 | 100 | ∞ |" in page
    assert "1 of 2" in page
    assert "| smg | 3.00 |" in page


def test_unequal_answers_are_noticed() -> None:
    longer = [dataclasses.replace(one, output_tokens=8) for one in answers(100.0)]
    assert "answers were not equally long for all (7 to 8)" in report(
        results(made("poolpilot", 1, *answers(100.0)), made("smg", 1, *longer))
    )
    assert "equally long" not in report(results(made("poolpilot", 1, *answers(100.0)), made("smg", 1, *answers(100.0))))
