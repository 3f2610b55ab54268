"""Peers and what they need, built before anything is timed."""

from __future__ import annotations

import asyncio

import pytest

from go_tools import built, skipped_without_go
from poolpilot_lab.bench.cost.peers import gie
from poolpilot_lab.control_plane.programs import programs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A first build takes minutes and has its own limit."""
    for item in items:
        if item.path.parent.name == "peers":
            item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def built_gie_epp() -> None:
    """Go's picker and the control plane; a reason to skip where there is no Go."""
    with skipped_without_go():
        asyncio.run(programs())
    built(gie.MODULE, gie.PACKAGE)
