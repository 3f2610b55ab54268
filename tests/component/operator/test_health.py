"""What picker pods say of their pools: when they are asked."""

from __future__ import annotations

import asyncio

from poolpilot_kube.objects import ObjectMeta, Pod, PodCondition, PodStatus
from poolpilot_operator.health import PickerHealth
from stand_in_pickers import picker_pods

_WAIT_S = 15.0


def pod(*, ready: bool) -> Pod:
    status = PodStatus("Running", "10.244.0.11", (PodCondition("Ready", str(ready)),))
    return Pod(ObjectMeta("picker-a", "serving", uid="1"), status)


async def test_a_pod_that_becomes_ready_is_asked_at_once() -> None:
    """Its Deployment ends the one before it a moment later."""
    heard = asyncio.Event()
    async with picker_pods() as pods, asyncio.timeout(_WAIT_S):
        one = await pods.started("picker-a")
        one.refuses = True
        health = PickerHealth(lambda _, pools: heard.set(), url_of=pods.url_of, first_retry_s=3600.0)
        health.follow(pod(ready=False))
        await heard.wait()
        heard.clear()
        one.refuses = False
        await one.serve("serving", "llama", 20_001)
        health.follow(pod(ready=True))
        await heard.wait()
        known = health.of(pod(ready=True))
        assert known is not None and known.pools is not None and known.pools["serving", "llama"].serving
        # It is asked again only when it becomes ready again, not whenever something is written to it.
        asked = one.asked
        one.refuses = True
        await one.serve("serving", "llama", 20_002)
        while not known.problem:
            await asyncio.sleep(0.005)
        refused = one.asked
        health.follow(pod(ready=True))
        await asyncio.sleep(0)
        assert not known.became_ready.is_set() and one.asked == refused > asked
        await health.close()
