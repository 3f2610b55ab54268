"""Everything of one trial, running: servers, and a picker and an Envoy for each contestant; one is awake at a time."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolpilot_lab.bench.cost import machine
from poolpilot_lab.bench.cost.cases import GIE_EPP, NO_PICKER, POOLPILOT, Contestant
from poolpilot_lab.bench.cost.gateway import Gateway, direct, gateway
from poolpilot_lab.bench.cost.pickers import RunningPicker, Scrape, gie_epp, llm_d_epp, poolpilot
from poolpilot_lab.bench.cost.tools import Servers, addresses
from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.gotools import NotAvailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from poolpilot_lab.bench.cost.cases import Choice, Trial
    from poolpilot_lab.bench.cost.machine import Cores


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant with what runs for it."""

    contestant: Contestant
    picker: RunningPicker | None
    gateway: Gateway
    servers: Servers
    endpoints: Sequence[str]

    @property
    def picker_pids(self) -> list[int]:
        """Of the picker and its children, now."""
        return machine.tree(self.picker.pids) if self.picker is not None else []

    @property
    def envoy_pids(self) -> list[int]:
        """Of its Envoy."""
        return [self.gateway.child.pid]

    def pause(self) -> None:
        """Neither scrapes nor answers until `wake`."""
        for pid in self.picker_pids:
            _signal(pid, signal.SIGSTOP)
        self.gateway.child.pause()

    def wake(self) -> None:
        """Undoes `pause`."""
        for pid in self.picker_pids:
            _signal(pid, signal.SIGCONT)
        self.gateway.child.resume()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """For one run."""
        self.wake()
        try:
            yield
        finally:
            self.pause()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Stage:
    """Starts contestants and stops them."""

    def __init__(self, program: Path, cores: Cores, choice: Choice, folder: Path, note: Callable[[str], None]) -> None:
        """`program`: of the servers; `note` is told in a sentence of who is left out."""
        self._program = program
        self._cores = cores
        self._choice = choice
        self._folder = folder
        self._note = note

    @contextlib.asynccontextmanager
    async def set_for(self, trial: Trial) -> AsyncIterator[list[Entry]]:
        """All contestants of the trial, asleep; ProcessError names what did not start."""
        folder = self._folder / f"{trial.case}-{trial.endpoints}"
        async with contextlib.AsyncExitStack() as stack:
            entries: list[Entry] = []
            servers: dict[bool, Servers] = {}
            for contestant in trial.contestants:
                selects = contestant.scrape is Scrape.ADAPTIVE
                where = addresses(trial.endpoints, self._choice.pod_port + selects)
                if selects not in servers:
                    servers[selects] = await self._servers(stack, where, folder, selects=selects)
                try:
                    entry = await self._entry(stack, contestant, where, servers[selects], folder / contestant.name)
                except NotAvailable as missing:
                    if self._choice.strict:
                        raise UsageError(f"--pickers: {contestant.picker}: {missing.reason}") from missing
                    self._note(f"{contestant.picker} is left out: {missing.reason}")
                    continue
                entry.pause()
                # Reached first on the way out: what sleeps could not end by itself.
                stack.callback(entry.wake)
                entries.append(entry)
            yield entries

    async def _servers(
        self, stack: contextlib.AsyncExitStack, where: Sequence[str], folder: Path, *, selects: bool
    ) -> Servers:
        with machine.started_on(self._cores.others):
            servers = Servers(self._program, where, folder / f"servers-{int(selects)}", selects=selects)
            return await stack.enter_async_context(servers)

    async def _entry(
        self,
        stack: contextlib.AsyncExitStack,
        contestant: Contestant,
        where: Sequence[str],
        servers: Servers,
        folder: Path,
    ) -> Entry:
        picker: RunningPicker | None = None
        if contestant.picker == NO_PICKER:
            front = direct(folder, "envoy", where)
        else:
            picker = await self._started(stack, contestant, where, folder)
            assert contestant.body_mode is not None
            front = gateway(folder, "envoy", picker.ports, contestant.body_mode)
        with machine.started_on(self._cores.others):
            await front.start()
        stack.push_async_callback(front.child.stop, 1.0)
        return Entry(contestant, picker, front, servers, where)

    async def _started(
        self, stack: contextlib.AsyncExitStack, contestant: Contestant, where: Sequence[str], folder: Path
    ) -> RunningPicker:
        """The picker on its core; what else was started for it (a Kubernetes API) goes to the others."""
        before = set(machine.tree([os.getpid()]))
        with machine.started_on(self._cores.picker):
            picker = await stack.enter_async_context(self._picker(contestant, where, folder))
        machine.move(set(machine.tree([os.getpid()])) - before - set(machine.tree(picker.pids)), self._cores.others)
        return picker

    def _picker(
        self, contestant: Contestant, where: Sequence[str], folder: Path
    ) -> contextlib.AbstractAsyncContextManager[RunningPicker]:
        if contestant.picker == POOLPILOT:
            assert contestant.transport is not None
            assert contestant.scrape is not None
            return poolpilot(where, contestant.transport, contestant.scrape, contestant.workers, folder)
        if contestant.picker == GIE_EPP:
            return gie_epp(where, folder, self._note)
        assert self._choice.epp is not None
        return llm_d_epp(self._choice.epp, where, folder)
