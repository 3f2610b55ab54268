"""One of many pools in a process: what is known of it, its port, and whether it may be said to serve."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.exchange import Exchange
from poolpilot_picker.feed import PoolFeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.objects import Key
    from poolpilot_picker.extproc.exchange import ExchangeSettings
    from poolpilot_picker.extproc.listener import Transport
    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.instruments.metrics import PickerMetrics
    from poolpilot_picker.requests import PoolRules

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.02
"""The port may be that of a pool whose listener is closing."""
MOST_RETRY_S: Final = 1.0


class ServedPool:
    """Serves its pool on the wanted port while `tend` runs. A port that changes takes nothing that is known."""

    def __init__(
        self,
        key: Key,
        port: int,
        *,
        pool: Pool,
        metrics: PickerMetrics,
        settings: ExchangeSettings,
        rules: PoolRules,
        now: Callable[[], float],
        transport: Callable[[ServedPool, int], Transport],
        leave: Callable[[Transport], None],
        changed: Callable[[], None],
    ) -> None:
        """`transport` makes what listens on a port, `leave` drains it; `changed` hears of another `serving`."""
        self.key = key
        self.pool = pool
        self.metrics = metrics
        self.settings = settings
        self.rules = rules
        self.feed = PoolFeed(pool, now)
        self.port = port
        """Wanted."""
        self.missing = "its objects have not been listed yet"
        """Why it cannot be answered for; empty where it can."""
        self.problem = ""
        """Why the port cannot be had."""
        self.tried = False
        """It has a listener, or it is known why not."""
        self.transport: Transport | None = None
        self._listens_on = 0
        self._ended = False
        self._transport_of = transport
        self._leave = leave
        self._changed = changed
        self._turned = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Requests may be sent here."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why not; empty where they may."""
        if self._listens_on != self.port:
            return self.problem or "its port is being opened"
        return self.missing

    def new_exchange(self) -> Exchange:
        """The state machine of a new stream, under the configuration and the rules of this moment."""
        return Exchange(self.pool, self.metrics, self.settings, load_report=self.feed.on_load_report)

    def move(self, port: int) -> None:
        """Wanted on another port."""
        if port != self.port:
            self.port = port
            self._turned.set()

    def stand(self, missing: str) -> None:
        """Whether it can be answered for."""
        if missing != self.missing:
            self.missing = missing
            self._turned.set()

    def end(self) -> None:
        """No longer served here."""
        self._ended = True
        self._turned.set()

    async def tend(self) -> None:
        """Keeps a listener on the wanted port, until the end; then its streams are drained by who is told to."""
        rest_s = FIRST_RETRY_S
        try:
            while not self._ended:
                self._turned.clear()
                if self._listens_on != self.port:
                    rest_s = await self._listen(rest_s)
                if self.transport is not None:
                    await self.transport.set_serving(serving=self.serving)
                self._changed()
                try:
                    async with asyncio.timeout(rest_s if self._listens_on != self.port else None):
                        await self._turned.wait()
                except TimeoutError:
                    continue
        finally:
            self._close()

    async def _listen(self, rest_s: float) -> float:
        """Opens the port; returns how long to rest before it is tried again."""
        self._close()
        port = self.port
        transport = self._transport_of(self, port)
        try:
            await transport.start()
        except StartError as error:
            if str(error) != self.problem:
                # A listener that is closing holds a port for a moment.
                level = logging.INFO if rest_s <= FIRST_RETRY_S else logging.ERROR
                log.log(level, "%s: %s", "/".join(self.key), error)
            if rest_s > FIRST_RETRY_S:
                self.problem, self.tried = str(error), True
            return min(2.0 * rest_s, MOST_RETRY_S)
        self.transport, self._listens_on, self.problem, self.tried = transport, port, "", True
        log.info("%s is served on port %d", "/".join(self.key), port)
        return FIRST_RETRY_S

    def _close(self) -> None:
        transport, self.transport, self._listens_on = self.transport, None, 0
        if transport is not None:
            self._leave(transport)
