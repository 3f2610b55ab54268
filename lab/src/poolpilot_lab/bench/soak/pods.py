"""What pickers read of model servers, and nothing else: a metrics page and a list of models, the same for ever."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from poolpilot_lab.bench.cost.pages import metrics_page, model_list
from poolpilot_lab.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def pods(count: int) -> AsyncIterator[list[str]]:
    """Their addresses."""
    pages = {
        "/metrics": (metrics_page(), "text/plain; version=0.0.4; charset=utf-8"),
        "/v1/models": (model_list(), "application/json"),
    }

    async def answer(request: web.BaseRequest) -> web.Response:
        body, kind = pages.get(request.path, (b"", "text/plain"))
        return web.Response(body=body, headers={"content-type": kind}, status=200 if body else 404)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    ports = free_ports(count)
    try:
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        await runner.cleanup()
