"""`poolpilot bench routing`: what it writes, that it goes on where it stopped, and what it says of wrong input."""

import json
import math
from pathlib import Path

import pytest

from poolpilot_lab.bench.routing import command, execute, rates
from poolpilot_lab.bench.routing.command import duration, main
from poolpilot_lab.bench.routing.execute import Group, RateTask, Remaining
from poolpilot_lab.bench.routing.options import parse
from poolpilot_lab.bench.routing.statistics import geometric_mean, paired
from poolpilot_lab.bench.routing.tables import FIELDS
from poolpilot_lab.sim import capacity
from poolpilot_lab.sim.scenarios import KNOWN, SCENARIOS
from poolpilot_lab.sim.world import EXACT, HIDDEN

FAST = ["--scenario", "poisson-mix", "--requests", "200", "--workers", "1"]


@pytest.fixture
def _rate(monkeypatch):
    monkeypatch.setattr(execute, "known_rate", lambda scenario, table, seed: 40.0)


@pytest.fixture
def _no_plots(monkeypatch):
    monkeypatch.setattr(command, "draw", lambda runs, out: [])


@pytest.mark.usefixtures("_rate", "_no_plots")
def test_it_writes_rows_with_exactly_the_fields_that_are_promised(tmp_path):
    assert (
        main(
            [
                *FAST,
                "--policy",
                "poolpilot,lmetric,random",
                "--loads",
                "0.5,0.8",
                "--seeds",
                "2",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    rows = json.loads((tmp_path / "results.json").read_text())
    assert len(rows) == 3 * 2 * 2
    assert {(row["policy"], row["load"], row["seed"]) for row in rows} == {
        (policy, load, seed) for policy in ("poolpilot", "lmetric", "random") for load in (0.5, 0.8) for seed in (1, 2)
    }
    for row in rows:
        assert tuple(row) == (*FIELDS, "by_class")
        assert set(row["by_class"]) == {"short", "long"}
        assert row["scenario"] == "poisson-mix"
        assert row["admitted"] == 1.0
        assert row["oracle_ttft_mean_ms"] > 0
        assert row["limit_ttft_mean_ms"] <= row["ttft_mean_ms"]
        assert row["limit_ttft_p99_ms"] <= row["ttft_p99_ms"]
    assert "simulated" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("_rate")
def test_it_draws_a_picture_per_scenario_and_one_of_all(tmp_path):
    assert main([*FAST, "--policy", "poolpilot,random", "--loads", "0.7", "--out", str(tmp_path)]) == 0
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {"poisson-mix.png", "oracle.png"}
    assert all(file.stat().st_size > 5_000 for file in (tmp_path / "plots").iterdir())


@pytest.mark.usefixtures("_rate", "_no_plots")
def test_ladder_and_ablation_compare_poolpilot_with_itself(tmp_path):
    flags = [*FAST, "--loads", "0.7", "--tables", "ladder", "--out", str(tmp_path)]
    assert main(flags) == 0
    rows = json.loads((tmp_path / "ladder.json").read_text())
    assert [row["policy"] for row in rows][:2] == ["poolpilot", "poolpilot+first-tokens"]
    assert not (tmp_path / "results.json").exists()
    assert "+true-lengths" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("_rate", "_no_plots")
def test_what_was_run_is_not_run_again_and_what_is_missing_is(tmp_path, monkeypatch):
    flags = [*FAST, "--loads", "0.7", "--policy", "random,least-request", "--out", str(tmp_path)]
    ran = []
    run = execute.Simulation.run
    monkeypatch.setattr(execute.Simulation, "run", lambda self: ran.append(self) or run(self))
    assert main(flags) == 0
    assert len(ran) == 3
    first = (tmp_path / "results.json").read_text()
    assert main(flags) == 0
    assert len(ran) == 3
    [stored] = (tmp_path / "runs" / "results" / "poisson-mix").glob("*-random.json")
    stored.write_text("half a fi")
    assert main(flags) == 0
    assert len(ran) == 4
    assert (tmp_path / "results.json").read_text() == first
    assert main([*flags, "--requests", "250"]) == 0
    assert len(ran) == 7


@pytest.mark.usefixtures("_rate", "_no_plots")
def test_a_plain_trace_and_an_engine_file_are_run(tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"t": 0.1 * n, "input_tokens": 300, "output_tokens": 20, "blocks": ["system", f"q{n % 7}"], "block_tokens": 128}
        for n in range(400)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    engine = tmp_path / "engine.json"
    entry = {
        "id": "mine",
        "prefill": {"floor_ms": 5, "a_ms": 1, "b_ms_per_token": 0.02, "c_ms_per_token2": 4e-7},
        "decode": {"a_ms": 6, "b_ms_per_sequence": 0.01, "c_ms_per_context_token": 4e-5},
        "kv_cache": {"tokens": 100_000},
    }
    engine.write_text(json.dumps(entry))
    flags = [
        "--trace",
        str(trace),
        "--format",
        "jsonl",
        "--engine",
        str(engine),
        "--endpoints",
        "3",
        "--requests",
        "300",
    ]
    assert main([*flags, "--policy", "poolpilot", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    [row] = json.loads((tmp_path / "out" / "results.json").read_text())
    assert row["scenario"] == "trace"
    assert 0.7 < row["reuse_ceiling"] < 0.9
    assert row["cached_token_share"] <= row["reuse_ceiling"] + 1e-9


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--scenario", "S99"], "--scenario: unknown 'S99'; known: S1"),
        (["--policy", "best"], "--policy: unknown 'best'; known: poolpilot"),
        (["--loads", "0.5,-1"], "--loads: '-1' is no number above 0"),
        (["--loads", "nan"], "--loads: 'nan'"),
        (["--seeds", "0"], "--seeds: 0 is out of range"),
        (["--requests", "3"], "--requests: 3 is out of range"),
        (["--endpoints", "0"], "--endpoints: 0 is out of range"),
        (["--engine", "no-such-engine"], "--engine: 'no-such-engine' is neither a file nor a known engine"),
        (["--trace", "no-such-file", "--format", "jsonl"], "no-such-file: cannot be read"),
        (["--trace", "x.jsonl"], "--trace: needs --format"),
        (["--format", "azure"], "--format: says how a trace is to be read"),
    ],
)
def test_wrong_flags_are_named_with_what_is_allowed_and_exit_2(tmp_path, capsys, flags, words):
    assert main([*flags, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "trace_format", "words"),
    [
        ('{"t": 0, "input_tokens": 0, "output_tokens": 5}', "jsonl", ":1: 0 input and 5 output tokens"),
        ('{"t": 0, "input_tokens": 9}', "jsonl", "output_tokens"),
        ("not json", "mooncake", ":1:"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9799600,48\n", "azure", "GeneratedTokens"),
        ('{"t": 0, "input_tokens": 9, "output_tokens": 5}', "jsonl", "holds 1 requests"),
    ],
)
def test_bad_traces_are_refused_with_line_and_field(tmp_path, capsys, text, trace_format, words):
    file = tmp_path / "trace"
    file.write_text(text)
    assert main(["--trace", str(file), "--format", trace_format, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err


def test_an_engine_file_with_a_bad_number_is_refused(tmp_path, capsys):
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"id": "x", "prefill": {}, "decode": {}, "kv_cache": {"tokens": 5}}))
    assert main(["--engine", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "prefill" in capsys.readouterr().err


def test_a_rate_is_used_only_for_the_scenario_it_was_found_for(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "FILE", tmp_path / "rates.json")
    scenario = SCENARIOS["S1"]
    assert rates.known_rate(scenario, "results", 1) is None
    rates.remember(scenario, "results", 1, 15.0)
    assert rates.known_rate(scenario, "results", 1) == 15.0
    assert rates.known_rate(scenario, "results", 2) is None
    assert rates.known_rate(scenario, "identical", 1) is None
    assert rates.known_rate(scenario.with_endpoints(4), "results", 1) is None


def test_the_highest_rate_is_where_the_backlog_begins_to_grow(monkeypatch):
    scenario = SCENARIOS["poisson-mix"].with_endpoints(1)
    monkeypatch.setattr(capacity, "STEP", 1.2)
    rate = capacity.highest_rate(scenario, scenario.world(EXACT), 1)
    # A sequence of 424 output tokens in the mean, 256 at a time, in steps of about 30 ms with its share of prefill.
    assert 8.0 < rate < 20.0


def test_ratios_are_paired_and_their_interval_narrows_with_seeds():
    ratio = paired([2.0, 4.0, 8.0, 16.0], [1.0, 2.0, 4.0, 8.0])
    assert ratio == pytest.approx((2.0, 2.0, 2.0))
    spread = paired([1.0, 2.0], [2.0, 1.0])
    assert spread.value == pytest.approx(1.0)
    assert spread.low < 0.01 and spread.high > 100.0
    assert paired([math.inf], [math.inf]).value == 1.0
    assert paired([math.inf, 1.0], [1.0, 1.0]).value == pytest.approx(10.0), "one draw does not decide all"
    assert geometric_mean([1.0, 100.0]) == pytest.approx(10.0)


@pytest.mark.usefixtures("_rate", "_no_plots")
def test_a_rate_that_belongs_to_a_scenario_is_run_besides_the_shares(tmp_path):
    assert main([*FAST, "--policy", "random", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["load"] for row in rows] == [0.5, 0.7]


def test_the_time_left_is_told_by_work_and_stored_groups_tell_nothing_of_it():
    groups = [
        Group(KNOWN["S1"], "results", 0.7, 10.0, seed, requests, ("random", "lmetric"), Path("none"))
        for seed, requests in enumerate((1_000, 1_000, 3_000))
    ]
    remaining = Remaining(groups, workers=2)
    assert math.isnan(remaining.done(groups[0], 0.01))
    assert remaining.done(groups[1], 4.0) == pytest.approx(3_000 / 1_000 * 4.0 / 2)
    assert remaining.done(groups[2], 12.0) == 0.0
    slow = Group(KNOWN["S1"], "rollout", 0.7, 10.0, 1, 1_000, ("oracle-rollout",), Path("none"))
    assert slow.work > 20 * groups[0].work
    assert [duration(seconds) for seconds in (math.nan, 89.4, 5_400.0)] == ["? min", "89 s", "90 min"]


def test_every_load_has_twenty_draws_unless_a_number_was_asked_for(tmp_path):
    def draws(*more):
        options = parse(["--set", "full", "--tables", "results", "--out", str(tmp_path), *more])
        rates = {(one.name, "results", seed): 1.0 for one in options.of("results") for seed in range(1, 21)}
        groups = command._groups(options, "results", rates)
        return {load: sum(one.scenario.name == "S1" and one.load == load for one in groups) for load in (0.5, 0.9)}

    assert draws() == {0.5: 20, 0.9: 20}
    assert draws("--seeds", "12") == {0.5: 12, 0.9: 12}


@pytest.mark.parametrize(
    ("flags", "requests"),
    [
        ([], 4_000),
        (["--set", "full"], 6_000),
        (["--scenario", "S13"], 6_000),
        (["--requests", "9000"], 9_000),
    ],
)
def test_only_a_quick_set_whose_scenarios_nobody_named_has_shorter_runs(flags, requests, tmp_path):
    """Who runs a trace of their own has all of it."""
    assert parse([*flags, "--out", str(tmp_path)]).size(KNOWN["S13"], 100.0) == requests


def test_every_rate_that_a_full_set_needs_is_stored_or_follows_from_one_that_is(tmp_path, monkeypatch):
    """Searching for those of adapters' variants would take longer than the runs."""
    monkeypatch.setattr(execute, "highest_rate", lambda *_: pytest.fail("a search"))
    options = parse(["--set", "full", "--out", str(tmp_path)])
    for table in options.tables:
        for scenario in options.of(table):
            for seed in command._seeds(options, table, scenario):
                world = command._world(table)
                assert execute.find_rate(RateTask(scenario, world, seed, tmp_path)) > 0.0


def test_a_variants_rate_in_another_draw_is_the_first_ones_by_the_speed_of_its_engines(tmp_path):
    scenario = KNOWN["S8-1000-1.0-4"]
    first, third = (execute.find_rate(RateTask(scenario, "results", seed, tmp_path)) for seed in (1, 3))
    world = scenario.steady_world(HIDDEN)
    assert third / first == pytest.approx(capacity.speed(world, 3) / capacity.speed(world, 1))
