"""Flags → what is played, and what is refused."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from poolpilot_lab.bench import command as bench
from poolpilot_lab.bench.cost import machine
from poolpilot_lab.bench.cost.cases import CASES, Choice, trials
from poolpilot_lab.bench.cost.command import main
from poolpilot_lab.bench.cost.duration import expected_s
from poolpilot_lab.bench.cost.gateway import BodyMode
from poolpilot_lab.bench.cost.pickers import Scrape
from poolpilot_lab.bench.cost.play import in_order


def choice(*cases: str, pickers: tuple[str, ...] = ("poolpilot", "gie-epp"), quick: bool = False) -> Choice:
    return Choice(
        cases=cases, pickers=pickers, transports=("wire", "grpc"), workers=1, memory_requests=1_000_000,
        runs=1 if quick else 5, quick=quick, pod_port=8000, epp=None, strict=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--case", "shrot"], f"--case: 'shrot' is not known; allowed: {', '.join(CASES)}"),
        (["--case", ","], "--case: nothing is not known"),
        (["--pickers", "epp"], "--pickers: 'epp' is not known; allowed: poolpilot, gie-epp, llm-d-epp"),
        (["--pickers", "llm-d-epp"], "--pickers: llm-d-epp is a binary of yours; name it with --epp PATH"),
        (["--transport", "http"], "--transport: 'http' is not known; allowed: wire, grpc"),
        (["--runs", "0"], "--runs: 0 is out of range, allowed are 1 to 100"),
        (["--workers", "65"], "--workers: 65 is out of range, allowed are 1 to 64"),
        (["--memory-requests", "10"], "--memory-requests: 10 is out of range"),
        (["--pod-port", "80"], "--pod-port: 80 is out of range"),
        (["--epp", "/nowhere/epp"], "--epp: /nowhere/epp: there is no such program"),
        (["--epp", "/bin/sh", "--pickers", "poolpilot"], "--epp: without effect"),
    ],
)
def test_wrong_flags(flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, "--out", str(tmp_path / "o")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_missing_envoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ENVOY", "/nowhere/envoy")
    assert main(["--out", str(tmp_path / "o")]) == 2
    assert "ENVOY=/nowhere/envoy: there is no such program" in capsys.readouterr().err


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path / "file"), "--pickers", "poolpilot"]) == 2
    assert "cannot write there" in capsys.readouterr().err


def test_a_taken_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.1.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--out", str(tmp_path / "o"), "--pod-port", str(port)]) == 2
    assert f"--pod-port: the stand-in servers need 127.0.1.1:{port}: Address already in use" in capsys.readouterr().err


def test_the_command_of_benches(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--help"]) == 0
    assert "cost" in capsys.readouterr().out
    assert bench.main(["coast"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("poolpilot bench: unknown benchmark 'coast'; known: ")
    assert "cost" in said


def test_go_runs_in_its_only_mode() -> None:
    [trial] = trials(choice("short"))
    assert [(one.picker, one.transport, one.body_mode) for one in trial.contestants] == [
        ("poolpilot", "wire", BodyMode.FULL_DUPLEX), ("poolpilot", "grpc", BodyMode.FULL_DUPLEX),
        ("gie-epp", None, BodyMode.FULL_DUPLEX),
        ("poolpilot", "wire", BodyMode.NONE), ("poolpilot", "grpc", BodyMode.NONE),
        ("poolpilot", "wire", BodyMode.BUFFERED), ("poolpilot", "grpc", BodyMode.BUFFERED),
    ]  # fmt: skip
    assert {one.scrape for one in trial.contestants} == {Scrape.FULL}, (
        "idle cost must be the same with and without load"
    )


def test_several_workers_are_compared_with_one_that_has_all_and_one_that_has_a_share() -> None:
    several = replace(choice("short"), workers=2)
    everything, share = trials(several)
    assert {one.workers for one in everything.contestants if one.picker == "poolpilot"} == {1, 2}
    assert {(one.picker, one.workers, one.body_mode) for one in share.contestants} == {
        ("poolpilot", 1, BodyMode.FULL_DUPLEX)
    }
    assert everything.load is not None and share.load is not None
    assert (everything.load.concurrency, share.load.concurrency) == (16, 8)
    assert len(trials(replace(several, pickers=("gie-epp",)))) == 1


def test_several_workers_are_compared_in_an_open_loop_too() -> None:
    """At a rate that Go's need not bear, and that needs no Envoy alone to compare with."""
    plan = trials(replace(choice("latency"), workers=2))
    assert [trial.load.rate for trial in plan if trial.load is not None] == [1.0, 500.0, 2_000.0]
    assert {one.workers for one in plan[1].contestants if one.picker == "poolpilot"} == {1, 2}
    assert {(one.picker, one.workers) for one in plan[2].contestants} == {("poolpilot", 1), ("poolpilot", 2)}
    assert len(trials(choice("latency"))) == 2


def test_contestants_take_turns_at_being_first_and_behind_another() -> None:
    for who in (["one", "two"], ["one", "two", "three", "four"]):
        orders = [in_order(who, run) for run in range(1, 2 * len(who) + 1)]
        assert all(sorted(order) == sorted(who) for order in orders)
        assert {order[0] for order in orders} == set(who)
        before = [order.index("one") < order.index("two") for order in orders]
        assert before.count(True) == before.count(False)
    assert in_order([], 3) == []


def test_idle_also_has_our_own_scraping() -> None:
    plan = trials(choice("idle"))
    assert [trial.endpoints for trial in plan] == [4, 20, 100, 1000]
    assert [(one.picker, one.scrape) for one in plan[0].contestants if one.transport != "grpc"] == [
        ("poolpilot", Scrape.FULL), ("poolpilot", Scrape.ADAPTIVE), ("gie-epp", Scrape.FULL),
    ]  # fmt: skip


def test_memory_is_bounded_by_requests_for_ours_and_by_time_for_go() -> None:
    ours, theirs = trials(choice("memory"))
    assert ours.load is not None and theirs.load is not None
    assert {one.picker for one in ours.contestants} == {"poolpilot"}
    assert {one.picker for one in theirs.contestants} == {"gie-epp"}
    assert (ours.load.requests, ours.load.seconds) == (1_000_000, 0.0)
    assert theirs.load.seconds * theirs.segments == pytest.approx(40.0)
    assert (ours.runs, theirs.runs) == (1, 1)


def test_every_case_but_pick_has_trials_in_order_and_different_names() -> None:
    plan = trials(choice(*reversed(CASES)))
    assert list(dict.fromkeys(trial.case for trial in plan)) == [case for case in CASES if case != "pick"]
    for trial in plan:
        names = [one.name for one in trial.contestants]
        assert len(set(names)) == len(names)


def test_a_quick_run_is_small() -> None:
    for trial in trials(choice(*CASES, quick=True)):
        assert trial.endpoints <= 100
        if trial.load is not None:
            assert trial.load.concurrency <= 16
            assert trial.load.requests <= 200
            assert trial.load.seconds <= 6.0


def test_everything_takes_twenty_minutes() -> None:
    everything = choice(*CASES)
    default = Choice(
        **{field: getattr(everything, field) for field in everything.__slots__} | {"transports": ("wire",)}
    )
    assert 600 < expected_s(default) <= 1_200
    assert expected_s(choice("short")) < 150
    assert expected_s(choice(*CASES, quick=True)) < expected_s(default) / 4


def test_the_picker_has_a_core_for_itself_where_there_are_two() -> None:
    assert machine.cores({0, 1}) == machine.Cores(frozenset({1}), frozenset({0}))
    assert machine.cores({2, 5, 7}) == machine.Cores(frozenset({7}), frozenset({2, 5}))
    assert machine.cores({0, 1, 2, 3}, 2) == machine.Cores(frozenset({2, 3}), frozenset({0, 1}))
    assert machine.cores({0, 1}, 2) == machine.Cores(frozenset({1}), frozenset({0})), "the others need one"
    assert machine.cores({3}) == machine.Cores(frozenset({3}), frozenset({3}))
    assert machine.cores({0, 1}).apart
    assert not machine.cores({3}).apart
