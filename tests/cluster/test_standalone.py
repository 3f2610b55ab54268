"""Envoy and a picker in one pod, by the chart poolpilot-standalone: model servers by their labels, then by a list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from cluster_site import CONFIG, POOL, Site, put_engines
from cluster_stage import ROOT, until

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_stage import Space

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHART: Final = ROOT / "charts/poolpilot-standalone"
RELEASE: Final = "app.kubernetes.io/instance=llm"
ALWAYS: Final = {"config": CONFIG, "drainSeconds": 1, "envoy": {"concurrency": 1}}


async def test_a_release_serves_pods_by_their_labels_then_those_of_a_list(space: Space, tmp_path: Path) -> None:
    """A change of the list restarts nobody."""

    async def put(verb: str, **values: Any) -> None:
        path = tmp_path / "values.yaml"
        path.write_text(json.dumps({**ALWAYS, **values}))
        await space.helm(verb, "llm", str(CHART), f"--values={path}", "--wait", "--timeout=2m")

    async def pods() -> list[str]:
        found = await space.list("pods", "-l", RELEASE)
        return [one["metadata"]["uid"] for one in found if "deletionTimestamp" not in one["metadata"]]

    await put_engines(space, pool=False)
    await put("install", selector={"app": POOL})
    address = (await space.get("service", "llm-poolpilot-standalone"))["spec"]["clusterIP"]
    site = Site(space, address, 80)
    await space.available(POOL)

    async def used(*wanted: str) -> bool:
        return await site.answers() and set(await site.answered()) == set(wanted)

    first, second, third = await space.ready(POOL)
    await until(site.answers, "nothing is answered")
    # Asked once: whoever has seen a prompt gets it again.
    assert set(await site.answered()) == {first, second, third}, "every engine is used"
    addresses = await space.ready(POOL)

    def listed(*names: str) -> list[dict[str, Any]]:
        return [{"address": addresses[name], "port": 8000} for name in names]

    await put("upgrade", endpoints=listed(first, second))
    await until(lambda: used(first, second), "the list is not used")
    running = await pods()
    await put("upgrade", endpoints=listed(third))
    await until(lambda: used(third), "the new list is not taken up")
    assert await pods() == running
    await space.helm("uninstall", "llm", "--wait", "--timeout=2m")

    async def gone() -> bool:
        return not await space.kubectl("get", "all,roles,rolebindings,configmaps", "-l", RELEASE, "-o", "name")

    await until(gone, "something of the release stays")
