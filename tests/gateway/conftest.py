"""One Envoy with many listeners, the pods behind it and the pickers beside it: started once for each transport."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from gateway_envoy import start_gateway
from gateway_picker import TRANSPORTS, LocalPicker
from gateway_pods import Pod, Pods
from gateway_site import Lane, Site, variants
from poolpilot_lab.processes import ProcessError, envoy_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs an Envoy; all share one event loop, which the session's servers live in."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gateway)
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def envoy_binary() -> Path:
    """The Envoy to run."""
    try:
        return envoy_path()
    except ProcessError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    """Name of the picker's transport."""
    return str(request.param)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pods() -> AsyncIterator[Pods]:
    """Four model servers on IPv4."""
    several = Pods([await Pod().start() for _ in range(4)])
    yield several
    for pod in several:
        await pod.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def site(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """Pickers and the shared Envoy."""
    folder = tmp_path_factory.mktemp(f"site-{transport}")
    main = await LocalPicker(transport, folder / "main").start()
    second = await LocalPicker(transport, folder / "second").start()
    gateway = await start_gateway(folder, variants(folder, main.port, second.port, pods.addresses))
    yield Site(folder, transport, main, second, gateway)
    await gateway.stop()
    await main.stop()
    await second.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def lane(site: Site, pods: Pods) -> AsyncIterator[Lane]:
    """A fresh pool of all pods, and the proof at the end."""
    site.second.renew(pods.addresses)
    for pod in pods:
        pod.hits.clear()
    lane = Lane(site, pods)
    await lane.renew(pods.addresses)
    yield lane
    await lane.finish()
