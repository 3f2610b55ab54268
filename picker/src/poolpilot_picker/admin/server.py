"""The admin HTTP port: /metrics, /healthz, /readyz and the /debug pages. Read-only, never on the data port."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from poolpilot_kube.names import POOLS_PATH
from poolpilot_picker.admin.page import Page, ProcessFacts, snapshot
from poolpilot_picker.admin.serving import PageServer, json_response
from poolpilot_picker.admin.views import Readiness, endpoint_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry

    from poolpilot_picker.admin.board import PoolBoard
    from poolpilot_picker.flow.pool import Pool

MOST_RECEIPTS: Final = 1_000
MOST_WAIT_S: Final = 60
RECEIPT_FILTERS: Final = ("limit", "request_id", "endpoint", "model", "pool")


def _bad(parameter: str, value: str, allowed: str) -> web.Response:
    return json_response({"error": f"query parameter {parameter} is {value!r}; allowed is {allowed}"}, 400)


class AdminServer:
    """Serves the views of some pools."""

    def __init__(
        self,
        address: tuple[str, int],
        pools: Callable[[], list[Pool]],
        events: Callable[[], Sequence[tuple[str, CollectorRegistry]]],
        facts: Callable[[], ProcessFacts],
        readiness: Callable[[], Readiness],
        now: Callable[[], float],
        describe: Callable[[], dict[str, Any]],
        board: PoolBoard | None = None,
    ) -> None:
        """`events`: registries with their pools, as `Page` has them; `board`: where there are several pools."""
        self._pools = pools
        self._events = events
        self._facts = facts
        self._readiness = readiness
        self._now = now
        self._describe = describe
        pages = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/debug/decisions": self._decisions,
            "/debug/endpoints": self._endpoints,
            "/debug/config": self._config,
        }
        self._board = board
        if board is not None:
            pages[POOLS_PATH] = self._standing
        self._server = PageServer(address, pages)

    @property
    def port(self) -> int:
        """That it listens on, 0 before it does."""
        return self._server.port

    async def start(self) -> int:
        """Listens; returns the port chosen. Raises StartError where that is not possible."""
        return await self._server.start()

    async def stop(self) -> None:
        """Closes the port."""
        await self._server.stop()

    async def _metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        pools = [await snapshot(pool, self._now()) for pool in self._pools()]
        serving = self._readiness().pools if self._board is not None else {}
        body = await asyncio.to_thread(encoder, Page(self._events(), pools, self._facts(), serving))
        return web.Response(body=body, headers={"content-type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        readiness = self._readiness()
        return web.Response(text="ok\n") if readiness.alive else json_response(readiness, 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        readiness = self._readiness()
        return json_response(readiness, 200 if readiness.ready else 503)

    async def _decisions(self, request: web.Request) -> web.Response:
        """Newest receipts: ?limit=, ?request_id=, ?endpoint=, ?model=, ?pool=."""
        query = request.query
        for name, value in query.items():
            if name not in RECEIPT_FILTERS or len(query.getall(name)) > 1:
                return _bad(name, value, f"each of {', '.join(RECEIPT_FILTERS)} once")
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MOST_RECEIPTS):
            return _bad("limit", limit, f"a whole number from 1 to {MOST_RECEIPTS}")
        pools = self._pools()
        wanted = query.get("pool")
        if wanted is not None and wanted not in {pool.name for pool in pools}:
            return _bad("pool", wanted, "one of " + ", ".join(sorted(pool.name for pool in pools)))
        # Receipts carry the monotonic clock; people read the wall clock.
        offset = time.time() - self._now() / 1000.0
        found = [
            {"time_unix_s": round(offset + receipt.at_ms / 1000.0, 3), **msgspec.to_builtins(receipt)}
            for pool in pools
            if wanted is None or pool.name == wanted
            for receipt in pool.receipts.newest(
                int(limit),
                request_id=query.get("request_id", ""),
                endpoint=query.get("endpoint", ""),
                model=query.get("model", ""),
            )
        ]
        found.sort(key=lambda receipt: -receipt["at_ms"])
        return json_response({"decisions": found[: int(limit)]})

    async def _endpoints(self, request: web.Request) -> web.Response:
        for name, value in request.query.items():
            return _bad(name, value, "nothing: this page shows every pool")
        return json_response({"pools": {pool.name: await endpoint_rows(pool, self._now()) for pool in self._pools()}})

    async def _standing(self, request: web.Request) -> web.Response:
        """Which pools are served; ?since=VERSION&wait=SECONDS waits for another version, or until time is up."""
        board = self._board
        assert board is not None
        query = request.query
        for name, value in query.items():
            if name not in ("since", "wait") or len(query.getall(name)) > 1:
                return _bad(name, value, "each of since, wait once")
        since, wait = query.get("since", ""), query.get("wait", "0")
        if since and not (since.isascii() and since.isdigit() and len(since) < 20):
            return _bad("since", since, "a version that this page gave")
        if not (wait.isascii() and wait.replace(".", "", 1).isdigit() and float(wait) <= MOST_WAIT_S):
            return _bad("wait", wait, f"a number of seconds from 0 to {MOST_WAIT_S}")
        if since:
            await board.other_than(int(since), float(wait))
        return json_response(board.page())

    async def _config(self, _: web.Request) -> web.Response:
        return json_response(self._describe())
