"""What becomes of requests that wait behind a real Envoy when the picker ends, or its pool is empty; a crowd."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest_asyncio

from gateway_client import Headers, Http1, Response
from gateway_envoy import Variant, start_gateway
from gateway_program import ProgramPicker
from gateway_site import chat
from poolpilot_lab.bench.crowd.run import play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from gateway_envoy import Gateway
    from gateway_pods import Pods

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
poolpilot:
  flowControl:
    endpointRequests: 1
    shortReserve: 0
    tenants: {limited: {activeSequences: 1}}
"""
PATIENCE_S = 20.0
WAITING = "llm_d_epp_flow_control_queue_size"


class Scene:
    """An Envoy that stays, and pickers that come and go on the port where it looks for them."""

    def __init__(self, folder: Path, transport: str, pods: Pods) -> None:
        self._folder = folder
        self.pods = pods
        self.endpoints = folder / "endpoints.yaml"
        self.wanted(pods.addresses)
        self.picker = ProgramPicker(folder, self.endpoints, transport, config=CONFIG)
        self.gateway: Gateway

    def wanted(self, addresses: list[str]) -> None:
        """The endpoints file from now on."""
        rows = [
            f"  - {{address: {host}, port: {port}}}" for host, _, port in (one.rpartition(":") for one in addresses)
        ]
        new = self._folder / "new.yaml"
        new.write_text("\n".join(["endpoints:", *rows]) if rows else "endpoints: []\n")
        new.replace(self.endpoints)

    async def start(self, drain_s: float) -> None:
        """A picker with this drain time."""
        argv = self.picker.child.argv
        argv[argv.index("--drain-timeout") + 1] = str(drain_s)
        await self.picker.start()

    async def post(self, script: str, headers: Headers | None = None) -> Response:
        """One exchange."""
        async with asyncio.timeout(PATIENCE_S), await Http1.connect(self.gateway.ports["partial"]) as connection:
            return await connection.request(headers={**(headers or {}), "x-pod": script}, body=chat(2_000))

    async def occupied(self) -> list[asyncio.Task[Response]]:
        """Every pod holds a request until `let_go`."""
        for pod in self.pods:
            pod.let_go.clear()
        held = [asyncio.ensure_future(self.post("*=held")) for _ in self.pods]
        await self.picker.until_metric("poolpilot_endpoint_inflight", lambda count: count == len(held))
        return held

    async def waiting(self, count: int, headers: Headers | None = None) -> list[asyncio.Task[Response]]:
        """So many requests more wait."""
        before = await self.picker.metric(WAITING)
        late = [asyncio.ensure_future(self.post("*=ok", headers)) for _ in range(count)]
        await self.picker.until_metric(WAITING, lambda waiting: waiting == before + count)
        return late

    def let_go(self) -> None:
        """The pods answer."""
        for pod in self.pods:
            pod.let_go.set()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("endings")
    scene = Scene(folder, transport, pods)
    await scene.start(20.0)
    scene.gateway = await start_gateway(folder, [Variant("partial", scene.picker.envoy(picker_health_s=0.2))])
    yield scene
    await scene.gateway.stop()
    await scene.picker.kill()


async def test_who_waits_survives_a_pool_without_endpoints(running: Scene) -> None:
    held = await running.occupied()
    late = await running.waiting(3)
    running.wanted([])
    await running.picker.until_metric("llm_d_epp_ready_endpoints", lambda ready: ready == 0)
    running.let_go()
    assert [one.status for one in await asyncio.gather(*held)] == [200] * len(held), "what they have they finish"
    late += await running.waiting(2)
    running.wanted(running.pods.addresses)
    assert [one.status for one in await asyncio.gather(*late)] == [200] * 5
    await running.picker.settled()


async def test_a_tenant_at_its_limit_waits_alone(running: Scene) -> None:
    for pod in running.pods:
        pod.let_go.clear()
    limited = {"x-llm-d-inference-fairness-id": "limited"}
    first = asyncio.ensure_future(running.post("*=held", limited))
    await running.picker.until_metric("poolpilot_endpoint_inflight", lambda count: count == 1)
    late = await running.waiting(3, limited)
    others = await asyncio.gather(*(running.post("*=ok", {"x-llm-d-inference-fairness-id": "b"}) for _ in range(6)))
    assert [one.status for one in others] == [200] * 6
    assert not any(one.done() for one in late)
    running.let_go()
    assert [one.status for one in await asyncio.gather(first, *late)] == [200] * 4
    await running.picker.settled()


async def test_a_picker_that_stops_serves_who_waits_while_it_drains(running: Scene) -> None:
    held = await running.occupied()
    late = await running.waiting(3)
    running.picker.child.signal(signal.SIGTERM)
    running.let_go()
    assert [one.status for one in await asyncio.gather(*held, *late)] == [200] * (len(held) + 3)
    assert await running.picker.child.ended(10)
    await running.start(0.2)


async def test_and_answers_those_that_are_left(running: Scene) -> None:
    """The picker before this one has a drain time of 0.2 s."""
    held = await running.occupied()
    late = await running.waiting(3)
    running.picker.child.signal(signal.SIGTERM)
    for one in await asyncio.gather(*late):
        assert one.status == 503
        assert one.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
    running.let_go()
    assert [one.status for one in await asyncio.gather(*held)] == [200] * len(held), "what is served is not cut off"
    assert await running.picker.child.ended(10)
    await running.start(20.0)


async def test_a_crowd_waits_in_order_and_streams_stay_open(envoy_binary: Path, tmp_path: Path) -> None:
    """The small version of `python -m poolpilot_lab.bench.crowd`."""
    outcome = await play(tmp_path, 100, 100, 500, "wire", still_s=0.05)
    assert outcome.waiting.gone == 10
    assert outcome.waiting.displaced <= 20, "Envoy's threads may change neighbours"
    assert outcome.waiting.held_bytes >= 100 * outcome.waiting.body_bytes
    assert (outcome.left, outcome.complaints) == ({}, [])
