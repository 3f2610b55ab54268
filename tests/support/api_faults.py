"""A proxy before a real API server that does to its clients what networks and busy servers do.

Plain HTTP on loopback in front, TLS and the given user behind. A test says what is to go wrong and waits for what comes
of it; nothing here waits for a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
from aiohttp import web

from poolpilot_kube.access import Access, from_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_DROPPED: Final = {"transfer-encoding", "content-length", "connection", "content-encoding", "host", "authorization"}


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true" or self.query.get("watch") == "True"


@dataclass
class FaultProxy:
    """What is to go wrong now, and what was asked so far."""

    behind: Access
    asked: list[Asked] = field(default_factory=list)
    refusals: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    """(status, headers) of the next answers, one each."""
    refuse_always: tuple[int, dict[str, str]] | None = None
    refuse_watches: tuple[int, dict[str, str]] | None = None
    transform: Callable[[bytes], list[bytes]] = lambda line: [line]
    """What becomes of a line of a watch."""
    transform_each: Callable[[], Callable[[bytes], list[bytes]]] | None = None
    """Makes a transform for each watch that is opened, before the common one: for faults that remember lines, for no
    server sends in one watch what belongs into another."""
    silent: bool = False
    """Watches are accepted, and nothing comes."""
    ends: bool = False
    """Watches are accepted and end, politely and without a word."""
    writes_left: int | None = None
    """How many writes still get through; the others are refused (503)."""
    held: asyncio.Event | None = None
    """Answers wait for it."""
    slow_s: float = 0.0
    """Every answer comes that much later."""
    done: Counter[str] = field(default_factory=Counter)
    """How often what has gone wrong: refused, cut, silenced, altered, held, slowed."""
    url: str = ""
    _watches: set[asyncio.Task[Any]] = field(default_factory=set)
    _said: asyncio.Condition = field(default_factory=asyncio.Condition)
    _injected: list[asyncio.Queue[bytes | None]] = field(default_factory=list)

    @property
    def lists(self) -> list[Asked]:
        return [one for one in self.asked if one.method == "GET" and not one.watch]

    @property
    def watches(self) -> list[Asked]:
        return [one for one in self.asked if one.watch]

    async def until(self, check: Callable[[], bool]) -> None:
        """Waits until something is asked that makes the check true."""
        async with self._said:
            await self._said.wait_for(check)

    async def cut(self) -> None:
        """Breaks every open watch in the middle of its answer."""
        for task in list(self._watches):
            task.cancel()
            self.done["cut"] += 1
        await asyncio.gather(*self._watches, return_exceptions=True)

    def inject(self, event: dict[str, Any]) -> None:
        """An event into every open watch."""
        for queue in self._injected:
            queue.put_nowait(json.dumps(event).encode() + b"\n")

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    # ---- the proxy

    async def handle(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.path, dict(request.query))
        async with self._said:
            self.asked.append(asked)
            self._said.notify_all()
        refusal = self.refuse_always or (self.refuse_watches if asked.watch else None)
        if refusal is None and self.refusals:
            refusal = self.refusals.popleft()
        if refusal is None and self.writes_left is not None and asked.method != "GET":
            refusal = (503, {}) if self.writes_left <= 0 else None
            self.writes_left -= 1
        if refusal is not None:
            status, headers = refusal
            self.done["refused"] += 1
            body = {"kind": "Status", "code": status, "reason": "Fault", "message": "the proxy refuses"}
            return web.json_response(body, status=status, headers=headers)
        if self.held is not None and not self.held.is_set():
            self.done["held"] += 1
            await self.held.wait()
        if self.slow_s:
            self.done["slowed"] += 1
            await asyncio.sleep(self.slow_s)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _DROPPED}
        async with session.request(
            request.method,
            f"{self.behind.server}{request.path_qs}",
            data=await request.read(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _DROPPED}
            if not asked.watch or not answer.ok:
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
            return await self._stream(request, answer, kept)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        if self.ends:
            return response
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._injected.append(queue)
        pump = asyncio.create_task(self._pump(answer, queue))
        sender = asyncio.create_task(self._send(response, queue))
        self._watches.add(sender)
        async with self._said:
            self._said.notify_all()
        try:
            await asyncio.wait([sender])
            if sender.cancelled() and request.transport is not None:
                request.transport.abort()
        finally:
            pump.cancel()
            sender.cancel()
            self._watches.discard(sender)
            self._injected.remove(queue)
        return response

    async def _pump(self, answer: aiohttp.ClientResponse, queue: asyncio.Queue[bytes | None]) -> None:
        rest = b""
        own = self.transform_each() if self.transform_each is not None else _as_it_is
        with contextlib.suppress(aiohttp.ClientError):
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    sent = [one for mine in own(line + b"\n") for one in self.transform(mine)]
                    self.done["altered"] += sent != [line + b"\n"]
                    for one in sent:
                        queue.put_nowait(one)
        queue.put_nowait(None)

    async def _send(self, response: web.StreamResponse, queue: asyncio.Queue[bytes | None]) -> None:
        while (line := await queue.get()) is not None:
            if self.silent:
                self.done["silenced"] += 1
            else:
                await response.write(line)


def _as_it_is(line: bytes) -> list[bytes]:
    return [line]


@contextlib.asynccontextmanager
async def fault_proxy(kubeconfig: Path) -> AsyncIterator[FaultProxy]:
    """A proxy to the API server of a kubeconfig, for its user, on a free port of loopback."""
    behind = from_kubeconfig(kubeconfig)
    proxy = FaultProxy(behind)
    connector = aiohttp.TCPConnector(ssl=behind.tls if behind.tls is not None else True, limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
        app = web.Application(client_max_size=2**24)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await proxy.handle(session, request)

        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            [address] = runner.addresses
            proxy.url = f"http://127.0.0.1:{address[1]}"
            yield proxy
        finally:
            await proxy.cut()
            await runner.cleanup()


def plain_access(proxy: FaultProxy) -> Access:
    """Access through the proxy."""
    return Access(proxy.url, None, lambda: None)


def plain_kubeconfig(proxy: FaultProxy, path: Path) -> Path:
    """The same as a file."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "clusters": [{"name": "proxy", "cluster": {"server": proxy.url}}],
        "users": [{"name": "proxy", "user": {}}],
    }
    path.write_bytes(msgspec.json.encode(config))
    return path
