"""From nothing to answers without the operator: engines, a pool, a picker and Envoy, each as a user applies it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from cluster_load import Load, ask
from cluster_stage import definitions, until
from poolpilot_lab.client.pool import HttpClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Space, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

DATA: Final = Path(__file__).parents[1] / "data/cluster"
HTTP: Final = 8081


async def put_envoy(space: Space, picker: str, folder: Path) -> str:
    """Envoy in front of a picker; its address."""
    config = folder / "envoy.yaml"
    flags = [f"--picker={picker}", "--cluster=original-dst", "--admin=0.0.0.0:19000", f"--out={config}"]
    subprocess.run([sys.executable, "-m", "poolpilot", "envoy-config", *flags], check=True)
    await space.kubectl("create", "configmap", "envoy", f"--from-file={config}")
    await space.kubectl("apply", "-f", str(DATA / "envoy.yaml"))
    await space.available("envoy")
    [address] = (await space.ready("envoy")).values()
    return address


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Space, str]]:
    """A namespace with everything, and Envoy's address."""
    await cluster.apply(*definitions())
    space = await cluster.space("by-hand")
    for name in ("engines", "picker"):
        await space.kubectl("apply", "-f", str(DATA / f"{name}.yaml"))
    envoy = await put_envoy(
        space, f"llama-picker.{space.name}.svc.cluster.local:9002", tmp_path_factory.mktemp("envoy")
    )
    await space.available("llama-picker")
    await space.available("llama")
    # Envoy asks for the picker's name every five seconds.
    await until(lambda: answers(envoy), "nothing is answered")
    yield space, envoy
    await space.kubectl("delete", "namespace", space.name, "--wait=false")


async def answered(space: Space, envoy: str, requests: int = 30) -> Counter[str]:
    """Answers by engine: each came from the endpoint that the picker chose, and that is a pod of the pool."""
    pods = await space.ready("llama")
    seen: Counter[str] = Counter()
    with contextlib.closing(HttpClient(envoy, HTTP)) as client:
        for number in range(requests):
            got = await ask(client, "llama", f"request {number} " * 50)
            assert (got.status, got.complete) == (200, True)
            assert got.receipt["chosen"] == f"{pods[got.pod]}:8000"
            seen[got.pod] += 1
    return seen


async def answers(envoy: str, status: int = 200) -> bool:
    """Whether a request is answered so."""
    with contextlib.closing(HttpClient(envoy, HTTP)) as client:
        return (await ask(client, "llama", "anybody?")).status == status


async def scaled(space: Space, replicas: int) -> None:
    """Until as many engines answer."""
    await space.kubectl("scale", "deployment/llama", f"--replicas={replicas}")
    await space.available("llama")

    async def settled() -> bool:
        return len(await space.ready("llama")) == replicas

    await until(settled, f"there are not {replicas} engines")


async def test_requests_are_answered_by_the_endpoints_that_the_picker_chose(site: tuple[Space, str]) -> None:
    space, envoy = site
    seen = await answered(space, envoy)
    assert set(seen) == set(await space.ready("llama")), "every engine is used"


async def test_scaling_under_load_fails_nothing(site: tuple[Space, str]) -> None:
    space, envoy = site
    async with Load(envoy, HTTP, "llama") as load:
        await load.more(50)
        for replicas in (6, 2):
            await scaled(space, replicas)
            await load.more(50)
    assert load.failures == []
    assert len(load.answered) >= 6, "new engines are used"
    pods = await space.ready("llama")
    assert set(await answered(space, envoy)) <= set(pods)

    await scaled(space, 0)
    await until(lambda: answers(envoy, 503), "without endpoints requests are not refused")
    await scaled(space, 2)
    await until(lambda: answers(envoy), "the pool does not come back")
    assert set(await answered(space, envoy)) <= set(await space.ready("llama"))


@pytest.mark.parametrize("deployment", ["llama", "llama-picker"])
async def test_rolling_restarts_under_load_fail_nothing(deployment: str, site: tuple[Space, str]) -> None:
    space, envoy = site
    before = await space.ready(deployment)
    async with Load(envoy, HTTP, "llama") as load:
        await load.more(50)
        await space.kubectl("rollout", "restart", f"deployment/{deployment}")
        await space.available(deployment)

        async def replaced() -> bool:
            there = {one["metadata"]["name"] for one in await space.list("pods", "-l", f"app={deployment}")}
            return there.isdisjoint(before)

        await until(replaced, "old pods stay")
        await load.more(50)
    assert load.failures == []
    assert load.total >= 100
