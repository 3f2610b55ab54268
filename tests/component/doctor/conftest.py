"""One control plane for all tests of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from control_planes import api as api
from control_planes import called as called
from control_planes import marked
from control_planes import plane as plane

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked(items, "doctor")
