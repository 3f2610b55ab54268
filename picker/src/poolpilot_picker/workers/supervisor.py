"""The parent of the workers: starts them, starts again those that die, passes signals on, and serves the admin port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any

import msgspec

from poolpilot_picker.config.seat import Seat
from poolpilot_picker.errors import StartError
from poolpilot_picker.workers.admin import WorkersAdmin
from poolpilot_picker.workers.backoff import Backoff
from poolpilot_picker.workers.process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)


class SupervisorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line decides of the workers as a whole."""

    workers: int
    listen: str
    """Of the first worker; the others have the ports behind it. With port 0 each chooses one."""
    admin: tuple[str, int]
    argv: tuple[str, ...]
    """The flags of the command line: each worker gets them, with its own addresses."""


class WorkerStartError(StartError):
    """A worker could not be started when the picker was; it has said why. Everything is given up."""

    def __init__(self, index: int, exit_code: int) -> None:
        super().__init__(f"worker {index} ended with exit code {exit_code} before it was ready")
        self.worker_exit_code = exit_code


class Supervisor:
    """Runs the workers until SIGTERM or SIGINT; a second signal ends their drain at once."""

    def __init__(self, options: SupervisorOptions) -> None:
        self._options = options
        host, _, port = options.listen.rpartition(":")
        self._host, first = host, int(port)
        self.workers = [
            WorkerProcess(index, self._argv_of(index), first + index if first else 0, keep_fds=())
            for index in range(options.workers)
        ]
        self.admin = WorkersAdmin(options.admin, self.workers, lambda: self._complete, lambda: self._stopping.is_set())
        self._complete = False
        """All workers have been ready once."""
        self._stopping = asyncio.Event()
        self._all_ready = asyncio.Event()

    def _argv_of(self, index: int) -> Any:
        seat = msgspec.json.encode(Seat(index=index, count=self._options.workers)).decode()

        def argv(port: int) -> Sequence[str]:
            return (
                *self._options.argv,
                *("--workers", "1"),
                *("--listen", f"{self._host}:{port}"),
                *("--admin", "127.0.0.1:0"),
                "--print-ready",
                *("--seat", seat),
            )

        return argv

    # ---- life

    async def start(self) -> None:
        """Listens on the admin port, starts the workers and waits until all are ready, or a signal came.

        Raises StartError and WorkerStartError; then nothing runs any more.
        """
        await self.admin.start()
        self._keepers = [asyncio.ensure_future(self._keep(worker)) for worker in self.workers]
        ready, stopping = (asyncio.ensure_future(event.wait()) for event in (self._all_ready, self._stopping))
        await asyncio.wait([ready, stopping, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        stopping.cancel()
        failed = next((one for one in self._keepers if one.done() and not one.cancelled() and one.exception()), None)
        if failed is not None and not self._stopping.is_set():
            self.stop()
            await asyncio.gather(*self._keepers, return_exceptions=True)
            await self.admin.stop()
            raise failed.exception() or AssertionError

    async def wait(self) -> None:
        """Waits until all workers have ended after a signal; closes the admin port."""
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self.admin.stop()

    def stop(self) -> None:
        """Has the workers drain; called again, has them give up what is open."""
        self._stopping.set()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    @property
    def stopping(self) -> bool:
        """A signal came."""
        return self._stopping.is_set()

    def ready_line(self) -> dict[str, Any]:
        """What is printed when all are ready."""
        return {
            "port": self.workers[0].port,
            "ports": [worker.port for worker in self.workers],
            "admin_port": self.admin.port,
            "workers": [worker.pid for worker in self.workers],
        }

    async def _keep(self, worker: WorkerProcess) -> None:
        """One life after the other."""
        backoff, loop = Backoff(), asyncio.get_running_loop()
        served_from = 0.0

        def on_ready(_: WorkerProcess) -> None:
            nonlocal served_from
            served_from = loop.time()
            if worker.restarts:
                log.warning("worker is back", extra={"worker": worker.index, "worker_pid": worker.pid})
            if all(one.ready for one in self.workers):
                self._complete = True
                self._all_ready.set()
            # The signal may have come while it was starting, before it could take one.
            if self.stopping:
                worker.signal(signal.SIGTERM)

        while not self.stopping:
            served_from = loop.time()
            code = await worker.live(on_ready)
            if self.stopping:
                return
            if not self._complete:
                raise WorkerStartError(worker.index, code)
            wait_s = backoff.after(loop.time() - served_from)
            log.error("worker has ended", extra={"worker": worker.index, "exit_code": code, "again_in_s": wait_s})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
