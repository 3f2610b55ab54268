"""Helm, and one control plane for all tests of a module."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from control_planes import api as api
from control_planes import called as called
from control_planes import marked
from control_planes import plane as plane
from helm import helm as helm

if TYPE_CHECKING:
    from helm import Helm
    from poolpilot_lab.control_plane.cluster import ControlPlane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked(items, "charts")


@pytest.fixture
def here(helm: Helm, plane: ControlPlane) -> Helm:
    """Helm, with the control plane."""
    return replace(helm, kubeconfig=plane.kubeconfig)
