"""A pod that fails, behind a real Envoy: it is left out, then gets a request now and then, and comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from gateway_client import Http1
from gateway_envoy import Variant, start_gateway
from gateway_program import ProgramPicker
from gateway_site import chat

if TYPE_CHECKING:
    from pathlib import Path

    from gateway_pods import Pods

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: random-picker}]
poolpilot:
  ejection: {firstMs: 1500, trialMs: 30}
"""
EJECTED = "poolpilot_endpoint_ejected"


async def test_a_pod_that_fails_is_left_out_and_comes_back(pods: Pods, envoy_binary: Path, tmp_path: Path) -> None:
    picker = await ProgramPicker(tmp_path, pods.addresses, "wire", config=CONFIG).start()
    gateway = await start_gateway(tmp_path, [Variant("partial", picker.envoy())])
    bad = pods[0]

    async def ask(times: int, script: str) -> Counter[int]:
        """One after another; by status."""
        statuses: Counter[int] = Counter()
        async with await Http1.connect(gateway.ports["partial"]) as connection:
            for _ in range(times):
                headers = {"x-tid": "ejection", "x-pod": script}
                statuses[(await connection.request(headers=headers, body=chat(100))).status] += 1
        return statuses

    try:
        statuses = await ask(80, f"{bad.port}=status.500")
        assert 5 <= statuses[500] <= 7, "so many failures in a row, and one for each trial"
        assert await picker.metric(EJECTED) == 1
        assert await picker.metric("poolpilot_ejections_total") == statuses[500] - 4
        before = len(bad.hits["ejection"])
        async with asyncio.timeout(10):
            while await picker.metric(EJECTED):
                assert set(await ask(10, "*=ok")) == {200}
                await asyncio.sleep(0.02)
        assert len(bad.hits["ejection"]) - before >= 3, "it had to serve some"
        await ask(40, "*=ok")
        assert len(bad.hits["ejection"]) - before >= 6
        await picker.settled()
    finally:
        await gateway.stop()
        await picker.kill()
