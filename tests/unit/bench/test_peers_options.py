"""The flags of `poolpilot bench routing --peers`, and what is started for each contestant."""

from __future__ import annotations

import dataclasses
import re
import sys
from importlib import resources
from pathlib import Path

import pytest
from msgspec.structs import replace

from poolpilot_lab.bench.cost.machine import Machine
from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.bench.peers import command, engines, install, routers
from poolpilot_lab.bench.peers.catalogue import BY_NAME, CONTESTANTS, DISTRIBUTIONS, DYNAMO, Distribution, Way
from poolpilot_lab.bench.peers.options import Options, parse
from poolpilot_lab.bench.peers.rows import Results, Row, row
from poolpilot_lab.bench.peers.scenarios import MIXED, SCENARIOS, Scenario
from poolpilot_lab.bench.routing import command as routing
from poolpilot_lab.engine.options import read_config

OUT = ["--out", "results"]
MACHINE = Machine("processor", 2, "6.1", "3.11", "no core for itself", (0.5, 0.4, 0.3), "2026-11-30T00:00:00Z")


def names(*argv: str) -> list[str]:
    return [one.name for one in parse([*argv, *OUT]).contestants]


def test_all_means_everybody_that_needs_no_binary() -> None:
    everybody = [one.name for one in CONTESTANTS if one.name != "llm-d-epp"]
    assert names("--peers") == names("--peers", "all") == names() == everybody
    assert names("--peers", "--epp", sys.executable) == [one.name for one in CONTESTANTS]


def test_ours_always_runs_and_the_order_is_the_reports() -> None:
    assert names("--peers", "smg,vllm-router, smg") == ["poolpilot", "vllm-router", "smg"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--peers", "smg,dynamo"], r"--peers: 'dynamo' is not known; allowed: poolpilot, round-robin, .*llm-d-epp"),
        (["--peers", ","], "--peers: nothing is not known"),
        (["--peers", "all,smg"], "'all' cannot be combined"),
        (["--peers", "llm-d-epp"], "name it with --epp PATH"),
        (["--peers", "smg", "--epp", sys.executable], "--epp: without effect"),
        (["--epp", "/nowhere/epp"], "--epp: /nowhere/epp: there is no such program"),
        (["--scenario", "S1"], "--scenario: 'S1' is not known; allowed: chat, mixed"),
        (["--seeds", "0"], "--seeds: 0 is out of range, allowed are 1 to 1000"),
        (["--requests", "-1"], "--requests: -1 is out of range"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_allowed(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse([*argv, *OUT])


def test_the_routing_bench_hands_over_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert routing.main(["--peers=nobody", *OUT]) == 2
    assert "--peers: 'nobody' is not known" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_code:
        routing.main(["--peers", "--loads", "0.5", *OUT])
    assert exit_code.value.code == 2


def test_contestants_take_turns_and_every_other_seed_turns_the_order() -> None:
    options = parse(["--peers", "round-robin", "--scenario", "chat", "--seeds", "2", *OUT])
    played = [(scenario.name, seed, one.name) for scenario, seed, one in command.order(options)]
    assert played == [
        ("chat", 1, "poolpilot"),
        ("chat", 1, "round-robin"),
        ("chat", 2, "round-robin"),
        ("chat", 2, "poolpilot"),
    ]


def test_a_router_is_started_as_its_maker_says() -> None:
    contestant = BY_NAME["smg-least-load"]
    assert contestant.distribution is not None
    argv = contestant.distribution.argv(Path("python"), 1, 2, ["127.0.1.1:8", "127.0.1.2:8"], contestant.flags)
    assert argv == [
        "python", "-m", "smg", "launch",
        "--host", "127.0.0.1", "--port", "1",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", "2",
        "--worker-urls", "http://127.0.1.1:8", "http://127.0.1.2:8",
        "--policy", "least_load", "--load-monitor-interval", "1",
    ]  # fmt: skip


def test_defaults_are_started_without_flags_of_ours() -> None:
    plain = [one for one in CONTESTANTS if one.distribution is not None and one.name == one.distribution.name]
    assert [one.flags for one in plain] == [()] * len(DISTRIBUTIONS)
    assert all(one.way is Way.ROUTER for one in plain)


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, DYNAMO], ids=lambda one: one.name)
def test_a_lock_pins_version_and_hashes_and_names_no_index(distribution: Distribution) -> None:
    text = (resources.files("poolpilot_lab.bench.peers") / "locks" / distribution.lock).read_text(encoding="utf-8")
    assert f"\n{distribution.name}=={distribution.version} \\\n    --hash=sha256:" in f"\n{text}"
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert "index" not in text


def test_another_version_has_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = DISTRIBUTIONS[0]
    assert install.environment(one).parent == tmp_path / "poolpilot" / "peers"
    assert install.environment(one).name.startswith(f"{one.name}-{one.version}-")
    assert install.environment(one) != install.environment(dataclasses.replace(one, version="9"))


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda one: one.name)
def test_engines_accept_their_flags_and_no_client_asks_for_a_length(scenario: Scenario) -> None:
    configs = [
        read_config(engines.flags(scenario, number, "127.0.1.1", 8000, 1), {})
        for number in range(len(scenario.engines))
    ]
    assert [config.instance for config in configs] == [spec.name for spec in scenario.engines]
    assert len({config.seed for config in configs}) == len(configs)
    traffic = scenario.traffic(1, 20)
    assert traffic.requests == 20
    assert {turn.output_tokens for session in traffic.sessions for turn in session.turns} == {0}
    assert scenario.traffic(1, 20) == traffic


def test_a_small_cache_is_the_engines_own() -> None:
    flags = engines.flags(MIXED, 3, "127.0.1.4", 8000, 2)
    assert flags[flags.index("--num-gpu-blocks-override") + 1] == "3000"
    assert flags[flags.index("--seed") + 1] == "203"


def test_only_healthy_workers_count() -> None:
    page = b'{"workers":[{"url":"http://127.0.1.1:8","is_healthy":true},{"url":"http://127.0.1.2:8"}],"total":2}'
    assert routers.healthy(page) == {"127.0.1.1:8"}


def made_row(scenario: str, contestant: str, settings: str) -> Row:
    made = row(scenario, contestant, 1, [], [], router_cpu_s=0.0, picker_cpu_s=None, cached_share=0.0)
    return replace(made, settings=settings)


def stored(options: Options, *rows: Row) -> list[Row]:
    options.out.mkdir(parents=True, exist_ok=True)
    Results(command="", machine=MACHINE, rows=list(rows)).write(options.out / "peers.json")
    return command.stored(options)


def test_what_was_run_with_the_same_settings_is_not_run_again(tmp_path: Path) -> None:
    options = parse(["--peers", "round-robin", "--scenario", "chat", "--out", str(tmp_path)])
    assert command.stored(options) == []
    [scenario], [ours, theirs] = options.scenarios, options.contestants
    blank = made_row(scenario.name, ours.name, command.settings(options, scenario, ours))
    other = made_row(scenario.name, theirs.name, command.settings(options, scenario, theirs))
    assert blank.settings != other.settings
    assert stored(options, blank, other) == [blank, other]
    fewer = parse(["--peers", "round-robin", "--scenario", "chat", "--requests", "9", "--out", str(tmp_path)])
    elsewhere = replace(other, scenario="mixed")
    assert stored(fewer, blank, other, elsewhere) == [elsewhere]
    found = Results(command="", machine=MACHINE, rows=[blank])
    assert found.has("chat", 1, "poolpilot")
    assert not found.has("chat", 2, "poolpilot")


def test_a_file_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    options = parse(["--peers", "round-robin", "--out", str(tmp_path)])
    (tmp_path / "peers.json").write_text("[]")
    with pytest.raises(UsageError, match=r"--out: .*peers\.json holds no results of this bench"):
        command.stored(options)
