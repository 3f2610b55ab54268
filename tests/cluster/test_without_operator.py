"""From nothing to answers without the operator: engines, a pool, a picker and Envoy, each as a user applies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from cluster_site import DATA, POOL, Site, put_engines, put_envoy
from cluster_stage import definitions, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A namespace with everything."""
    await cluster.apply(*definitions())
    space = await cluster.space("by-hand")
    await put_engines(space)
    await space.kubectl("apply", "-f", str(DATA / "picker.yaml"))
    picker = f"--picker=llama-picker.{space.name}.svc.cluster.local:9002"
    site = Site(space, await put_envoy(space, tmp_path_factory.mktemp("envoy"), picker))
    await space.available("llama-picker")
    await space.available(POOL)
    # Envoy asks for the picker's name every five seconds.
    await until(site.answers, "nothing is answered")
    yield site
    await space.kubectl("delete", "namespace", space.name, "--wait=false")


async def test_requests_are_answered_by_the_endpoints_that_the_picker_chose(site: Site) -> None:
    assert set(await site.answered()) == set(await site.space.ready(POOL)), "every engine is used"


async def test_scaling_under_load_fails_nothing(site: Site) -> None:
    await site.check_scaling()


@pytest.mark.parametrize("deployment", [POOL, "llama-picker"])
async def test_rolling_restarts_under_load_fail_nothing(deployment: str, site: Site) -> None:
    await site.check_restart(site.space, deployment, f"app={deployment}")
