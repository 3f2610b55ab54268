"""Pods of a Picker on an API server without kubelets: each answers /pools on a port of loopback."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from poolpilot_kube.objects import Pod


class PickerPod:
    """One. `serve` and `drop` are what it says from then on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.asked = 0
        self.refuses = False
        self.page = ""
        """What /metrics says."""
        self._pools: dict[tuple[str, str], dict[str, Any]] = {}
        self._refusal = ""
        self._version = 1
        self._news = asyncio.Condition()

    async def serve(
        self, namespace: str, name: str, port: int, *, serving: bool = True, reason: str = "", **more: Any
    ) -> None:
        """The pool is known on this port. `more`: other fields of its entry; it has one endpoint."""
        entry = {"namespace": namespace, "name": name, "port": port, "serving": serving, "reason": reason}
        entry |= {"endpoints": 1, **more}
        await self._set((namespace, name), entry)

    async def drop(self, namespace: str, name: str) -> None:
        """The pool is not known any more."""
        await self._set((namespace, name), None)

    async def refuse(self, why: str) -> None:
        """The newest configuration is not in force; empty: it is."""
        async with self._news:
            self._refusal = why
            self._version += 1
            self._news.notify_all()

    async def _set(self, key: tuple[str, str], entry: dict[str, Any] | None) -> None:
        async with self._news:
            if entry is None:
                self._pools.pop(key, None)
            else:
                self._pools[key] = entry
            self._version += 1
            self._news.notify_all()

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(status=500) if self.refuses else web.Response(text=self.page)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.refuses:
            return web.Response(status=500)
        if request.query.get("since") == str(self._version):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(request.query.get("wait", "0"))), self._news:
                    await self._news.wait()
        page = {"version": self._version, "pools": list(self._pools.values()), "configuration": self._refusal}
        return web.json_response(page)


class PickerPods:
    """All of a test."""

    def __init__(self) -> None:
        self._pods: dict[str, PickerPod] = {}
        self._runners: list[web.AppRunner] = []

    def url_of(self, pod: Pod) -> str:
        """Where the pod of this name answers; a port that nobody listens on for others."""
        found = self._pods.get(pod.metadata.name)
        return found.url if found is not None else "http://127.0.0.1:9"

    async def started(self, name: str) -> PickerPod:
        """A pod of this name begins to answer."""
        pod = self._pods[name] = PickerPod(name)
        app = web.Application()
        app.router.add_get("/pools", pod.answer)
        app.router.add_get("/metrics", pod.metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        pod.url = f"http://{host}:{port}"
        return pod

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def picker_pods() -> AsyncIterator[PickerPods]:
    """For one test."""
    pods = PickerPods()
    try:
        yield pods
    finally:
        await pods.stop()
