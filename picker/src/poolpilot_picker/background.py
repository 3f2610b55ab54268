"""Tasks that run beside the requests for as long as the picker does. Beside app, which says what they are."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Background:
    """Runs tasks; one that a fault ends is logged and named in `dead`."""

    def __init__(self) -> None:
        self.dead: list[str] = []
        """Only a restart brings these back."""
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Until `stop`."""

        async def supervised() -> None:
            try:
                await coroutine
            except Exception:
                # Requests are still placed, by what is known; only a restart brings the task back.
                log.critical("%s was ended by a fault", name, exc_info=True)
                self.dead.append(name)

        self._tasks.append(asyncio.get_running_loop().create_task(supervised()))

    async def stop(self) -> None:
        """Ends all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
