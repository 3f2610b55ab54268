"""Time-outs for what a peer has to do, which hold no stall of this process against the peer.

A process that stands still (SIGSTOP, a throttled container, a suspended machine) finds its timers due and the answers
unread when it goes on, and uvloop runs timers first. So a timer that is late says little: what has arrived meanwhile is
read before anybody is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LATE_S: Final = 0.05
"""A timer that is later than this was held up by our own process."""


@contextlib.asynccontextmanager
async def timeout(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but where the time is up late, it goes on for as long as it was late, `seconds` at most.

    Once: a process that is always late must end its waits, too.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    timers: list[asyncio.TimerHandle] = []

    def up() -> None:
        late = loop.time() - due
        if late <= LATE_S:
            end()
        else:
            timers.append(loop.call_later(min(late, seconds), end))

    def end() -> None:
        scope.reschedule(loop.time())

    async with asyncio.timeout(None) as scope:
        timers.append(loop.call_at(due, up))
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
