"""One control plane for all tests of a module, with our CRDs; namespaces of its own for each test."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest_asyncio

from control_planes import called as called
from control_planes import definitions, marked
from control_planes import plane as plane
from kube_pods import Namespace
from operator_stage import Cluster
from stand_in_pickers import picker_pods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from poolpilot_lab.control_plane.cluster import ControlPlane
    from stand_in_pickers import PickerPods

NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked(items, "operator")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """A user who may do everything."""
    async with plane.api() as client:
        await client.define(definitions())
        yield Cluster(client)


@pytest_asyncio.fixture(loop_scope="module")
async def home(cluster: Cluster) -> str:
    """The operator's namespace."""
    return await made_namespace(cluster, "home")


@pytest_asyncio.fixture(loop_scope="module")
async def away(cluster: Cluster) -> str:
    """Another one, with pools."""
    return await made_namespace(cluster, "team")


async def made_namespace(cluster: Cluster, name: str) -> str:
    one = Namespace(cluster.api, f"{name}-{next(NUMBERS)}")
    await one.made()
    return one.name


@pytest_asyncio.fixture(loop_scope="module")
async def pods() -> AsyncIterator[PickerPods]:
    """Pods of Pickers that answer."""
    async with picker_pods() as running:
        yield running
