"""SIGINT and SIGTERM to a command: what runs is cancelled and stops what it started, then the command says so."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def stoppable(work: Awaitable[T], interrupted: Callable[[signal.Signals], Exception]) -> T:
    """The work's result; a signal cancels the current task, which awaits it, and `interrupted` is raised."""
    task = asyncio.current_task()
    assert task is not None
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not caught:
            raise
        raise interrupted(caught[0]) from None
