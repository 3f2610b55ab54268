"""Retries behind a real Envoy: half of what the pods are asked fails, and clients try again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from gateway_client import Http1
from gateway_envoy import Variant, start_gateway
from gateway_program import ProgramPicker
from gateway_site import chat
from poolpilot_picker.envoy.settings import FailureMode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway_envoy import Gateway
    from gateway_pods import Pods

CLIENTS, EACH, TRIES = 16, 12, 4
BURST = 10
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins: [{type: random-picker}]
poolpilot:
  ejection: {mostShare: 0}
"""
RETRIED = "poolpilot_flow_control_client_retries_total"


class Storm:
    """Counts what clients sent and what reached the pods."""

    def __init__(self, gateway: Gateway, picker: ProgramPicker, pods: Pods) -> None:
        self.gateway = gateway
        self.picker = picker
        self.pods = pods
        self.sent = self.again = 0

    async def client(self, variant: str, number: int) -> None:
        """Sends its requests one after another, each again until it succeeds or its tries are over."""
        async with await Http1.connect(self.gateway.ports[variant]) as connection:
            for turn in range(EACH):
                for attempt in range(TRIES):
                    self.sent += 1
                    self.again += attempt > 0
                    headers = {"x-tid": variant, "x-request-id": f"{variant}-{number}-{turn}", "x-pod": "*=flaky.503"}
                    response = await connection.request(headers=headers, body=chat(200))
                    if response.status == 200:
                        break

    async def rages(self, variant: str) -> int:
        """All clients at once; how many requests reached the pods."""
        self.sent = self.again = 0
        before = len(self.pods.hits(variant))
        await asyncio.gather(*(self.client(variant, number) for number in range(CLIENTS)))
        return len(self.pods.hits(variant)) - before


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def storm(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Storm]:
    folder = tmp_path_factory.mktemp("storm")
    picker = await ProgramPicker(folder, pods.addresses, transport, config=CONFIG).start()
    gateway = await start_gateway(
        folder, [Variant(f"fails-{mode.value}", picker.envoy(fail=mode)) for mode in FailureMode]
    )
    yield Storm(gateway, picker, pods)
    await gateway.stop()
    await picker.kill()


@pytest.mark.parametrize("mode", ["fails-close", "fails-open"])
async def test_attempts_stay_below_1_2_times_the_requests(storm: Storm, mode: str) -> None:
    before = await storm.picker.metric(RETRIED)
    reached = await storm.rages(mode)
    assert storm.again > 20, "it was a storm"
    assert await storm.picker.metric(RETRIED) - before == storm.again
    assert reached <= 1.2 * storm.sent + BURST
    await storm.picker.settled()
