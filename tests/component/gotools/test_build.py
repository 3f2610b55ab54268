"""Go programs built on demand: once, whole, and with a reason where it cannot be."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from poolpilot_lab import gotools
from poolpilot_lab.gotools import BuildFailedError, GoProgram, NotAvailable, built

if TYPE_CHECKING:
    from pathlib import Path

MAIN = 'package main\n\nvar Word = "hello"\n\nfunc main() { println(Word) }\n'


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small module, in a cache of its own."""
    if shutil.which("go") is None:
        pytest.skip("no Go compiler on the PATH")
    # Go's own cache hangs on XDG_CACHE_HOME too, and nobody wants to compile its library here.
    go_cache = subprocess.run(["go", "env", "GOCACHE"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("GOCACHE", go_cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "greeter"
    folder.mkdir()
    (folder / "go.mod").write_text("module poolpilot.dev/greeter\n\ngo 1.22\n")
    (folder / "main.go").write_text(MAIN)
    return folder


def said(program: Path) -> str:
    return subprocess.run([program], check=True, capture_output=True, text=True).stderr.strip()


def programs() -> list[str]:
    return sorted(one.name for one in gotools.cache_folder().iterdir() if one.suffix == "")


async def test_a_program_is_built_once_and_again_when_it_changes(module: Path) -> None:
    heard: list[str] = []
    first = await built(GoProgram(module), heard.append)
    assert said(first) == "hello" and first.parent == gotools.cache_folder()
    assert len(heard) == 1 and "building greeter with go1." in heard[0]
    assert await built(GoProgram(module), heard.append) == first and len(heard) == 1

    named = await built(GoProgram(module, variables={"main.Word": "farewell"}), heard.append)
    assert named != first and said(named) == "farewell" and len(heard) == 2

    (module / "main.go").write_text(MAIN.replace("hello", "welcome"))
    changed = await built(GoProgram(module), heard.append)
    assert said(changed) == "welcome" and said(first) == "hello" and len(heard) == 3
    assert len(programs()) == 3, "nothing half-built stays"


async def test_whoever_comes_second_waits_for_the_first(module: Path) -> None:
    heard: list[str] = []
    first, second = await asyncio.gather(*(built(GoProgram(module), heard.append) for _ in range(2)))
    assert first == second and len(heard) == 1


async def test_a_build_that_is_cut_off_leaves_nothing_that_runs(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = module.parent / "slow"
    slow.mkdir()
    go = f"""#!/bin/sh
    test "$1" = build || exec {shutil.which("go")} "$@"
    while test "$1" != -o; do shift; done
    echo half > "$2"; echo $$ > {slow}/pid; exec sleep 1000
    """
    (slow / "go").write_text(go)
    (slow / "go").chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(slow), prepend=":")
        task = asyncio.create_task(built(GoProgram(module)))
        async with asyncio.timeout(30):
            while not (slow / "pid").exists() or not (pid := (slow / "pid").read_text().strip()):
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert programs() == []
    assert said(await built(GoProgram(module))) == "hello"


async def test_what_the_compiler_says_is_told(module: Path) -> None:
    (module / "main.go").write_text(MAIN.replace("println(Word)", "println(Name)"))
    with pytest.raises(BuildFailedError, match="undefined: Name"):
        await built(GoProgram(module))
    assert programs() == []


async def test_a_module_that_cannot_be_had_is_told(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOPROXY", "off")
    monkeypatch.setenv("GOFLAGS", "-modcacherw")
    monkeypatch.setenv("GOMODCACHE", str(module.parent / "modules"))
    (module / "go.mod").write_text("module poolpilot.dev/greeter\n\ngo 1.22\n\nrequire example.com/far v1.0.0\n")
    (module / "main.go").write_text(MAIN.replace("\n\n", '\n\nimport _ "example.com/far"\n\n', 1))
    with pytest.raises(BuildFailedError, match=r"example\.com/far"):
        await built(GoProgram(module))


async def test_a_go_that_is_too_old_is_none(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    (module / "go.mod").write_text("module poolpilot.dev/greeter\n\ngo 1.999\n")
    for asked in (built(GoProgram(module)), gotools.source_folder(module, "poolpilot.dev/greeter")):
        with pytest.raises(NotAvailable, match=r"requires go >= 1\.999") as caught:
            await asked
        assert not isinstance(caught.value, BuildFailedError)


async def test_without_go_or_source_there_is_a_reason(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailable, match="elsewhere is not there"):
        await built(GoProgram(module / "elsewhere"))
    monkeypatch.setenv("PATH", str(module))
    with pytest.raises(NotAvailable, match="no Go compiler") as caught:
        await built(GoProgram(module))
    assert not isinstance(caught.value, BuildFailedError)


async def test_versions_and_sources_come_from_the_module(module: Path) -> None:
    (module / "go.mod").write_text(
        "module poolpilot.dev/greeter\n\ngo 1.22\n\nrequire example.com/near v1.2.3\n\n"
        "replace example.com/near => ../near\n"
    )
    near = module.parent / "near"
    near.mkdir()
    (near / "go.mod").write_text("module example.com/near\n\ngo 1.22\n")
    assert await gotools.required_version(module, "example.com/near") == "v1.2.3"
    assert await gotools.source_folder(module, "example.com/near") == near
