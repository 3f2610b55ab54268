"""The whole demo, in its quick form: every program for real, the results, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from have_envoy import needs_envoy
from poolpilot_lab.demo.command import main

POLICIES = ["round-robin", "least-request", "poolpilot"]


def start(out: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "poolpilot", "demo", "--quick", "--out", str(out)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def left_behind(out: Path) -> list[str]:
    """Command lines of living processes that name a file of this run or descend from it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (folder / "environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if int(folder.name) != os.getpid() and (str(out) in command or f"POOLPILOT_TEST={out}" in environment):
            found.append(command)
    return found


def nothing_left(out: Path) -> list[str]:
    """Waits a little: a killed process needs a moment to vanish."""
    deadline = time.monotonic() + 5.0
    while (left := left_behind(out)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@needs_envoy
@pytest.mark.timeout(100)
def test_the_quick_demo_from_end_to_end(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "poolpilot", "demo", "--quick", "--seed", "5", "--out", str(tmp_path / "o")],
        capture_output=True, text=True, timeout=90, check=False, env={**os.environ, "POOLPILOT_TEST": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads((tmp_path / "o" / "demo.json").read_text())
    assert result["seed"] == 5
    assert list(result["policies"]) == POLICIES
    for figures in result["policies"].values():
        assert (figures["requests"], figures["errors"]) == (40, 0)
        assert 0 < figures["ttft_ms"]["p50"] <= figures["ttft_ms"]["p95"] <= figures["ttft_ms"]["p99"]
        assert figures["ttft_ms"]["p95"] <= figures["e2e_ms"]["p95"]
        assert figures["requests_per_s"] > 0
        assert sum(endpoint["requests"] for endpoint in figures["endpoints"]) == 40
        assert [endpoint["profile"][-4:] for endpoint in figures["endpoints"]] == ["h100", "h100", "a100", "h100"]
        assert len({endpoint["address"] for endpoint in figures["endpoints"]}) == 4
        assert 0 <= figures["cached_token_share"] <= 1
    even = result["policies"]["round-robin"]["endpoints"]
    assert [endpoint["requests"] for endpoint in even] == [10, 10, 10, 10]
    assert (tmp_path / "o" / "demo.png").read_bytes().startswith(b"\x89PNG")
    for expected in (*POLICIES, "time to first token", "A100", "demo.json", "Next:"):
        assert expected in run.stdout
    assert nothing_left(tmp_path) == []


@needs_envoy
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("engine-1.log", signal.SIGINT),
        ("envoy.log", signal.SIGINT),
        ("envoy.log", signal.SIGTERM),
    ],
)
def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, number: signal.Signals
) -> None:
    """While the engines start, and while requests are under way."""
    monkeypatch.setenv("POOLPILOT_TEST", str(tmp_path))
    demo = start(tmp_path / "o")
    try:
        marker = tmp_path / "o" / "demo-logs" / "round-robin" / stage
        deadline = time.monotonic() + 30.0
        while not marker.exists():
            assert demo.poll() is None, demo.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if stage == "envoy.log":
            time.sleep(1.0)
        os.kill(demo.pid, number)
        _, errors = demo.communicate(timeout=20)
    finally:
        demo.kill()
    assert demo.returncode == 128 + number
    assert re.fullmatch(r"poolpilot demo: interrupted by SIG\w+; everything it started has been stopped\n", errors)
    assert nothing_left(tmp_path) == []


@needs_envoy
@pytest.mark.timeout(60)
def test_killing_the_demo_itself_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux ends children with their parent")
    monkeypatch.setenv("POOLPILOT_TEST", str(tmp_path))
    demo = start(tmp_path / "o")
    try:
        while not (tmp_path / "o" / "demo-logs" / "round-robin" / "envoy.log").exists():
            assert demo.poll() is None, demo.communicate()
            time.sleep(0.02)
    finally:
        demo.kill()
        demo.communicate()
    assert nothing_left(tmp_path) == []


def test_a_program_that_does_not_start_is_shown_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "envoy"
    broken.write_text("#!/bin/sh\necho 'the reason why' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("ENVOY", str(broken))
    assert main(["--quick", "--out", str(tmp_path / "o")]) == 1
    errors = capfd.readouterr().err
    assert "envoy ended with exit code 3 before it was ready" in errors
    assert "the reason why" in errors


def test_no_envoy_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVOY", str(tmp_path / "absent"))
    assert main(["--quick", "--out", str(tmp_path / "o")]) == 1
    assert "there is no such program" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--requests", "0"], "--requests: 0 is out of range"),
        (["--seed", "-1"], "--seed: -1 is negative"),
        (["--out", "/dev/null/x"], "--out: /dev/null/x: cannot write there"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", *flags]) == 2
    assert says in capfd.readouterr().err
