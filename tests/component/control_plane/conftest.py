"""The control plane's programs, built before anything is timed; one control plane for all tests of a module."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from go_tools import skipped_without_go
from poolpilot_lab.control_plane.cluster import ControlPlane, control_plane
from poolpilot_lab.control_plane.programs import Programs, programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A first build takes minutes and has its own limit."""
    for item in items:
        if item.path.parent.name == "control_plane":
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def called() -> Programs:
    """How the programs are called; a reason to skip where there is no Go."""
    with skipped_without_go():
        return asyncio.run(programs())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(called: Programs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A running one."""
    async with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running
