"""Many exchanges at a time: the generated limits let them through, and the picker accounts for every one."""

from __future__ import annotations

import asyncio

from gateway_site import Lane, chat

OPEN_AT_ONCE = 1_100
"""More than Envoy's default of 1,024 requests per cluster."""


async def test_more_open_exchanges_than_envoys_default_limit(lane: Lane) -> None:
    async def one(number: int) -> int:
        # Streams opened in one burst are partly refused by grpc.aio; arrivals in life are not that close.
        await asyncio.sleep(number * 0.001)
        done = await lane.request_without_waiting("partial", chat(200), script="*=held")
        return done.response.status

    for pod in lane.pods:
        pod.let_go.clear()
    asking = [asyncio.ensure_future(one(number)) for number in range(OPEN_AT_ONCE)]
    await lane.picker.until(
        lambda: sum(lane.picker.in_flight().values()) == OPEN_AT_ONCE, "all are booked at the same time", within_s=60.0
    )
    shares = lane.picker.in_flight()
    assert max(shares.values()) - min(shares.values()) <= 2, f"equal pods, equal requests: {shares}"
    for pod in lane.pods:
        pod.let_go.set()
    assert set(await asyncio.gather(*asking)) == {200}
