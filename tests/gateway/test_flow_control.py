"""Flow control behind a real Envoy: requests wait for longer than Envoy's own patience, in every body mode."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from gateway_client import JSON, Headers, Http1, Response
from gateway_envoy import Variant, start_gateway
from gateway_program import ProgramPicker
from gateway_site import chat
from gateway_stage import MODES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway_envoy import Gateway
    from gateway_pods import Pods

PATIENCE_S = 1.5
"""Envoy's message time-out: who waits must ask for more."""
GATEWAY_S = 10.0
CONFIG = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
poolpilot:
  flowControl:
    endpointRequests: 1
    shortReserve: 0
    gatewayTimeoutMs: {1000 * GATEWAY_S:g}
"""
WAITING = "llm_d_epp_flow_control_queue_size"
TTL = "x-llm-d-inference-ttl"


class Line:
    """An Envoy, its picker, and pods that take one request each."""

    def __init__(self, gateway: Gateway, picker: ProgramPicker, pods: Pods) -> None:
        self.gateway = gateway
        self.picker = picker
        self.pods = pods

    async def post(self, mode: str, script: str, headers: Headers | None = None) -> Response:
        """One exchange."""
        async with await Http1.connect(self.gateway.ports[mode]) as connection:
            return await connection.request(headers={**(headers or {}), "x-pod": script}, body=chat(2_000))

    async def occupy(self, mode: str) -> list[asyncio.Task[Response]]:
        """Every pod holds a request until `let_go`."""
        for pod in self.pods:
            pod.let_go.clear()
        held = [asyncio.ensure_future(self.post(mode, "*=held")) for _ in self.pods]
        await self.picker.until_metric("poolpilot_endpoint_inflight", lambda count: count == len(self.pods.addresses))
        return held

    async def let_go(self, held: list[asyncio.Task[Response]]) -> None:
        """They answer."""
        for pod in self.pods:
            pod.let_go.set()
        assert [response.status for response in await asyncio.gather(*held)] == [200] * len(held)

    async def waiting(self, count: int) -> None:
        """So many requests wait."""
        await self.picker.until_metric(WAITING, lambda waiting: waiting == count)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Line]:
    folder = tmp_path_factory.mktemp("flow")
    picker = await ProgramPicker(folder, pods.addresses, transport, config=CONFIG).start()
    variants = [
        Variant(
            mode,
            picker.envoy(body_mode=body_mode, message_timeout_s=PATIENCE_S, max_message_timeout_s=GATEWAY_S),
        )
        for mode, body_mode in MODES.items()
    ]
    gateway = await start_gateway(folder, variants)
    yield Line(gateway, picker, pods)
    await gateway.stop()
    await picker.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def line(running: Line) -> AsyncIterator[Line]:
    """At the end nothing waits and nothing is booked."""
    yield running
    await running.waiting(0)
    await running.picker.settled()


@pytest.mark.parametrize("mode", MODES)
async def test_requests_wait_beyond_the_patience_of_envoy(line: Line, mode: str) -> None:
    held = await line.occupy(mode)
    late = [asyncio.ensure_future(line.post(mode, "*=ok")) for _ in range(6)]
    await line.waiting(6)
    await asyncio.sleep(1.3 * PATIENCE_S)
    assert not any(one.done() for one in late)
    await line.let_go(held)
    answers = await asyncio.gather(*late)
    assert [(one.status, one.complete) for one in answers] == [(200, True)] * 6
    assert all(one.json()["length"] == len(chat(2_000)) for one in answers)


@pytest.mark.parametrize("mode", MODES)
async def test_the_end_of_patience_is_answered_by_the_picker(line: Line, mode: str) -> None:
    held = await line.occupy(mode)
    refused = await line.post(mode, "*=ok", {TTL: "600ms"})
    assert refused.status == 429
    assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == 429
    await line.let_go(held)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_goes_away_frees_its_place(line: Line, mode: str) -> None:
    held = await line.occupy(mode)
    gone = await Http1.connect(line.gateway.ports[mode])
    body = chat(2_000)
    gone.send_head("POST", "/v1/chat/completions", {**JSON, "content-length": str(len(body))})
    gone.writer.write(body)
    await line.waiting(1)
    gone.abort()
    await line.waiting(0)
    await line.let_go(held)


@pytest.mark.parametrize("mode", MODES)
async def test_a_crowd_is_served_one_at_a_time_at_each_pod(line: Line, mode: str) -> None:
    answers = await asyncio.gather(*(line.post(mode, "*=slow.0.02", {"x-tid": f"{mode}-crowd"}) for _ in range(80)))
    assert Counter(one.status for one in answers) == {200: 80}
    served = Counter(one.pod for one in answers)
    assert set(served) == set(line.pods.addresses)
    assert min(served.values()) >= 10, "work goes to whoever is free first"
