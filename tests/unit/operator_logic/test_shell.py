"""The end of the program: what writes ends first."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from poolpilot_operator import shell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from poolpilot_operator.app import Operator


class Leader:
    """An operator that says when it has ended."""

    def __init__(self) -> None:
        self.options = type("Options", (), {"watched": ()})()
        self.ended = asyncio.Event()

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.mark.asyncio
async def test_at_a_signal_the_operator_ends_before_kopf_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf waits five seconds for our tasks: a Lease that is held so long keeps a standby waiting."""
    one = Leader()

    @contextlib.asynccontextmanager
    async def admin(*_: Any) -> AsyncIterator[int]:
        yield 1

    async def kopf(_: Operator, ending: asyncio.Event) -> None:
        ending.set()
        await one.ended.wait()

    monkeypatch.setattr(shell, "admin", admin)
    monkeypatch.setattr(shell, "_shell", kopf)
    monkeypatch.setattr(shell, "_EXIT_S", 5.0)
    async with asyncio.timeout(3.0):
        assert await shell.serve(cast("Operator", one), None, 0) == 0
    assert one.ended.is_set()
