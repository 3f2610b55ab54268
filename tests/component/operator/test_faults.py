"""The operator before an API server that has faults: it converges, and then it writes nothing any more."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from api_faults import FaultProxy, fault_proxy, plain_access
from operator_stage import eventually, running_operator, true
from poolpilot_kube.watch import WatchSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_operator.app import Operator
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

POOL = "inference.networking.k8s.io/v1"
IMPATIENT = WatchSettings(silence_s=1.0, relist_s=3.0, first_backoff_s=0.05, most_backoff_s=0.3)
MOST_WRITES = 2
"""Of one object, after all is as it should be."""


class Story:
    """Changes of a user while something goes wrong, and what must come of them."""

    def __init__(self, cluster: Cluster, pods: PickerPods, home: str) -> None:
        self.cluster, self.pods, self.home = cluster, pods, home

    async def begin(self) -> None:
        await self.cluster.made_picker(self.home)
        for name in ("stays", "goes", "moves", "unlabelled"):
            await self.cluster.made_pool(self.home, name)

    async def go_on(self) -> None:
        await self.cluster.delete(POOL, "InferencePool", self.home, "goes")
        await self.cluster.made_pool(self.home, "moves", endpointPickerRef={"name": "moved", "port": {"number": 1}})
        await self.cluster.made_pool(self.home, "unlabelled", picker=None)
        await self.cluster.made_pool(self.home, "comes")
        await self.cluster.made_picker(self.home, replicas=3)

    async def first_act(self) -> bool:
        services = [await self.cluster.service(self.home, f"{n}-picker") for n in ("stays", "goes", "moves")]
        return all(services) and await self.replicas() == 1

    async def last_act(self) -> bool:
        service = self.cluster.service
        there = [await service(self.home, name) for name in ("stays-picker", "moved", "comes-picker")]
        gone = [await service(self.home, f"{name}-picker") for name in ("goes", "moves", "unlabelled")]
        slices = [await self.cluster.slice_addresses(self.home, one) for one in ("goes-picker", "moves-picker")]
        counts = (await self.cluster.picker(self.home, "default")).get("status", {}).get("pools", {})
        wanted = all(there) and not any(gone) and slices == [None, None] and await self.replicas() == 3
        return wanted and counts.get("served") == 3

    async def replicas(self) -> int | None:
        found = await self.cluster.get("apps/v1", "Deployment", self.home, "poolpilot-default")
        return None if found is None else found["spec"]["replicas"]


@pytest.fixture
def story(cluster: Cluster, pods: PickerPods, home: str) -> Story:
    return Story(cluster, pods, home)


def writes(proxy: FaultProxy, since: int = 0) -> Counter[str]:
    """By object."""
    done = (one.path for one in proxy.asked[since:] if one.method in {"PATCH", "POST", "PUT", "DELETE"})
    return Counter(path for path in done if "/leases" not in path)


async def calm(operator: Operator, proxy: FaultProxy) -> None:
    """Looks at everything again: whatever it is told, nothing is to be written."""
    begun = len(proxy.asked)
    for _ in range(3):
        for pool in operator.world.pools:
            operator.pool_queue.add(pool.key)
        for picker in operator.world.pickers:
            operator.picker_queue.add(picker.key)
        await eventually(lambda: true(operator.idle))
    done = writes(proxy, begun)
    assert all(count <= MOST_WRITES for count in done.values()), done


async def go_on_until_calm(story: Story, operator: Operator, proxy: FaultProxy) -> None:
    await story.go_on()
    await eventually(story.last_act, limit_s=60.0)
    await calm(operator, proxy)


async def cut_often(proxy: FaultProxy) -> None:
    for _ in range(5):
        await proxy.cut()
        await asyncio.sleep(0.05)


async def gone_versions(proxy: FaultProxy) -> None:
    proxy.refuse_watches = (410, {})
    await proxy.cut()


async def gone_in_the_stream(proxy: FaultProxy) -> None:
    """Every event is the last before the server has forgotten the version."""
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    line = msgspec.json.encode({"type": "ERROR", "object": expired}) + b"\n"
    proxy.transform = lambda event: [event, line]
    await proxy.cut()


async def too_many_requests(proxy: FaultProxy) -> None:
    proxy.refusals.extend([(429, {"retry-after": "1"})] * 20)
    await proxy.cut()


async def unavailable(proxy: FaultProxy) -> None:
    proxy.refusals.extend([(503, {})] * 40)
    await proxy.cut()


async def silence(proxy: FaultProxy) -> None:
    proxy.silent = True
    await proxy.cut()


async def twice(proxy: FaultProxy) -> None:
    proxy.transform = lambda line: [line, line]
    await proxy.cut()


async def late(proxy: FaultProxy) -> None:
    """Every second event of a watch is overtaken by the next."""

    def swapping() -> Callable[[bytes], list[bytes]]:
        held: list[bytes] = []

        def swap(line: bytes) -> list[bytes]:
            if held:
                return [line, held.pop()]
            held.append(line)
            return []

        return swap

    proxy.transform_each = swapping
    await proxy.cut()


async def lost_deletions(proxy: FaultProxy) -> None:
    proxy.transform = lambda line: [] if line.startswith(b'{"type":"DELETED"') else [line]
    await proxy.cut()


async def held_answers(proxy: FaultProxy) -> None:
    proxy.held = asyncio.Event()
    asyncio.get_running_loop().call_later(2.0, proxy.held.set)


async def slow_answers(proxy: FaultProxy) -> None:
    proxy.slow_s = 0.1
    await proxy.cut()


FAULTS = {
    cut_often: "cut",
    gone_versions: "refused",
    gone_in_the_stream: "altered",
    too_many_requests: "refused",
    unavailable: "refused",
    silence: "silenced",
    twice: "altered",
    late: "altered",
    lost_deletions: "altered",
    held_answers: "held",
    slow_answers: "slowed",
}
"""What the proxy must have done in the end."""


@pytest.mark.parametrize(("fault", "done"), FAULTS.items(), ids=[one.__name__ for one in FAULTS])
async def test_it_converges_and_then_writes_nothing(
    plane: ControlPlane,
    pods: PickerPods,
    home: str,
    story: Story,
    fault: Callable[[FaultProxy], Awaitable[None]],
    done: str,
) -> None:
    await story.begin()
    async with (
        fault_proxy(plane.kubeconfig) as proxy,
        running_operator(plain_access(proxy), home, pods, watch=IMPATIENT) as operator,
    ):
        await eventually(story.first_act)
        await fault(proxy)
        await go_on_until_calm(story, operator, proxy)
        assert proxy.done[done] > 0
        assert not proxy.refusals


async def test_an_api_server_that_starts_anew(plane: ControlPlane, pods: PickerPods, home: str, story: Story) -> None:
    await story.begin()
    async with (
        fault_proxy(plane.kubeconfig) as proxy,
        running_operator(plain_access(proxy), home, pods, watch=IMPATIENT) as operator,
    ):
        await eventually(story.first_act)
        await plane.apiserver.stop(0.0)
        plane.apiserver.start()
        await plane.ready()
        await go_on_until_calm(story, operator, proxy)


async def test_an_operator_that_ends_in_the_middle_of_its_work(
    plane: ControlPlane, pods: PickerPods, home: str, story: Story
) -> None:
    await story.begin()
    async with fault_proxy(plane.kubeconfig) as proxy:
        ended = 0
        # After one more write each time, whichever that is.
        for count in range(1, 40):
            # No more than that, however long it then takes until it is stopped.
            begun, proxy.writes_left = len(proxy.asked), count
            async with running_operator(plain_access(proxy), home, pods, watch=IMPATIENT) as operator:
                more = asyncio.create_task(proxy.until(lambda b=begun, c=count: writes(proxy, b).total() >= c))
                done = asyncio.create_task(eventually(story.first_act, limit_s=60.0))
                await asyncio.wait({more, done}, return_when=asyncio.FIRST_COMPLETED)
                finished = done.done()
                for task in (more, done):
                    task.cancel()
                await asyncio.gather(more, done, return_exceptions=True)
            if finished:
                break
            ended += 1
        assert ended > 3, "all is done by more than 1 + 2 + 3 writes"
        proxy.writes_left = None
        async with running_operator(plain_access(proxy), home, pods, watch=IMPATIENT) as operator:
            await go_on_until_calm(story, operator, proxy)


async def test_a_leader_whose_requests_hang_stops_to_lead_in_time_and_leads_again(
    plane: ControlPlane, pods: PickerPods, home: str, story: Story
) -> None:
    await story.begin()
    async with (
        fault_proxy(plane.kubeconfig) as proxy,
        running_operator(plain_access(proxy), home, pods, watch=IMPATIENT, elect=True) as operator,
    ):
        await eventually(story.first_act)
        proxy.held = asyncio.Event()
        await eventually(lambda: true(not operator.leading), "stops to lead")
        assert not operator._workers or all(task.cancelling() or task.done() for task in operator._workers)
        proxy.held.set()
        await go_on_until_calm(story, operator, proxy)
        await eventually(lambda: true(operator.leading), "leads again")
