"""Starts the processes of a pod by way of `podroot.py`, and ends them. What cannot be started says why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolpilot_lab.kubelet.objects import Json

_PODROOT: Final = Path(__file__).with_name("podroot.py")
_START_S: Final = 60.0
"""Longest building of a root: some 20 ms on an idle machine."""


class LaunchError(Exception):
    """A program of a pod could not be started; the message says why."""


class Launched:
    """A running process in a session of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._gone = False

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path | None = None,
        network: int | str | None = None,
        root: Path | None = None,
        mounts: Sequence[Json] = (),
        read_only: bool = False,
        cwd: str = "/",
    ) -> Self:
        """Returns as soon as the program itself runs. `log` takes all its output. See `podroot.py`.

        Raises LaunchError. The kernel kills the process when the kubelet's main thread ends.
        """
        read, write = os.pipe()
        given = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "network": network,
            "root": str(root) if root else None,
            "mounts": list(mounts),
            "read_only": read_only,
            "report": write,
            "parent": os.getpid(),
        }
        if root is not None:
            os.makedirs(root, exist_ok=True)
        try:
            with contextlib.ExitStack() as files:
                out = files.enter_context(log.open("ab")) if log is not None else asyncio.subprocess.DEVNULL
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(_PODROOT), json.dumps(given)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=(write,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(read)
            raise LaunchError(f"{argv[0]}: {error}") from error
        finally:
            os.close(write)
        launched = cls(process)
        problem = await launched._problem(read)
        if problem:
            await launched.kill()
            raise LaunchError(problem)
        return launched

    async def _problem(self, read: int) -> str:
        """What the launcher says before it becomes the program; nothing if it does."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(read, "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            async with asyncio.timeout(_START_S):
                return (await reader.read()).decode("utf-8", "replace")
        except TimeoutError:
            return f"not started after {_START_S:g} s"
        except asyncio.CancelledError:
            await self.kill()
            raise
        finally:
            transport.close()

    @property
    def pid(self) -> int:
        """Of the process and its group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def ended(self) -> int:
        """Waits for its end; the exit code, 128 + N where signal N ended it."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def signal(self, number: signal.Signals) -> None:
        """To the whole group. Nothing happens if the process has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def stop(self, grace_s: float) -> int:
        """TERM, and KILL after `grace_s` seconds."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.ended()
        return await self.kill()

    async def kill(self) -> int:
        """At once."""
        # Also when the program itself has ended: what it started may live on in its group. Only once: later the number
        # may be that of another group.
        if not self._gone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        code = await self.ended()
        self._gone = True
        return code
