"""A picker under load, seen from outside: its memory by exchanges done, its metrics, its log."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from poolpilot_lab.bench.cost import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

EVERY_S: Final = 0.25
EXPECTED: Final = "Closing acceptor. Failed accept4"
"""What the gRPC library says when a process that was replaced takes no further connections."""
NOTHING_LEFT: Final = (
    "llm_d_epp_extproc_streams_inflight",
    "poolpilot_endpoint_inflight",
    "llm_d_epp_request_running",
)
"""Metrics that are 0 when every exchange is over."""


class Memory:
    """Samples of (exchanges done, resident bytes of a process and of those that it started)."""

    def __init__(self, pid: int, done: Callable[[], int]) -> None:
        self._pid = pid
        self._done = done
        self.samples: list[tuple[int, int]] = []

    def sample(self) -> None:
        """One more."""
        self.samples.append((self._done(), machine.rss_bytes(machine.tree([self._pid]))))

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(EVERY_S)

    def slope(self, since: int) -> float:
        """Bytes per exchange after the first `since`, by least squares; NaN with fewer than three samples."""
        return slope([one for one in self.samples if one[0] >= since])


def slope(samples: Sequence[tuple[int, int]]) -> float:
    """Of a line through points, by least squares; NaN where there are fewer than three, or all above one another."""
    count = len(samples)
    if count < 3:
        return float("nan")
    x_mean = sum(x for x, _ in samples) / count
    y_mean = sum(y for _, y in samples) / count
    spread = sum((x - x_mean) ** 2 for x, _ in samples)
    if not spread:
        return float("nan")
    return sum((x - x_mean) * (y - y_mean) for x, y in samples) / spread


class AdminPages:
    """The admin port of a picker."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def metrics(self) -> str:
        """The page."""
        async with aiohttp.ClientSession() as session, session.get(self._url) as response:
            return await response.text()

    async def left(self, within_s: float) -> dict[str, float]:
        """What has not come down to 0 after so many seconds, by metric; empty when all has."""
        deadline = time.monotonic() + within_s
        while True:
            page = await self.metrics()
            values = {name: value for name in NOTHING_LEFT if (value := total(page, name))}
            if not values or time.monotonic() > deadline:
                return values
            await asyncio.sleep(0.1)


def total(page: str, name: str) -> float:
    """Sum of a metric over its labels; 0 where it is absent."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^\n]*\}})? (\S+)$", page, re.MULTILINE))


def complaints(log: Path) -> list[str]:
    """Lines of a picker's log that should not be there: errors, exceptions, and what is no record."""
    found = []
    for line in log.read_text().splitlines():
        try:
            record: dict[str, Any] = msgspec.json.decode(line)
        except msgspec.DecodeError:
            if EXPECTED not in line:
                found.append(line)
            continue
        if record.get("level") in ("error", "critical") or "exception" in record or "traceback" in record:
            found.append(line)
    return found
