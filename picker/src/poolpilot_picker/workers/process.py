"""One worker: a picker process of its own, from its start to the end of its life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_picker.sharing.memory import Memory

log = logging.getLogger(__name__)

WORDS: Final = ("starting", "ready", "down")
LEAVE: Final = signal.SIGUSR1
"""To a worker that another one has replaced on its port: take no new streams, end those that are open, then go."""


class ReadyLine(msgspec.Struct):
    """What a picker prints when it is ready."""

    port: int
    admin_port: int
    pid: int


class WorkerProcess:
    """Starts a worker, again and again on the same port, and knows how it is."""

    def __init__(self, index: int, argv: Callable[[int, int | None], Sequence[str]], port: int, memory: Memory) -> None:
        """`argv(port, chair)`: flags of the picker; `port` 0 lets the first start choose."""
        self.index = index
        self.port = port
        self.admin_port = 0
        self.pid = 0
        self.starts = 0
        self.ready_since: float | None = None
        """By the event loop's clock; None while it is not ready."""
        self.leaving = False
        """Another one has taken its place."""
        self._argv = argv
        self._memory = memory
        self._process: asyncio.subprocess.Process | None = None

    @property
    def ready(self) -> bool:
        """It serves."""
        return self.ready_since is not None

    @property
    def state(self) -> str:
        """For people: one of WORDS."""
        return "ready" if self.ready else "down" if self._process is None else "starting"

    def rss_bytes(self) -> int:
        """Resident memory; 0 while it is not there, and where the system does not tell."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    async def live(self, on_ready: Callable[[WorkerProcess], None]) -> int:
        """One life: starts, says when it is ready, waits for the end. The exit code, -N if signal N ended it."""
        self.starts += 1
        chair = self._memory.seat()
        if chair is None:
            log.error("too many workers are still leaving: a new one shares nothing", extra={"worker": self.index})
        try:
            return await self._live(on_ready, chair)
        finally:
            if chair is not None:
                self._memory.clear(chair)

    async def _live(self, on_ready: Callable[[WorkerProcess], None], chair: int | None) -> int:
        # A session of its own: a terminal's Ctrl-C reaches the supervisor alone, which passes it on once.
        # Its standard input ends with the supervisor: that is how a worker learns that it is alone.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "poolpilot_picker",
            *self._argv(self.port, chair),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self._memory.fd,),
            start_new_session=True,
        )
        self._process, self.pid = process, process.pid
        try:
            assert process.stdout is not None
            if line := await process.stdout.readline():
                said = msgspec.json.decode(line, type=ReadyLine)
                self.port, self.admin_port = said.port, said.admin_port
                self.ready_since = asyncio.get_running_loop().time()
                on_ready(self)
            return await process.wait()
        finally:
            self._process, self.ready_since, self.admin_port = None, None, 0
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if there is somebody to take it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
