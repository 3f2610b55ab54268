"""The pool `llama` behind Envoy in a cluster: engines, a gateway in front, and requests through it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cluster_load import Load, ask
from cluster_stage import ROOT, until
from poolpilot_lab.client.errors import ClientError
from poolpilot_lab.client.pool import HttpClient

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_stage import Space

DATA: Final = ROOT / "tests/data/cluster"
POOL: Final = "llama"
CONFIG: Final = """\
apiVersion: poolpilot.dev/v1alpha1
kind: EndpointPickerConfig
poolpilot:
  receipts:
    header: true
"""
"""Of a picker that tells in an answer's header what it chose."""
_HTTP: Final = 8081
_ENOUGH: Final = 50
"""Requests before and after something happens under load."""


@dataclass
class Site:
    """Engines in a namespace, and the address of the gateway."""

    space: Space
    host: str
    port: int = _HTTP

    def load(self) -> Load:
        """Six clients."""
        return Load(self.host, self.port, POOL)

    async def answers(self, status: int = 200) -> bool:
        """Whether a request is answered so."""
        with contextlib.closing(HttpClient(self.host, self.port)) as client, contextlib.suppress(ClientError):
            return (await ask(client, POOL, "anybody?")).status == status
        return False

    async def answered(self, requests: int = 30) -> Counter[str]:
        """Answers by engine: each came from the endpoint that the picker chose, and that is a pod of the pool."""
        pods = await self.space.ready(POOL)
        seen: Counter[str] = Counter()
        with contextlib.closing(HttpClient(self.host, self.port)) as client:
            for number in range(requests):
                got = await ask(client, POOL, f"request {number} " * 50)
                assert (got.status, got.complete) == (200, True)
                assert got.receipt["chosen"] == f"{pods[got.pod]}:8000"
                seen[got.pod] += 1
        return seen

    async def scale(self, replicas: int) -> None:
        """Until there are as many engines."""
        await self.space.kubectl("scale", f"deployment/{POOL}", f"--replicas={replicas}")
        await self.space.available(POOL)

        async def settled() -> bool:
            return len(await self.space.ready(POOL)) == replicas

        await until(settled, f"there are not {replicas} engines")

    async def check_scaling(self) -> None:
        """3 → 6 → 2 under load without a failure, then 0 and 2."""
        async with self.load() as load:
            await load.more(_ENOUGH)
            for replicas in (6, 2):
                await self.scale(replicas)
                await load.more(_ENOUGH)
        assert load.failures == [], load.failures
        assert len(load.answered) >= 6, "new engines are used"
        assert set(await self.answered()) <= set(await self.space.ready(POOL))
        await self.scale(0)
        await until(lambda: self.answers(503), "without endpoints requests are not refused")
        await self.scale(2)
        await until(self.answers, "the pool does not come back")
        assert set(await self.answered()) <= set(await self.space.ready(POOL))

    async def check_restart(self, space: Space, deployment: str, selector: str) -> None:
        """A rolling restart under load fails nothing, and every pod is another one afterwards."""
        before = {one["metadata"]["name"] for one in await space.list("pods", "-l", selector)}
        assert before
        async with self.load() as load:
            await load.more(_ENOUGH)
            await space.kubectl("rollout", "restart", f"deployment/{deployment}")
            await space.available(deployment)

            async def replaced() -> bool:
                return {one["metadata"]["name"] for one in await space.list("pods", "-l", selector)}.isdisjoint(before)

            await until(replaced, "old pods stay", 120)
            await load.more(_ENOUGH)
        assert load.failures == [], load.failures
        assert load.total >= 2 * _ENOUGH


async def put_engines(space: Space, *, pool: bool = True) -> None:
    """Three engines, with two slots for adapters each, and their pool."""
    engines, _, _ = (DATA / "engines.yaml").read_text().partition("\n---\n")
    await space.apply(engines if not pool else (DATA / "engines.yaml").read_text())


async def put_envoy(space: Space, folder: Path, *flags: str) -> str:
    """Envoy with the configuration that these flags of `poolpilot envoy-config` make; its address."""
    config = folder / "envoy.yaml"
    argv = ["poolpilot", "envoy-config", "--cluster=original-dst", "--admin=0.0.0.0:19000", f"--out={config}", *flags]
    subprocess.run([sys.executable, "-m", *argv], check=True)
    await space.kubectl("create", "configmap", "envoy", f"--from-file={config}")
    await space.kubectl("apply", "-f", str(DATA / "envoy.yaml"))
    await space.available("envoy")
    [address] = (await space.ready("envoy")).values()
    return address
