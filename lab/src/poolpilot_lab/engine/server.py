"""`poolpilot engine`: a stand-in vLLM server. `EngineServer` runs one on any event loop, `main` one as a process."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from typing import TYPE_CHECKING

from poolpilot_lab.engine.frontend import Frontend
from poolpilot_lab.engine.http import protocol_factory
from poolpilot_lab.engine.options import EngineConfig, OptionsError, read_config

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Engine

_BACKLOG = 4096


class EngineServer:
    """One engine behind HTTP. Several may run on one event loop."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.port = config.port
        """the port listened on, once started"""
        self._frontend: Frontend | None = None
        self._server: asyncio.Server | None = None
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens; raises OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        self._frontend = Frontend(self.config, loop, self._restart)
        self._server = await loop.create_server(
            protocol_factory(self._frontend), self.config.host, self.port, backlog=_BACKLOG, reuse_address=True
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening, gives running requests `shutdown_timeout` seconds, and breaks off what is left."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
            self._restarting = None
        frontend = self._frontend
        if frontend is None:
            return
        if self._server is not None:
            self._server.close()
        for connection in list(frontend.connections):
            connection.close_when_idle()
        await frontend.drained(self.config.shutdown_timeout)
        await self._down()

    @property
    def running(self) -> bool:
        """Whether it listens: not before `start`, while it restarts, or after `close`."""
        return self._server is not None

    @property
    def engine(self) -> Engine:
        """The engine of the running server; a restart replaces it."""
        assert self._frontend is not None, "the server is not running"
        return self._frontend.engine

    @property
    def frontend(self) -> Frontend:
        """The API server; a restart replaces it."""
        assert self._frontend is not None, "the server is not running"
        return self._frontend

    async def _down(self) -> None:
        server, self._server = self._server, None
        frontend, self._frontend = self._frontend, None
        if server is not None:
            server.close()
        if frontend is not None:
            frontend.stop()
        if server is not None:
            await server.wait_closed()

    def _restart(self, seconds: float) -> None:
        if self._restarting is None:
            self._restarting = asyncio.get_running_loop().create_task(self._restart_after(seconds))

    async def _restart_after(self, seconds: float) -> None:
        # Let the answer to the request that asked for the restart leave first.
        await asyncio.sleep(0)
        await self._down()
        await asyncio.sleep(seconds)
        await self.start()
        self._restarting = None


async def _serve(config: EngineConfig) -> int:
    server = EngineServer(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await server.start()
    except OSError as error:
        print(f"poolpilot engine: cannot listen on {config.host}:{config.port}: {error.strerror}", file=sys.stderr)
        return 1
    ready = {"event": "ready", "host": config.host, "port": server.port, "model": config.names[0]}
    print(json.dumps(ready), flush=True)
    await stop.wait()
    await server.close()
    return 0


def tune_collector() -> None:
    """Keeps garbage collection out of the steps of a process that only serves.

    A full collection takes longer than a step; what was imported is never garbage, and requests leave few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def main(argv: list[str]) -> int:
    """Entry point of `poolpilot engine`: 0 after SIGTERM or SIGINT, 2 for a wrong option, 1 when the port is taken."""
    import uvloop

    try:
        config = read_config(argv)
    except OptionsError as error:
        print(f"poolpilot engine: {error}", file=sys.stderr)
        return 2
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))
