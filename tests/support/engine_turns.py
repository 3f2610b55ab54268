"""Engines whose answers arrive when a test says so, in front of a TelemetrySource with a clock that is moved."""

import asyncio
import random

from engine_pages import RecordingSink
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http_response import Answer, Response
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.state.endpoints import EndpointSpec

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
EVERY = Cadence(fast_ms=50.0, slow_ms=50.0, everything_ms=1e9, models_ms=1e9, jitter=0.0)


class Engines:
    """Engines whose answers arrive when `answer` is called; reading each costs `cost_ms` of the event loop."""

    def __init__(self, count: int, cost_ms: float, **settings) -> None:
        self.now = 1_000.0
        self.cost_ms = cost_ms
        self.asked: list[Kept] = []
        self.reads: dict[int, list[float]] = {port: [] for port in range(1, count + 1)}
        self.silent: set[int] = set()
        self.sink = RecordingSink()
        self.source = TelemetrySource(
            self.sink,
            settings=Settings(cadence=EVERY, **settings),
            connect=lambda host, port: Kept(self, port),
            now=lambda: self.now,
            rng=random.Random(1),
        )
        self.source.update(EndpointSpec(host="10.0.0.1", port=port) for port in self.reads)

    async def start(self) -> None:
        """Until all are connected, their first pages and model lists read."""
        while len(self.sink.models) < len(self.reads) or not all(self.reads.values()):
            self.turn(5.0)
            await asyncio.sleep(0)
        for reads in self.reads.values():
            reads.clear()

    def turn(self, ms: float) -> None:
        self.now += ms
        self.source.start_due()
        asked, self.asked = self.asked, []
        for one in asked:
            self.source.meter.busy_s += self.cost_ms / 1000.0
            one.answer()


class Kept:
    """A client with a kept connection, from the second GET on."""

    def __init__(self, engines: Engines, port: int) -> None:
        self.engines = engines
        self.port = port
        self.done = None
        self.connected = False

    async def get(self, target, headers, limits):
        self.connected = True
        return Response(200, {}, PAGE)

    def begin(self, target, headers, limits, done):
        if not self.connected:
            return False
        self.done = done
        self.engines.reads[self.port].append(self.engines.now)
        if self.port not in self.engines.silent:
            self.engines.asked.append(self)
        return True

    def answer(self):
        if self.done is not None:
            done, self.done = self.done, None
            done(Answer(200, {}, PAGE, 0, len(PAGE)))

    def close(self, error=None):
        self.connected = False
        if self.done is not None:
            done, self.done = self.done, None
            done(error or FetchError(ErrorKind.RESET, "closed", unheard=True))
