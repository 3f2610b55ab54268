"""Keys that want reconciling: each at most once in the queue, never twice at the same time, later after a failure.

A key that is added while it is being worked on comes again afterwards. Failures of one key delay that key only.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable

log: Final = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
WaitOf: TypeAlias = Callable[[Exception], tuple[float | None, bool]]
"""Of a failure: how long the server wants to be left alone, and whether it is one that happens in life."""

_FIRST_S: Final = 0.2
_MOST_S: Final = 120.0


class WorkQueue(Generic[K]):
    """A queue for any number of workers of one event loop. Times in seconds."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        now: Callable[[], float] = time.monotonic,
        first_s: float = _FIRST_S,
        most_s: float = _MOST_S,
    ) -> None:
        """`name` is for metrics and logs; a failing key waits from `first_s` to `most_s`, half of it by chance."""
        self.name = name
        self.added = 0
        self.retries = 0
        self._rng = rng
        self._now = now
        self._first_s = first_s
        self._most_s = most_s
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        """Keys in `_ready`, or being worked on and wanted again."""
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        """When a key in `_later` is due; entries of the heap that say otherwise are dead."""
        self._count = itertools.count()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._due)

    @property
    def idle(self) -> bool:
        """Nothing to do now, and nobody is doing anything."""
        return not self._ready and not self._working

    def add(self, key: K) -> None:
        """As soon as a worker is free."""
        self._due.pop(key, None)
        if key in self._queued:
            return
        self._queued.add(key)
        self.added += 1
        if key not in self._working:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Not before that time, unless it is added otherwise; the earliest wish counts."""
        if key in self._queued:
            return
        due = self._now() + delay_s
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._later, (due, next(self._count), key))
            self._wake.set()

    def failures(self, key: K) -> int:
        """How often in a row the key has failed."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; `done` or `failed` must follow."""
        while True:
            self._take_due()
            if self._ready:
                key = self._ready.popleft()
                self._queued.discard(key)
                self._working.add(key)
                if self._ready:
                    self._wake.set()
                return key
            self._wake.clear()
            try:
                async with asyncio.timeout(self._next_due_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: K, again_after_s: float | None = None) -> None:
        """It worked; `again_after_s`: look again then, whatever happens."""
        self._failures.pop(key, None)
        self._finish(key)
        if again_after_s is not None:
            self.add_after(key, again_after_s)

    def failed(self, key: K, wanted_s: float | None = None) -> float:
        """It did not work: comes again after the seconds returned, at least `wanted_s` (a server's Retry-After)."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        self.retries += 1
        wait = min(self._first_s * 2.0 ** min(count, 30), self._most_s) * (0.5 + 0.5 * self._rng.random())
        wait = wait if wanted_s is None else wanted_s + wait
        # What was wanted while it failed is part of the same trouble: it waits too.
        self._queued.discard(key)
        self._working.discard(key)
        self.add_after(key, wait)
        return wait

    async def work(self, reconcile: Callable[[K], Awaitable[float | None]], wait_of: WaitOf) -> None:
        """One worker, until cancelled. `reconcile` returns when to look again; `wait_of` tells a failure's wish."""
        while True:
            key = await self.get()
            try:
                again = await reconcile(key)
            except asyncio.CancelledError:
                self._finish(key)
                raise
            except Exception as error:
                wanted, expected = wait_of(error)
                count = self.failures(key) + 1
                wait = self.failed(key, wanted)
                level = logging.INFO if expected and count < 4 else logging.WARNING
                log.log(
                    level,
                    "%s %s: %s; again in %.1f s",
                    self.name,
                    key,
                    error,
                    wait,
                    exc_info=None if expected else error,
                )
            else:
                self.done(key, again)

    def _finish(self, key: K) -> None:
        self._working.discard(key)
        if key in self._queued:
            self._ready.append(key)
            self._wake.set()

    def _take_due(self) -> None:
        now = self._now()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                self.add(key)

    def _next_due_s(self) -> float | None:
        while self._later and self._due.get(self._later[0][2]) != self._later[0][0]:
            heapq.heappop(self._later)
        return max(0.0, self._later[0][0] - self._now()) if self._later else None
