"""Engines without a network: the picker's telemetry reads pages from memory, for costs and calls that no kernel adds.

`Still` puts a `TelemetrySource` in front of pages whose bytes are handed to its connections in this process. `turn`
lets the clock pass and answers what was asked. Used by `bench.scrape --stages` and by the guards in `tests/quality`.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from poolpilot_picker.sources.engines import BUILTIN, Engine
from poolpilot_picker.sources.http import HttpClient, Limits
from poolpilot_picker.sources.http_connection import Connection
from poolpilot_picker.sources.http_response import Response, ResponseReader
from poolpilot_picker.sources.telemetry import TelemetrySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from poolpilot_picker.sources.http_connection import Done
    from poolpilot_picker.sources.surroundings import Settings, TelemetrySink
    from poolpilot_picker.state.endpoints import EndpointSpec


class _Asked(asyncio.Transport):
    """Keeps the requests of one connection."""

    def __init__(self, queue: list[_Asked]) -> None:
        super().__init__()
        self.connection = Connection()
        self.connection.connection_made(self)
        self.target = b""
        self._queue = queue

    @override
    def write(self, data: object) -> None:
        self.target = cast("bytes", data).split(b" ", 2)[1]
        self._queue.append(self)

    @override
    def is_closing(self) -> bool:
        return False

    @override
    def abort(self) -> None:
        raise AssertionError("the picker has dropped a connection")


class _Client(HttpClient):
    """A client whose connection is always there."""

    def __init__(self, still: Still, host: str, port: int) -> None:
        super().__init__(host, port)
        self._still = still
        self._asked = _Asked(still.asked)
        still.clients.append(self._asked)

    @override
    def begin(self, target: str, headers: Mapping[str, str], limits: Limits, done: Done) -> bool:
        self._asked.connection.begin(self._request(target, headers), limits.max_bytes, done)
        return True

    @override
    async def get(self, target: str, headers: Mapping[str, str], limits: Limits) -> Response:
        reader = ResponseReader(limits.max_bytes)
        reader.feed(self._still.answer(target.encode()))
        assert reader.response is not None
        return reader.response


class Still:
    """Telemetry of endpoints whose answers `answer(target)` gives. Times in ms."""

    def __init__(
        self,
        sink: TelemetrySink,
        specs: Iterable[EndpointSpec],
        answer: Callable[[bytes], bytes],
        settings: Settings,
        in_flight: Callable[[EndpointSpec], float] = lambda _: 0.0,
        engines: Mapping[str, Engine] = BUILTIN,
    ) -> None:
        self.answer = answer
        self.now_ms = 1_000.0
        self.asked: list[_Asked] = []
        self.clients: list[_Asked] = []
        self.source = TelemetrySource(
            sink,
            settings=settings,
            in_flight=in_flight,
            engines=engines,
            connect=lambda host, port: _Client(self, host, port),
            now=lambda: self.now_ms,
            rng=random.Random(1),
        )
        self.source.update(specs)

    def turn(self, ms: float = 5.0) -> int:
        """One turn of the scheduler after so much time, and the answers to all it asks; returns how many."""
        self.now_ms += ms
        self.source.start_due()
        asked = list(self.asked)
        self.asked.clear()
        for one in asked:
            self.arrive(one.connection, self.answer(one.target))
        return len(asked)

    async def start(self) -> None:
        """Until every first read is done."""
        for _ in range(200):
            self.turn(1.0)
            await asyncio.sleep(0)

    @staticmethod
    def arrive(connection: Connection, answer: bytes) -> None:
        """Hands the bytes of one answer to a connection."""
        rest = memoryview(answer)
        while rest:
            buffer = memoryview(connection.get_buffer(-1))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            connection.buffer_updated(size)
            rest = rest[size:]
