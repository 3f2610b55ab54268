"""Read-only pages for probes and people: /healthz, /readyz, /metrics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from aiohttp import web

from poolpilot_operator import metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from poolpilot_operator.app import Operator

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def admin(operator: Operator, host: str | None, port: int) -> AsyncIterator[int]:
    """Serves until the context ends; gives the port. Raises OSError where the port is taken."""

    async def healthz(_: web.Request) -> web.Response:
        # A loop that answers is alive. An API server that does not answer is no reason to be started again.
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        problems = [
            f"{store.resource}: {status.problem or 'not listed yet'}"
            for store in operator.stores
            for status in store.status
            if not status.synced or status.problem
        ]
        lines = [("leading" if operator.leading else "standby") if operator.synced.is_set() else "not ready", *problems]
        return web.Response(text="\n".join(lines) + "\n", status=200 if operator.synced.is_set() else 503)

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(operator), headers={"content-type": _CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
