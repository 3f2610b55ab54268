"""`poolpilot envoy-config`: flags, files, exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from poolpilot.main import main as poolpilot
from poolpilot_picker.envoy.command import main

if TYPE_CHECKING:
    from pathlib import Path


def test_without_flags_it_prints_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert poolpilot(["envoy-config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert [cluster["name"] for cluster in config["static_resources"]["clusters"]] == ["picker", "pool"]


def test_out_writes_a_file_and_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "envoy.yaml"
    assert main(["--out", str(out), "--picker", "10.0.0.1:9002,10.0.0.2:9002", "--picker", "[::1]:9002"]) == 0
    assert capsys.readouterr().out == ""
    picker = yaml.safe_load(out.read_text())["static_resources"]["clusters"][0]
    hosts = [
        endpoint["endpoint"]["address"]["socket_address"]["address"]
        for endpoint in picker["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert hosts == ["10.0.0.1", "10.0.0.2", "::1"]


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("[::]:80", {"address": "::", "port_value": 80, "ipv4_compat": True}),
        ("[::1]:80", {"address": "::1", "port_value": 80}),
        ("0.0.0.0:80", {"address": "0.0.0.0", "port_value": 80}),
    ],
)
def test_all_addresses_are_those_of_both_families(
    given: str, address: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """By itself Envoy takes no IPv4 on `::`."""
    assert main(["--listen", given]) == 0
    [listener] = yaml.safe_load(capsys.readouterr().out)["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == address


def test_each_worker_of_a_picker_is_a_host(capsys: pytest.CaptureFixture[str]) -> None:
    """Envoy opens one connection to a host and sends it all streams: a port that workers share would serve one."""
    assert main(["--picker", "10.0.0.1:9002,[::1]:7000", "--picker-workers", "3"]) == 0
    picker = yaml.safe_load(capsys.readouterr().out)["static_resources"]["clusters"][0]
    places = [
        one["endpoint"]["address"]["socket_address"]
        for one in picker["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert [(place["address"], place["port_value"]) for place in places] == [
        *(("10.0.0.1", port) for port in (9002, 9003, 9004)),
        *(("::1", port) for port in (7000, 7001, 7002)),
    ]


def test_turns_of_two_pickers(capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--picker", "10.0.0.1:9002", "--picker-workers", "2"]
    assert main([*two, "--picker-turn-ms", "10"]) == 0
    assert "%START_TIME(%2f)%" in capsys.readouterr().out
    assert main([*two, "--picker-turn-ms", "0"]) == 0
    assert "START_TIME" not in capsys.readouterr().out
    assert main([*two, "--picker-turn-ms", "50"]) == 2
    assert "picker-turn-ms: 50 is not possible; allowed: 0, 1, 10, 100" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "missing" / "envoy.yaml")]) == 1
    assert "out: cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--picker", "nowhere"], "picker: 'nowhere' is not an address"),
        (["--listen", "host:99999"], "listen: the port of 'host:99999'"),
        (["--cluster", "original-dst", "--fail", "open"], "fail: an original-dst cluster has no endpoint list"),
        (["--without-picker", "round-robin"], "endpoints: without a picker"),
        (
            ["--without-picker", "round-robin", "--endpoints", "10.0.0.1:1", "--fail", "open", "--eds-dir", "/x"],
            "without-picker: --fail, --eds-dir would have no effect; leave them out",
        ),
        (["--endpoints", "10.0.0.1:1"], "endpoints: with a picker"),
        (["--picker-workers", "0"], "picker-workers: 0 must be between 1 and 64"),
        (
            ["--picker", "10.0.0.1:65534", "--picker-workers", "3"],
            "picker-workers: 3 workers behind port 65534 would need port 65536",
        ),
        (
            ["--without-picker", "round-robin", "--endpoints", "10.0.0.1:1", "--picker-workers", "2"],
            "without-picker: --picker-workers would have no effect; leave it out",
        ),
        (["--max-message-timeout", "1"], "max-message-timeout: 1 s must not be below message-timeout, 5 s"),
    ],
)
def test_wrong_flags_are_exit_code_2_and_name_the_flag(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.out == ""


@pytest.mark.parametrize("argv", [["--body-mode", "streamed"], ["--retries", "two"], ["--nonsense"]])
def test_what_argparse_refuses_is_exit_code_2_too(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_admin_can_be_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--admin", "off"]) == 0
    assert "admin" not in yaml.safe_load(capsys.readouterr().out)
