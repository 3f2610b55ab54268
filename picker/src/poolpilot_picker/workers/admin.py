"""The admin port of several workers: asks each for its page and shows them as one. Read-only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from poolpilot_picker.admin.serving import PageServer, json_response
from poolpilot_picker.workers.merge import merged_decisions, merged_endpoints, merged_readiness
from poolpilot_picker.workers.metrics import MetricsBook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_picker.workers.process import WorkerProcess

PATIENCE_S: Final = 5.0
"""For one worker's page; one that hangs must not hide the others."""

Answer = tuple[int, bytes]
"""(status, body)."""


class WorkersAdmin:
    """Serves the views of all workers."""

    def __init__(
        self,
        address: tuple[str, int],
        workers: Sequence[WorkerProcess],
        complete: Callable[[], bool],
        draining: Callable[[], bool],
    ) -> None:
        """`complete()`: all workers have been ready once. `draining()`: the end has begun."""
        self._workers = workers
        self._complete = complete
        self._draining = draining
        self._book = MetricsBook()
        self._one_at_a_time = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._server = PageServer(
            address,
            {
                "/metrics": self._metrics,
                "/healthz": self._healthz,
                "/readyz": self._readyz,
                "/debug/decisions": self._decisions,
                "/debug/endpoints": self._endpoints,
                "/debug/config": self._config,
                "/debug/workers": self._table,
            },
        )

    @property
    def port(self) -> int:
        """That it listens on, 0 before it does."""
        return self._server.port

    async def start(self) -> int:
        """Listens; returns the port chosen. Raises StartError where that is not possible."""
        port = await self._server.start()
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))
        return port

    async def stop(self) -> None:
        """Closes the port."""
        await self._server.stop()
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ---- asking the workers

    async def _ask(self, worker: WorkerProcess, path: str) -> Answer | None:
        """One worker's page; None where it does not answer."""
        if not worker.admin_port or self._session is None:
            return None
        try:
            async with self._session.get(f"http://127.0.0.1:{worker.admin_port}{path}") as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _ask_all(self, path: str) -> dict[int, Answer]:
        """Pages of the workers that answer, by index."""
        answers = await asyncio.gather(*(self._ask(worker, path) for worker in self._workers))
        return {index: answer for index, answer in enumerate(answers) if answer is not None}

    async def _json_of_all(self, request: web.Request) -> dict[int, Any] | web.Response:
        """Decoded pages by index; or what to answer because a worker refused the query, or none was there."""
        answers = await self._ask_all(request.path_qs)
        if not answers:
            return json_response({"error": "no worker answers"}, 503)
        for status, body in answers.values():
            if status != 200:
                return web.Response(body=body, status=status, content_type="application/json")
        return {index: msgspec.json.decode(body) for index, (_, body) in answers.items()}

    # ---- pages

    async def _metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        async with self._one_at_a_time:
            pids = {worker.index: worker.pid for worker in self._workers}
            answers = await self._ask_all("/metrics")
            pages = {index: (pids[index], body.decode()) for index, (status, body) in answers.items() if status == 200}
            states = [(worker.index, worker.ready, worker.restarts) for worker in self._workers]
            body = await asyncio.to_thread(self._written, encoder, pages, states)
        return web.Response(body=body, headers={"content-type": content_type})

    def _written(
        self,
        encoder: Callable[[Any], bytes],
        pages: dict[int, tuple[int, str]],
        states: list[tuple[int, bool, int]],
    ) -> bytes:
        self._book.take(pages, states)
        return encoder(self._book)

    async def _readiness(self) -> dict[str, Any]:
        answers = await self._ask_all("/readyz")
        told = {index: msgspec.json.decode(body) for index, (_, body) in answers.items()}
        states = {worker.index: worker.state for worker in self._workers}
        return merged_readiness(told, states, complete=self._complete(), draining=self._draining())

    async def _healthz(self, _: web.Request) -> web.Response:
        readiness = await self._readiness()
        return web.Response(text="ok\n") if readiness["alive"] else json_response(readiness, 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        readiness = await self._readiness()
        return json_response(readiness, 200 if readiness["ready"] else 503)

    async def _decisions(self, request: web.Request) -> web.Response:
        told = await self._json_of_all(request)
        if isinstance(told, web.Response):
            return told
        return json_response(merged_decisions(told, int(request.query.get("limit", "20"))))

    async def _endpoints(self, request: web.Request) -> web.Response:
        told = await self._json_of_all(request)
        return told if isinstance(told, web.Response) else json_response(merged_endpoints(told))

    async def _config(self, request: web.Request) -> web.Response:
        """Of the first worker that answers: all read the same file."""
        told = await self._json_of_all(request)
        return told if isinstance(told, web.Response) else json_response(told[min(told)])

    async def _table(self, _: web.Request) -> web.Response:
        return json_response(
            {
                "workers": [
                    {
                        "worker": worker.index,
                        "state": worker.state,
                        "pid": worker.pid,
                        "port": worker.port,
                        "admin_port": worker.admin_port,
                        "restarts": worker.restarts,
                    }
                    for worker in self._workers
                ]
            }
        )
