"""The parent of the workers: starts them, starts again those that die, replaces those that have grown, passes signals
on, and serves the admin port. Off the request's way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.config.seat import Seat
from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.wire.listening import listen
from poolpilot_picker.sharing.memory import Memory
from poolpilot_picker.workers.admin import WorkersAdmin
from poolpilot_picker.workers.backoff import Backoff
from poolpilot_picker.workers.process import LEAVE, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often memory is looked at."""


class SupervisorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line decides of the workers as a whole."""

    workers: int
    listen: str
    """Of the first worker; the others have the ports behind it. With port 0 each chooses one."""
    admin: tuple[str, int]
    argv: tuple[str, ...]
    """The flags of the command line: each worker gets them, with its own addresses."""
    recycle_bytes: int | None = None
    """A worker with more resident memory is replaced; None: none is."""


class WorkerStartError(StartError):
    """A worker could not be started when the picker was; it has said why. Everything is given up."""

    def __init__(self, index: int, exit_code: int) -> None:
        super().__init__(f"worker {index} ended with exit code {exit_code} before it was ready")
        self.worker_exit_code = exit_code


class Supervisor:
    """Runs the workers until SIGTERM or SIGINT; a second signal ends their drain at once.

    A worker is replaced without a gap: the new one listens on the same port before the old one stops to.
    """

    def __init__(self, options: SupervisorOptions) -> None:
        self._options = options
        host, _, port = options.listen.rpartition(":")
        self._host, first = host, int(port)
        self._memory = Memory.create(options.workers)
        self._argv = [self._argv_of(index) for index in range(options.workers)]
        self.workers = [
            WorkerProcess(index, self._argv[index], first + index if first else 0, self._memory)
            for index in range(options.workers)
        ]
        self.admin = WorkersAdmin(options.admin, self.workers, lambda: self._complete, lambda: self._stopping.is_set())
        self._keepers: list[asyncio.Future[None]] = []
        self._chores: list[asyncio.Future[None]] = []
        self._complete = False
        """All workers have been ready once."""
        self._leaving: list[WorkerProcess] = []
        """Those that were replaced and still have open exchanges."""
        self._stopping = asyncio.Event()
        self._renewing = asyncio.Lock()
        self._all_ready = asyncio.Event()

    def _argv_of(self, index: int) -> Any:
        life = 0

        def argv(port: int, chair: int | None) -> Sequence[str]:
            nonlocal life
            seat = Seat(
                index=index,
                count=self._options.workers,
                life=life,
                shares_port=True,
                chair=chair,
                chairs=self._memory.chairs,
                memory_fd=self._memory.fd,
            )
            life += 1
            return (
                *self._options.argv,
                *("--workers", "1"),
                *("--listen", f"{self._host}:{port}"),
                *("--admin", "127.0.0.1:0"),
                "--print-ready",
                *("--seat", msgspec.json.encode(seat).decode()),
            )

        return argv

    # ---- life

    async def start(self) -> None:
        """Listens on the admin port, starts the workers and waits until all are ready, or a signal came.

        Raises StartError and WorkerStartError; then nothing runs any more.
        """
        self._claim_ports()
        await self.admin.start()
        self._keepers = [asyncio.ensure_future(self._keep(worker)) for worker in self.workers]
        ready, stopping = (asyncio.ensure_future(event.wait()) for event in (self._all_ready, self._stopping))
        waits: list[asyncio.Future[Any]] = [ready, stopping, *self._keepers]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        stopping.cancel()
        failed = next((one for one in self._keepers if one.done() and not one.cancelled() and one.exception()), None)
        if failed is not None and not self._stopping.is_set():
            self.stop()
            await asyncio.gather(*self._keepers, return_exceptions=True)
            await self.admin.stop()
            raise failed.exception() or AssertionError
        if self._options.recycle_bytes is not None:
            self._chores.append(asyncio.ensure_future(self._watch_memory(self._options.recycle_bytes)))

    def _claim_ports(self) -> None:
        """Raises StartError where somebody listens already: workers share their ports, so they would not notice."""
        for worker in self.workers if self.workers[0].port else ():
            for one in listen(f"{self._host}:{worker.port}"):
                one.close()

    async def wait(self) -> None:
        """Waits until all workers have ended after a signal; closes the admin port."""
        while working := [keeper for keeper in self._keepers if not keeper.done()]:
            await asyncio.wait(working)
        for chore in self._chores:
            chore.cancel()
        await self.admin.stop()

    def stop(self) -> None:
        """Has the workers drain; called again, has them give up what is open."""
        self._stopping.set()
        for worker in (*self.workers, *self._leaving):
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

    # ---- replacing

    def renew(self) -> None:
        """Replaces all workers, one after the other. Nothing happens while that is going on already."""
        if self._complete and not self._renewing.locked():
            self._chores = [chore for chore in self._chores if not chore.done()]
            self._chores.append(asyncio.ensure_future(self._renew_all()))

    async def _renew_all(self) -> None:
        for index in range(len(self.workers)):
            await self._replace(index)

    async def _watch_memory(self, most: int) -> None:
        while not self.stopping:
            await asyncio.sleep(LOOK_S)
            for index, worker in enumerate(self.workers):
                rss = worker.rss_bytes() if worker.ready else 0
                # With its predecessor still there, a third would only make it worse.
                if rss <= most or any(one.index == index for one in self._leaving):
                    continue
                log.info("worker has grown", extra={"worker": index, "rss_mb": rss // 10**6, "limit_mb": most // 10**6})
                if not await self._replace(index):
                    continue
                fresh = self.workers[index].rss_bytes()
                if fresh > most:
                    log.error(
                        "--recycle-rss-mb is %d, but a picker that has just started has %d MB: no worker is replaced "
                        "any more",
                        most // 10**6,
                        fresh // 10**6,
                    )
                    return

    async def _replace(self, index: int) -> bool:
        """Starts a successor, and has the old worker leave once that is ready. False where it does not get ready."""
        async with self._renewing:
            old = self.workers[index]
            if self.stopping or not old.ready:
                return False
            new = WorkerProcess(index, self._argv[index], old.port, self._memory)
            new.starts = old.starts
            ready = asyncio.Event()

            def on_ready(_: WorkerProcess) -> None:
                self.workers[index] = new
                self._leaving.append(old)
                old.leaving = True
                old.signal(LEAVE)
                log.info("worker is replaced", extra={"worker": index, "old_pid": old.pid, "worker_pid": new.pid})
                ready.set()
                if self.stopping:
                    new.signal(signal.SIGTERM)

            life = asyncio.ensure_future(new.live(on_ready))
            self._keepers.append(asyncio.ensure_future(self._keep(new, life)))
            waiting = asyncio.ensure_future(ready.wait())
            await asyncio.wait([life, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not ready.is_set():
                log.error("a successor has ended before it was ready", extra={"worker": index})
            return ready.is_set()

    async def _keep(self, worker: WorkerProcess, first: asyncio.Future[int] | None = None) -> None:
        """One life after the other. `first`: a successor's, which has begun."""
        backoff, loop = Backoff(), asyncio.get_running_loop()
        served_from = loop.time()

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

        while first is not None or not self.stopping:
            served_from = loop.time()
            code, first = await (first or worker.live(on_ready)), None
            if worker.leaving:
                self._leaving.remove(worker)
                log.info("worker has left", extra={"worker": worker.index, "exit_code": code})
                return
            if self.stopping or worker not in self.workers:
                return
            if not self._complete:
                raise WorkerStartError(worker.index, code)
            wait_s = backoff.after(loop.time() - served_from)
            log.error("worker has ended", extra={"worker": worker.index, "exit_code": code, "again_in_s": wait_s})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
