"""A picker that replaces its process behind a real Envoy: no request fails, in any mode, with the hardest policy."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import aiohttp

from gateway_envoy import Variant, fail_hard, start_gateway
from gateway_pods import sse_events
from gateway_program import ProgramPicker
from gateway_stage import MODES, WHOLE, Stage, rest

if TYPE_CHECKING:
    from pathlib import Path

    from gateway_pods import Pods

TIMES = 2


async def worker_pid(picker: ProgramPicker) -> int:
    url = f"http://127.0.0.1:{picker.admin}/debug/workers"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        [worker] = (await response.json())["workers"]
    pid: int = worker["pid"]
    return pid


async def test_replaced_under_load(transport: str, pods: Pods, envoy_binary: Path, tmp_path: Path) -> None:
    flags = ("--recycle-rss-mb", "100000")
    picker = await ProgramPicker(tmp_path, pods.addresses, transport, flags=flags).start()
    variants = [Variant(mode, picker.envoy(body_mode=MODES[mode]), fail_hard) for mode in MODES]
    gateway = await start_gateway(tmp_path, variants)
    stage = Stage(gateway, picker, picker, picker, picker)
    got: Counter[str] = Counter()
    running = True

    async def client(mode: str) -> None:
        while running:
            response = await stage.post(mode, "*=sse.10.5")
            whole = response.complete and response.body == b"".join(sse_events(10))
            got[f"{mode} {response.status if response.status != 200 or whole else 'truncated'}"] += 1

    async def more(count: int) -> None:
        before = got.total()
        async with asyncio.timeout(30):
            while got.total() < before + count:
                await asyncio.sleep(0.01)

    clients: list[asyncio.Future[None]] = []
    try:
        for mode in MODES:
            assert (await stage.post(mode)).status == 200
        clients += [asyncio.ensure_future(client(mode)) for mode in MODES for _ in range(3)]
        pids = [await worker_pid(picker)]
        for _ in range(TIMES):
            # Answers that take longer than the change of processes.
            begun = [await stage.streaming(mode) for mode in MODES for _ in range(3)]
            os.kill(picker.child.pid, signal.SIGHUP)
            async with asyncio.timeout(30):
                while (now := await worker_pid(picker)) == pids[-1]:
                    await asyncio.sleep(0.02)
            pids.append(now)
            assert [await rest(*one) for one in begun] == [WHOLE] * len(begun)
            await more(60)
            async with asyncio.timeout(60):
                while os.path.exists(f"/proc/{pids[-2]}"):
                    await asyncio.sleep(0.02)
        running = False
        await asyncio.gather(*clients)
        assert set(got) == {f"{mode} 200" for mode in MODES}, got
        await picker.settled()
    finally:
        for one in clients:
            one.cancel()
        await gateway.stop()
        await picker.child.stop(grace_s=5)
