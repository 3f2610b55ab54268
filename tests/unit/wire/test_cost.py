"""What an exchange costs in the wire transport, in units that no machine changes: calls, writes, bytes, memory.

These are ceilings a little above what it costs now; who raises one should know why.
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from exchange_desk import ADDRESSES, Chosen, spec_of
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.replies import HeadersReply, Mutation, Reply, StreamedReply
from poolpilot_picker.extproc.wire import connection
from poolpilot_picker.extproc.wire.calls import Service
from poolpilot_picker.extproc.wire.connection import Connection
from poolpilot_picker.extproc.wire.limits import Held, Limits
from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.instruments.metrics import PickerMetrics
from wire_traffic import BUFFERED_PARTIAL, DUPLEX, HELLO, NONE, DataPlane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = pytest.mark.usefixtures("both_cores")

LIMITS = Limits()
DESTINATION = ADDRESSES[0]


class Instant:
    """Stands for an exchange that costs nothing: the transport alone is measured."""

    PLACED = Mutation(
        set_headers=(("x-gateway-destination-endpoint", DESTINATION), ("content-length", "1000")),
        destination=DESTINATION,
    )
    passing = False

    def set_modes(self, request: int, response: int) -> None:
        """Full duplex is meant."""

    def request_headers(self, *_: Any, **__: Any) -> list[Reply]:
        return []

    def request_body(self, chunk: bytes, end: bool, **_: Any) -> list[Reply]:
        if not end:
            return []
        chunk_reply = StreamedReply(request=True, chunk=chunk, end_of_stream=True)
        return [HeadersReply(request=True, mutation=self.PLACED), chunk_reply]

    def response_headers(self, *_: Any, **__: Any) -> list[Reply]:
        return [HeadersReply(request=False)]

    def response_body(self, chunk: bytes, end: bool, **_: Any) -> list[Reply]:
        return [StreamedReply(request=False, chunk=chunk, end_of_stream=end)]

    def closed(self, **_: Any) -> None:
        """Nothing."""


class Wire:
    """A connection, and what was written to it."""

    def __init__(self, new_exchange: Callable[[], Any], first: Iterable[bytes]) -> None:
        self.held = Held(LIMITS.max_held_bytes)
        self.now = 0.0
        self.service = Service(new_exchange, lambda: self.now, LIMITS, self.held)
        self.connection = Connection(LIMITS, self.held, self.service.accept, 0.0, self.service.messages)
        self.written = 0
        self.take([HELLO, *first])

    def take(self, reads: Iterable[bytes]) -> None:
        """What the transport does with each read."""
        for data in reads:
            self.now += 10.0
            self.connection.receive(data, self.now)
            self.written += len(self.connection.take())
            assert not self.connection.more
        assert self.connection.failure is None


def calls(work: Callable[[], None]) -> tuple[int, int]:
    """(calls of Python functions, of C functions) that a piece of work makes."""
    python = native = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal python, native
        python += event == "call"
        native += event == "c_call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return python, native


def reads(plane: DataPlane, numbers: Iterable[int], **how: Any) -> list[bytes]:
    return [data for number in numbers for data in plane.exchange(number, **how)]


def test_calls_of_a_short_exchange() -> None:
    plane = DataPlane(DESTINATION)
    wire = Wire(Instant, reads(plane, range(50)))
    work = reads(plane, range(50, 150))
    python, native = calls(lambda: wire.take(work))
    assert python / 100 <= 140, f"{python / 100} calls of Python functions for each exchange"
    assert native / 100 <= 210, f"{native / 100} calls of C functions for each exchange"
    assert wire.service.reader.unfamiliar == 0, "every message is read by hand"


def test_calls_of_a_chunk() -> None:
    plane = DataPlane(DESTINATION)
    wire = Wire(Instant, reads(plane, range(50)))
    few, many = reads(plane, range(1), chunks=10), reads(plane, range(1), chunks=110)
    less, more = calls(lambda: wire.take(few)), calls(lambda: wire.take(many))
    python, native = ((of_many - of_few) / 100 for of_few, of_many in zip(less, more, strict=True))
    assert python <= 18, f"{python} calls of Python functions for each chunk, in a read of its own"
    assert native <= 28, f"{native} calls of C functions"


def test_replies_are_short() -> None:
    plane = DataPlane(DESTINATION)
    wire = Wire(Instant, ())
    before = wire.written
    wire.take(plane.exchange(1, chunks=10))
    echoed = 10 * 208
    assert wire.written - before <= echoed + 650


def exchanges(**modes: int) -> tuple[Wire, DataPlane]:
    """Real exchanges on a small pool."""
    pool = Pool("pool", Chosen(), random.Random(1), PoolSettings(receipt_share=0.0))
    pool.apply_endpoints([spec_of(address) for address in ADDRESSES])
    metrics = PickerMetrics(CollectorRegistry())
    plane = DataPlane(DESTINATION, **modes)
    return Wire(lambda: Exchange(pool, metrics, ExchangeSettings()), ()), plane


@pytest.mark.parametrize(
    "modes",
    [{"request": DUPLEX, "response": DUPLEX}, {"request": BUFFERED_PARTIAL, "response": NONE}],
    ids=["full-duplex", "buffered"],
)
def test_nothing_is_kept_of_exchanges_that_ended_or_were_reset(
    modes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ENDS_KEPT", 100)  # reached before it is measured
    wire, plane = exchanges(**modes)
    resets = ("end", "end", "head", "body", "answer")

    def kept_after(numbers: range) -> int:
        for number in numbers:
            wire.take(plane.exchange(number, reset=resets[number % len(resets)]))
        # What is remembered has bounds of its own, and tests.
        wire.service.reader._fields.known.clear()
        wire.service.writer.options.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before, after = kept_after(range(500)), kept_after(range(500, 1_500))
    finally:
        tracemalloc.stop()
    assert (after - before) / 1_000 <= 20.0, f"{(after - before) / 1_000} bytes for each exchange"
    assert wire.held.bytes == 0 and not wire.service.calls and not wire.connection.streams
    ended = wire.service.ended
    assert ended == {"Canceled": 1_500} if modes["response"] == DUPLEX else ended == {"OK": 600, "Canceled": 900}
