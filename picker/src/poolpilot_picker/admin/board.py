"""Which pools are served, where, and why not: the operator names in a pool's EndpointSlice only who serves it.

A version says that something has changed; who knows one waits for the next. Versions grow also over restarts of the
process, so that one of an earlier process is never taken for the newest of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import msgspec


class PoolStanding(msgspec.Struct, frozen=True):
    """One pool."""

    namespace: str
    name: str
    port: int
    serving: bool
    reason: str = ""
    """Why it is not served."""
    endpoints: int = 0
    """That may be chosen. A served pool without any answers 503."""
    terminating: bool = False
    """Not served any more, but what comes is still taken, until data planes have noticed."""


class PoolsPage(msgspec.Struct, frozen=True):
    """What the page says."""

    version: int
    pools: Sequence[PoolStanding]
    configuration: str = ""
    """Why the newest one is not in force; empty if it is."""


class PoolBoard:
    """The standings of all pools."""

    def __init__(self, started_unix_ms: int | None = None) -> None:
        self._version = int(time.time() * 1000) if started_unix_ms is None else started_unix_ms
        self._pools: tuple[PoolStanding, ...] = ()
        self._configuration = ""
        self._changed = asyncio.Event()
        """Of this version; set when there is another."""
        self._closed = False

    def page(self) -> PoolsPage:
        """As it is now."""
        return PoolsPage(self._version, self._pools, self._configuration)

    def put(self, pools: Sequence[PoolStanding], configuration: str = "") -> None:
        """All pools; another version if anything is other than before."""
        found = tuple(sorted(pools, key=lambda one: (one.namespace, one.name, one.port, one.reason)))
        if (found, configuration) == (self._pools, self._configuration):
            return
        self._pools, self._configuration = found, configuration
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def other_than(self, version: int, seconds: float) -> None:
        """Waits until there is another version, or until time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._version == version and not self._closed:
                    await self._changed.wait()

    def close(self) -> None:
        """Nobody waits any more: the process ends."""
        self._closed = True
        self._changed.set()
