"""Everything here runs on uvloop, as the picker does, and on the standard library's event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops of server and client."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
