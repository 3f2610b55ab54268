"""What stands for model servers: pages for the picker, the same for ever, and short answers for Envoy's clients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from aiohttp import web

from poolpilot_lab.bench.cost.pages import metrics_page, model_list
from poolpilot_lab.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


EVENTS: Final = 5
EVENT: Final = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
WHOLE: Final = b'{"choices":[{"message":{"content":"a word"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}'


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    """A few events to who wants a stream, else one document."""
    if b'"stream":true' not in await request.read():
        return web.Response(body=WHOLE, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    response.enable_chunked_encoding()
    # A client that has broken off is none of our business.
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for _ in range(EVENTS):
            await response.write(EVENT)
    return response


@contextlib.asynccontextmanager
async def pods(count: int) -> AsyncIterator[list[str]]:
    """Their addresses."""
    pages = {
        "/metrics": (metrics_page(), "text/plain; version=0.0.4; charset=utf-8"),
        "/v1/models": (model_list(), "application/json"),
    }

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            return await _answer(request)
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
