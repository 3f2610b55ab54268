"""`kubectl logs`: the API server asks the node for the output of a container, over HTTPS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from poolpilot_lab.kubelet.pod import Pod

_POLL_S: Final = 0.2
_READ_BYTES: Final = 65_536


class LogServer:
    """Serves while the context lasts. Whoever may reach the node's address may read: there are no secrets in a lab."""

    def __init__(self, find: Callable[[str, str], Pod | None]) -> None:
        """`find`: the pod of a namespace and name that is on this node."""
        self._find = find
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self, host: str, context: ssl.SSLContext) -> int:
        """The port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, ssl_context=context)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Ends open answers."""
        await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info
        pod = self._find(name["namespace"], name["pod"])
        before = request.query.get("previous") == "true"
        path = pod.log_file(name["container"], -2 if before else -1) if pod is not None else None
        if path is None:
            raise web.HTTPNotFound(text=f"no output of {name['container']} in {name['namespace']}/{name['pod']}")
        answer = web.StreamResponse(headers={"content-type": "text/plain; charset=utf-8"})
        await answer.prepare(request)
        tail = request.query.get("tailLines")
        with path.open("rb") as file:
            if tail is not None:
                file.seek(_tail_at(path, int(tail)))
            while True:
                while chunk := file.read(_READ_BYTES):
                    await answer.write(chunk)
                if request.query.get("follow") != "true" or self._find(name["namespace"], name["pod"]) is not pod:
                    break
                await asyncio.sleep(_POLL_S)
        return answer


def _tail_at(path: Path, lines: int) -> int:
    """Where the last so many lines begin."""
    content = path.read_bytes()
    at = len(content) - (1 if content.endswith(b"\n") else 0)
    for _ in range(lines):
        at = content.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1 if lines else len(content)
