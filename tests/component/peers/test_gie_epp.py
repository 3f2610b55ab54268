"""The endpoint picker of GIE, for real: it reads its pool from Kubernetes, its load from the servers, and it picks."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp.web
import pytest

from extproc_client import DUPLEX, DataPlane, chat, destination
from poolpilot_lab.bench.cost.peers import gie_epp
from poolpilot_lab.bench.cost.peers.picks import unknown
from poolpilot_lab.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOSTS = ("127.0.1.1", "127.0.1.2")


class Server:
    """A model server that has nothing but a metrics page."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._pages = 0
        self._read = asyncio.Condition()

    async def page(self, _: aiohttp.web.Request) -> aiohttp.web.Response:
        """As vLLM writes it."""
        async with self._read:
            self._pages += 1
            self._read.notify_all()
        labels = '{model_name="m"}'
        values = {"num_requests_waiting": self.waiting, "num_requests_running": 0, "kv_cache_usage_perc": 0.1}
        lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}\n" for name, value in values.items()]
        lines.append('# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="16"} 1\n')
        return aiohttp.web.Response(text="".join(lines))

    async def believed(self) -> None:
        """Until the picker has taken in what the page says now: it asks for the next one only then, or gives one up."""
        async with self._read, asyncio.timeout(30):
            seen = self._pages
            await self._read.wait_for(lambda: self._pages >= seen + 3)


@contextlib.asynccontextmanager
async def serving(server: Server, host: str, port: int) -> AsyncIterator[None]:
    app = aiohttp.web.Application()
    app.router.add_get("/metrics", server.page)
    runner = aiohttp.web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await aiohttp.web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


async def placed(plane: DataPlane, text: str) -> str:
    """Where a request goes, by one exchange as Envoy has it."""
    stream = plane.open(DUPLEX, DUPLEX)
    await stream.headers()
    await stream.body(chat(text))
    where = destination(await stream.must_read())
    stream.reset()
    return where


@pytest.mark.cluster
@pytest.mark.usefixtures("built_gie_epp")
async def test_it_picks_among_the_endpoints_by_their_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [port] = free_ports(1, HOSTS[0])
    endpoints = [f"{host}:{port}" for host in HOSTS]
    busy, idle = Server(waiting=9), Server(waiting=0)
    async with serving(busy, HOSTS[0], port), serving(idle, HOSTS[1], port):
        async with gie_epp(endpoints, refresh_ms=50, workdir=Path("work")) as picker, DataPlane(picker.port) as plane:
            [pid] = picker.pids
            assert b"epp" in (await asyncio.to_thread(_command, pid)) and picker.log.exists()
            await asyncio.gather(busy.believed(), idle.believed())
            assert {await placed(plane, f"Question {n}") for n in range(8)} == {endpoints[1]}
            busy.waiting, idle.waiting = 0, 9
            await asyncio.gather(busy.believed(), idle.believed())
            assert {await placed(plane, f"Query {n}") for n in range(8)} == {endpoints[0]}
            nobody = f"127.0.1.3:{port}"
            assert await unknown(picker.port, [*endpoints, nobody], 0.0) == [nobody]
        assert not picker_lives(pid)


def _command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def picker_lives(pid: int) -> bool:
    try:
        return bool(_command(pid))
    except FileNotFoundError:
        return False
