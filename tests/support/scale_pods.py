"""What answers at the addresses of pods in `operator_scale.py`: engines, and picker pods that are not measured.

A program: `scale_pods.py engines PORT`, or `scale_pods.py pickers KUBECONFIG ADDRESS=PICKER...`. An engine gives the
recorded pages of a real one, whichever address it is asked at. A picker pod knows its pools as a picker does, from
their Services, and tells of them as a picker does; it serves nobody.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from engine_pages import MODELS, answer, page
from poolpilot_kube.access import from_kubeconfig
from poolpilot_kube.api import KubeApi
from poolpilot_kube.names import ADMIN_PORT, MANAGED_BY, MANAGED_BY_LABEL, PICKER_LABEL, POOLS_PATH
from poolpilot_kube.objects import SERVICES, Service
from poolpilot_kube.watch import Change, Watcher
from poolpilot_picker.admin.board import PoolBoard, PoolStanding
from poolpilot_picker.sources.picker_services import settle
from poolpilot_picker.sources.rested import Rested

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_kube.objects import Key

ENGINE_PAGE: Final = "vllm-0.32/metrics-idle.txt"


class _Engine(asyncio.Protocol):
    """One connection. A GET is short enough to come in one piece."""

    pages: Final = {True: answer(page(ENGINE_PAGE)), False: answer(MODELS, content_type="application/json")}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self.pages[b" /metrics" in data[:64]])


async def engines(port: int) -> None:
    """At every address of this network."""
    server = await asyncio.get_running_loop().create_server(_Engine, "0.0.0.0", port, backlog=4096)
    await server.serve_forever()


class StandIns:
    """Picker pods of several Pickers."""

    def __init__(self, picker_at: dict[str, str]) -> None:
        self._picker_at = picker_at
        self._boards = {picker: PoolBoard() for picker in picker_at.values()}
        self._services: defaultdict[str, dict[Key, Service]] = defaultdict(dict)
        self._told = Rested(self._tell, lambda: time.monotonic() * 1000.0)

    def heard(self, changes: Sequence[Change[Service]]) -> None:
        """Services of pools came, changed or went."""
        for change in changes:
            for one in (change.old, change.new):
                picker = one.metadata.labels.get(PICKER_LABEL) if one is not None else None
                if picker in self._boards:
                    self._services[picker].pop(change.key, None)
                    if one is change.new and one is not None:
                        self._services[picker][change.key] = one
        self._told.soon()

    def _tell(self) -> None:
        for picker, board in self._boards.items():
            ports = settle(self._services[picker].values(), {}).ports
            board.put([PoolStanding(*key, port=port, serving=True, endpoints=1) for key, port in ports.items()])

    async def answer(self, request: web.Request) -> web.Response:
        """POOLS_PATH of the pod that was asked."""
        assert request.transport is not None
        board = self._boards[self._picker_at[request.transport.get_extra_info("sockname")[0]]]
        if "since" in request.query:
            await board.other_than(int(request.query["since"]), float(request.query["wait"]))
        return web.Response(body=msgspec.json.encode(board.page()), content_type="application/json")


async def pickers(kubeconfig: Path, picker_at: dict[str, str]) -> None:
    """At these addresses."""
    pods = StandIns(picker_at)
    app = web.Application()
    app.router.add_get(POOLS_PATH, pods.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for address in picker_at:
        await web.TCPSite(runner, address, ADMIN_PORT).start()
    async with KubeApi(from_kubeconfig(kubeconfig)) as api:
        await Watcher(api, SERVICES, pods.heard, labels=f"{MANAGED_BY_LABEL}={MANAGED_BY}").run()


if __name__ == "__main__":
    role, first, *rest = sys.argv[1:]
    if role == "engines":
        asyncio.run(engines(int(first)))
    else:
        asyncio.run(pickers(Path(first), dict(one.split("=", 1) for one in rest)))
