"""What the demo itself reads of the engines: samples for the picture while they run, counters when they are done."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from poolpilot_lab.client.errors import ClientError
from poolpilot_lab.client.pool import HttpClient
from poolpilot_lab.demo.errors import DemoError
from poolpilot_lab.demo.figures import Counters
from poolpilot_lab.demo.series import EndpointSeries
from poolpilot_picker.sources.exposition import find

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUNNING: Final = "vllm:num_requests_running"
_QUEUED: Final = "vllm:num_requests_waiting"
_KV: Final = "vllm:kv_cache_usage_perc"
_PREEMPTIONS: Final = "vllm:num_preemptions_total"
_PROMPT: Final = "vllm:prompt_tokens_total"
_CACHED: Final = "vllm:prompt_tokens_cached_total"

SAMPLE_EVERY_S: Final = 0.5


class Clock(msgspec.Struct, frozen=True):
    """How punctual a stand-in was; times in ms."""

    steps: int = 0
    late: int = 0
    late_ms: float = 0.0
    worst_ms: float = 0.0
    forgiven: int = 0

    def __add__(self, other: Clock) -> Clock:
        """Of a pool."""
        return Clock(
            self.steps + other.steps,
            self.late + other.late,
            self.late_ms + other.late_ms,
            max(self.worst_ms, other.worst_ms),
            self.forgiven + other.forgiven,
        )


class _Stats(msgspec.Struct):
    adapter_loads: int
    clock: Clock


class EngineMonitor:
    """Reads one engine over a connection of its own."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self._client = HttpClient(host, port)
        self.series = EndpointSeries(name)

    async def sample(self, start_s: float) -> None:
        """Adds a sample; `start_s` is when the run began. An engine that does not answer leaves a gap."""
        with contextlib.suppress(ClientError, TimeoutError, DemoError):
            async with asyncio.timeout(2.0):
                values = await self._metrics(_RUNNING, _QUEUED, _KV)
            self.series.add(time.monotonic() - start_s, *values)

    async def counters(self) -> tuple[Counters, Clock]:
        """What the engine counted since it started. Raises DemoError when it does not answer."""
        try:
            async with asyncio.timeout(5.0):
                preemptions, prompt, cached = await self._metrics(_PREEMPTIONS, _PROMPT, _CACHED)
                answer = await self._client.get("/stats")
        except (ClientError, TimeoutError) as error:
            raise DemoError(f"{self.series.name} does not tell its counters: {error or 'no answer in 5 s'}") from error
        stats = msgspec.json.decode(answer.body, type=_Stats)
        return Counters(stats.adapter_loads, int(preemptions), int(prompt), int(cached)), stats.clock

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    async def _metrics(self, *names: str) -> list[float]:
        answer = await self._client.get("/metrics/?" + urlencode([("name[]", name) for name in names]))
        page = find(answer.body, names)
        missing = [name for name in names if name not in page.series]
        if missing:
            raise DemoError(f"{self.series.name}: no {', '.join(missing)} on its metrics page")
        return [sum(series.value for series in page.series[name]) for name in names]


async def sample_forever(monitors: Iterable[EngineMonitor], start_s: float) -> None:
    """Samples all engines at a steady pace until cancelled."""
    monitors = list(monitors)
    due_s = start_s
    while True:
        await asyncio.gather(*(monitor.sample(start_s) for monitor in monitors))
        due_s += SAMPLE_EVERY_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
