"""Fixtures of tests on a control plane: a conftest imports those that it needs, and marks its tests with `marked`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
import yaml

from go_tools import skipped_without_go
from poolpilot_lab.control_plane.cluster import ControlPlane, control_plane
from poolpilot_lab.control_plane.programs import Programs, programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from poolpilot_lab.control_plane.api import Api

CRDS: Final = sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))


def definitions() -> list[dict[str, Any]]:
    """All our CRDs."""
    return [yaml.safe_load(path.read_text()) for path in CRDS]


def marked(items: list[pytest.Item], folder: str) -> None:
    """Marks the tests of a folder. A first build takes minutes and has its own limit."""
    for item in items:
        if item.path.parent.name == folder:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def called() -> Programs:
    """How the programs are called, built before anything is timed; a reason to skip where there is no Go."""
    with skipped_without_go():
        return asyncio.run(programs())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(called: Programs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A running one for all tests of a module."""
    async with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(plane: ControlPlane) -> AsyncIterator[Api]:
    """A client of a server that begins without any of our kinds."""
    async with plane.api() as client:
        yield client
