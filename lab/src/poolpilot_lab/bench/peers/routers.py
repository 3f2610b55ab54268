"""Starts a contestant in front of running engines, until it is known to use them all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.bench.cost.gateway import BodyMode, gateway
from poolpilot_lab.bench.cost.peers import gie_epp, llm_d_epp
from poolpilot_lab.bench.peers.catalogue import GIE_EPP, LEAST_REQUEST, POOLPILOT, Contestant, Way
from poolpilot_lab.bench.peers.engines import STOP_S
from poolpilot_lab.bench.peers.install import installed
from poolpilot_lab.client.errors import ClientError
from poolpilot_lab.client.pool import HttpClient
from poolpilot_lab.processes import Child, envoy, envoy_is_ready, free_ports, stop_all
from poolpilot_lab.programs import HOST, START_S, announced, picker
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.render import to_yaml
from poolpilot_picker.envoy.settings import Baseline, EnvoySettings, HostPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

REFRESH_MS: Final = 50
"""Default of Go's pickers."""


@dataclass(frozen=True, slots=True)
class Running:
    """A contestant that takes requests at `address`."""

    address: HostPort
    children: tuple[Child, ...]
    """That must live while it runs."""
    pids: tuple[int, ...]
    """All between client and engine: Envoy and picker, or the router."""
    picker_pids: tuple[int, ...] = ()
    """Of those, the picker's."""


@contextlib.asynccontextmanager
async def running(
    contestant: Contestant, endpoints: Sequence[str], folder: Path, epp: Path | None, say: Callable[[str], None]
) -> AsyncIterator[Running]:
    """The contestant in front of `endpoints` (HOST:PORT); `say` hears of installations and builds.

    Raises NotAvailable if it cannot be had on this machine, ProcessError if it does not start.
    """
    match contestant.way:
        case Way.ROUTER:
            start = _router(contestant, endpoints, folder, say)
        case Way.ENVOY:
            start = _envoy_alone(contestant, endpoints, folder)
        case Way.PICKER if contestant is POOLPILOT:
            start = _poolpilot(endpoints, folder)
        case Way.PICKER:
            start = _go_picker(contestant, endpoints, folder, epp, say)
    async with start as one:
        yield one


@contextlib.asynccontextmanager
async def _router(
    contestant: Contestant, endpoints: Sequence[str], folder: Path, say: Callable[[str], None]
) -> AsyncIterator[Running]:
    assert contestant.distribution is not None
    python = await installed(contestant.distribution, say)
    port, metrics_port = free_ports(2)
    argv = contestant.distribution.argv(python, port, metrics_port, endpoints, contestant.flags)
    async with Child(contestant.name, argv, log=folder / "router.log", cwd=folder) as child:
        await child.ready(_knows(port, endpoints), START_S)
        yield Running(HostPort(HOST, port), (child,), (child.pid,))


class _Worker(msgspec.Struct):
    url: str
    is_healthy: bool = False


class _Workers(msgspec.Struct):
    workers: list[_Worker]


def healthy(page: bytes) -> set[str]:
    """HOST:PORT of the workers that a router's /workers page calls healthy; msgspec.MsgspecError if it is none."""
    listed = msgspec.json.decode(page, type=_Workers).workers
    return {worker.url.removeprefix("http://") for worker in listed if worker.is_healthy}


def _knows(port: int, endpoints: Sequence[str]) -> Callable[[], Awaitable[bool]]:
    """Whether the router on `port` has all of them as healthy workers."""

    async def check() -> bool:
        client = HttpClient(HOST, port)
        try:
            answer = await client.get("/workers")
            return answer.status == 200 and healthy(answer.body) >= set(endpoints)
        except (ClientError, msgspec.MsgspecError):
            return False
        finally:
            client.close()

    return check


@contextlib.asynccontextmanager
async def _envoy_alone(contestant: Contestant, endpoints: Sequence[str], folder: Path) -> AsyncIterator[Running]:
    baseline = Baseline.LEAST_REQUEST if contestant is LEAST_REQUEST else Baseline.ROUND_ROBIN
    listen, admin = _two_addresses()
    pods = tuple(HostPort.parse(endpoint, "endpoint") for endpoint in endpoints)
    settings = EnvoySettings(listen=listen, admin=admin, baseline=baseline, endpoints=pods)
    async with _envoy(settings, admin.port, folder) as child:
        yield Running(listen, (child,), (child.pid,))


@contextlib.asynccontextmanager
async def _poolpilot(endpoints: Sequence[str], folder: Path) -> AsyncIterator[Running]:
    eds = folder / "eds"
    child = picker(endpoints, eds, folder)
    try:
        place = await announced(child)
        listen, admin = _two_addresses()
        settings = EnvoySettings(listen=listen, admin=admin, pickers=(place,), eds_directory=str(eds))
        async with _envoy(settings, admin.port, folder) as front:
            yield Running(listen, (child, front), (child.pid, front.pid), (child.pid,))
    finally:
        await stop_all([child], STOP_S)


@contextlib.asynccontextmanager
async def _go_picker(
    contestant: Contestant, endpoints: Sequence[str], folder: Path, epp: Path | None, say: Callable[[str], None]
) -> AsyncIterator[Running]:
    if contestant is GIE_EPP:
        started = gie_epp(endpoints, refresh_ms=REFRESH_MS, workdir=folder, say=say)
    else:
        assert epp is not None
        started = llm_d_epp(epp, endpoints, refresh_ms=REFRESH_MS, workdir=folder)
    async with started as peer:
        # The only body mode that they know.
        front = gateway(folder, "envoy", (peer.port,), BodyMode.FULL_DUPLEX)
        try:
            await front.start()
            pids = (*peer.pids, front.child.pid)
            yield Running(HostPort.parse(front.address, "gateway"), (front.child,), pids, peer.pids)
        finally:
            await stop_all([front.child], STOP_S)


@contextlib.asynccontextmanager
async def _envoy(settings: EnvoySettings, admin_port: int, folder: Path) -> AsyncIterator[Child]:
    config = folder / "envoy.yaml"
    config.write_text(to_yaml(settings, bootstrap(settings)), encoding="utf-8")
    child = envoy(config, log=folder / "envoy.log")
    try:
        yield await child.start().ready(envoy_is_ready(admin_port), START_S)
    finally:
        await stop_all([child], STOP_S)


def _two_addresses() -> tuple[HostPort, HostPort]:
    listen, admin = free_ports(2)
    return HostPort(HOST, listen), HostPort(HOST, admin)
