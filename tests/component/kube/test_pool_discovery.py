"""A pool's endpoints from a real API server: pods come, go, stop being ready, move and change, also behind faults."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from api_faults import FaultProxy, fault_proxy, plain_access
from control_planes import definitions
from extproc_client import WAIT_S
from kube_pods import Namespace
from poolpilot_kube.watch import WatchSettings
from poolpilot_picker.sources.pool_discovery import Members, PoolDiscovery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_picker.state.endpoints import EndpointSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

VLLM = {"app": "vllm"}
FAST = WatchSettings(first_backoff_s=0.005, most_backoff_s=0.05)


class Found:
    """A running discovery and what it said."""

    def __init__(self, proxy: FaultProxy, namespace: str, **wanted: Any) -> None:
        self.applied: list[list[EndpointSpec]] = []
        self.discovery = PoolDiscovery(
            plain_access(proxy),
            self.applied.append,
            **{"namespace": namespace, "pool": "pool", "engines": ("vllm", "sglang"), "settings": FAST, **wanted},
        )

    @property
    def names(self) -> list[str]:
        return sorted(spec.name for spec in self.applied[-1]) if self.applied else []

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not check():
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(found: Found) -> AsyncIterator[Found]:
    task = asyncio.create_task(found.discovery.run())
    try:
        yield found
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def defined(plane: ControlPlane) -> ControlPlane:
    async with plane.api() as api:
        await api.define(definitions())
    return plane


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(defined: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(defined.kubeconfig) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def there(defined: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[Namespace]:
    """A namespace with one pool of pods `app: vllm` on two ports."""
    async with defined.api() as api:
        namespace = Namespace(api, f"ns-{abs(hash(request.node.name)) % 10**8}")
        await namespace.made()
        await api.apply(namespace.pool("pool", VLLM, 8000, 8001))
        yield namespace


async def test_ready_pods_of_the_pool_with_every_port(there: Namespace, proxy: FaultProxy) -> None:
    made = await there.run("a", "10.0.0.1", VLLM)
    await there.run("b", "10.0.0.2", VLLM, ready=False)
    await there.run("c", "10.0.0.3", {"app": "other"})
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: found.discovery.status.ready)
        [first, second] = found.applied[-1]
        assert (first.address, first.key) == ("10.0.0.1:8000", (made["metadata"]["uid"], 8000))
        assert (second.address, second.name) == ("10.0.0.1:8001", "a-rank-1")
        await there.set_ready("b", "10.0.0.2", ready=True)
        await found.until(lambda: found.names == ["a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1"])
        await there.set_ready("a", "10.0.0.1", ready=False)
        await found.until(lambda: found.names == ["b-rank-0", "b-rank-1"])
        said = len(found.applied)
        await there.annotate("b", VLLM, {"unrelated": "yes"})
        await there.annotate("b", VLLM, {"llm-d.ai/active-ports": "8001"})
        await found.until(lambda: found.names == ["b-rank-1"])
        assert len(found.applied) == said + 1, "what changes nothing of the endpoints is not applied"
        await there.annotate("b", {**VLLM, "llm-d.ai/engine-type": "sglang"}, {})
        await found.until(lambda: [one.engine for one in found.applied[-1]] == ["sglang"] * 2)
        await found.until(lambda: found.discovery.status.problems == ())
    assert {one.method for one in proxy.asked} == {"GET"}, "a picker reads only"


async def test_a_terminating_pod_is_no_candidate(there: Namespace, proxy: FaultProxy) -> None:
    await there.run("a", "10.0.0.1", VLLM)
    await there.run("b", "10.0.0.2", VLLM)
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: len(found.names) == 4)
        await there.terminate("a")
        await found.until(lambda: found.names == ["b-rank-0", "b-rank-1"])
        pod = await there.api.get("v1", "Pod", "a", there.name)
        assert pod["status"]["conditions"][0]["status"] == "True", "it is still Ready"


async def test_an_address_that_comes_back_is_another_endpoint(there: Namespace, proxy: FaultProxy) -> None:
    await there.run("a", "10.0.0.1", VLLM)
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: len(found.names) == 2)
        before = found.applied[-1][0]
        await there.remove("a")
        await there.run("a", "10.0.0.1", VLLM)
        await found.until(lambda: bool(found.names) and found.applied[-1][0].uid != before.uid)
        after = found.applied[-1][0]
        assert after.address == before.address and after.key != before.key


async def test_the_pool_changes(there: Namespace, proxy: FaultProxy) -> None:
    await there.run("a", "10.0.0.1", VLLM)
    await there.run("s", "10.0.0.9", {"app": "sglang"})
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: found.names == ["a-rank-0", "a-rank-1"])
        await there.api.apply(there.pool("pool", VLLM, 9000))
        await found.until(lambda: [one.port for one in found.applied[-1]] == [9000])
        said = len(found.applied)
        await there.api.apply(there.pool("pool", {"app": "sglang"}, 9000))
        await found.until(lambda: found.names == ["s-rank-0"])
        assert len(found.applied) == said + 1, "the pool was never empty in between"
        await there.api.apply(there.pool("pool", {"app": "nobody"}, 9000))
        await found.until(lambda: found.names == [])
        assert found.discovery.status.ready, "a pool without pods is one that can be answered for"


async def test_a_pool_that_is_not_there_yet_and_goes_again(there: Namespace, proxy: FaultProxy) -> None:
    pool = there.pool("late", VLLM, 8000)
    await there.run("a", "10.0.0.1", VLLM)
    async with running(Found(proxy, there.name, pool="late")) as found:
        await found.until(lambda: found.discovery.status.missing == f"there is no InferencePool {there.name}/late")
        assert not found.discovery.status.ready
        for _ in range(2):
            await there.api.create(pool)
            await found.until(lambda: found.names == ["a-rank-0"])
            assert found.discovery.status.ready
            await there.api.delete(pool)
            await found.until(lambda: found.names == [])
            assert not found.discovery.status.ready


async def test_a_selector_instead_of_a_pool(there: Namespace, proxy: FaultProxy) -> None:
    await there.run("a", "10.0.0.1", VLLM)
    await there.run("b", "10.0.0.2", {"app": "sglang"})
    await there.run("c", "10.0.0.3", {"app": "other"})
    members = Members("app in (vllm, sglang)", (8000,))
    async with running(Found(proxy, there.name, pool="name", members=members)) as found:
        await found.until(lambda: found.names == ["a-rank-0", "b-rank-0"])
        assert found.discovery.status.ready
    assert not any("inferencepools" in one.path for one in proxy.asked), "no CRD is needed"


async def test_two_ready_pods_at_one_address_are_told(there: Namespace, proxy: FaultProxy) -> None:
    await there.run("a", "10.0.0.1", VLLM)
    await there.run("b", "10.0.0.1", VLLM)
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: found.discovery.status.ready)
        assert len({spec.address for spec in found.applied[-1]}) == len(found.applied[-1]) == 2
        assert len(found.discovery.status.problems) == 2
        assert "are both ready at 10.0.0.1:8000" in found.discovery.status.problems[0]
        await there.terminate("a")
        await found.until(lambda: found.names == ["b-rank-0", "b-rank-1"] and found.discovery.status.problems == ())


async def test_while_the_api_server_is_away_the_endpoints_stay(there: Namespace, proxy: FaultProxy) -> None:
    await there.run("a", "10.0.0.1", VLLM)
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: found.names == ["a-rank-0", "a-rank-1"])
        await proxy.until(lambda: proxy.open_watches == 4)
        proxy.refuse_always = (503, {})
        await proxy.cut()
        await found.until(lambda: len(found.discovery.status.problems) == 4)
        assert found.discovery.status.ready and found.names == ["a-rank-0", "a-rank-1"]
        await there.terminate("a")
        await there.run("b", "10.0.0.2", VLLM)
        proxy.refuse_always = None
        await found.until(lambda: found.names == ["b-rank-0", "b-rank-1"] and found.discovery.status.problems == ())


async def test_pods_that_vanish_while_nobody_could_tell(there: Namespace, proxy: FaultProxy) -> None:
    """The event of the deletion never comes, and the version to resume from has expired: no zombie stays."""
    await there.run("a", "10.0.0.1", VLLM)
    await there.run("b", "10.0.0.2", VLLM)
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: len(found.names) == 4)
        await proxy.until(lambda: proxy.open_watches == 4)
        proxy.transform = lambda line: []
        await there.remove("a")
        proxy.inject({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        proxy.transform = lambda line: [line]
        await found.until(lambda: found.names == ["b-rank-0", "b-rank-1"])


async def test_before_the_first_list_nothing_is_ready(there: Namespace, proxy: FaultProxy) -> None:
    proxy.refuse_always = (500, {})
    async with running(Found(proxy, there.name)) as found:
        await found.until(lambda: len(found.discovery.status.problems) == 5)
        assert not found.discovery.status.ready
        assert found.applied == []
        assert found.discovery.status.missing == f"the InferencePool {there.name}/pool has not been read yet"
        proxy.refuse_always = None
        await found.until(lambda: found.discovery.status.ready)


async def test_what_takes_long_is_not_done_all_the_time(there: Namespace, proxy: FaultProxy) -> None:
    """Handing over the endpoints of a large pool costs requests their time: changes wait for each other."""
    clock, takes_ms = [0.0], 100.0
    found = Found(proxy, there.name, now=lambda: clock[0])
    applied = found.applied.append

    def slow(specs: list[EndpointSpec]) -> None:
        clock[0] += takes_ms
        applied(specs)

    found.discovery._apply = slow
    await there.run("a", "10.0.0.1", VLLM)
    async with running(found):
        await found.until(lambda: found.discovery.status.ready)
        assert (len(found.applied), len(found.names)) == (1, 2)
        for number in range(2, 8):
            await there.run(f"p{number}", f"10.0.0.{number}", VLLM)
        await there.remove("a")
        await found.until(lambda: len(found.names) == 12)
        assert len(found.applied) < 8, "not one for each of eight changes"
        await there.api.delete(there.pool("pool", VLLM, 8000, 8001))
        await found.until(lambda: found.names == [])
        assert not found.discovery.status.ready
