"""What a request's way costs beside the decision, in numbers that no machine changes: calls, writes, bytes, memory.

A real Envoy's reads go into the wire transport, its writes are counted, and calls are counted where the code called
from stands in the rooms on the way: transport, exchange, parsing, metrics. The decision is real, and not counted here.

When a test fails: the ceilings are a few percent above what the way cost when they were written (the numbers are in
docs/benchmarks/path.md). Look at what the change added for each message or chunk: a call, a copy, an object. Take it
out; or, if it must be there, raise the ceiling in the same commit and say there what the new cost buys.
A ceiling far above the present count is to be lowered.

Two ceilings each: with the compiled core, which reads and writes short messages itself (`compiled/_wire.pyx`), and with
the reference. What compiled code calls is not counted, so the first says how much Python is left on the way, and the
second is what guards the way's structure; CPU time of both is in docs/benchmarks/path.md.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from envoy_recording import HELLO, Recording
from exchange_desk import spec_of
from poolpilot_picker import compiled
from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import DEFAULT_POLICY, policy_config
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.listener import ListenerSettings
from poolpilot_picker.extproc.wire.frames import SETTINGS_ACK
from poolpilot_picker.extproc.wire.transport import Socket, WireTransport
from poolpilot_picker.flow.pool import Pool, PoolSettings
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests.shapes import CHAT
from poolpilot_picker.routing.registry import build_profile, default_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = [pytest.mark.quality, pytest.mark.usefixtures("core")]

ROOMS = ("/poolpilot_picker/extproc/", "/poolpilot_picker/requests/", "/poolpilot_picker/instruments/")
TIMES = 50
OTHERS = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")


@pytest.fixture(params=["compiled", "reference"])
def core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which is in force."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "in_force", compiled.load() if request.param == "compiled" else None)
        yield request.param


class Counted:
    """Stands where the event loop's transport would: takes what is written."""

    def __init__(self) -> None:
        self.writes = self.bytes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.bytes += len(data)

    def set_write_buffer_limits(self, **_: Any) -> None:
        """Nothing is buffered."""

    def get_extra_info(self, name: str) -> None:
        """No TLS."""

    def is_closing(self) -> bool:
        return False


class Way:
    """A picker with four endpoints and the default policy, and one connection of Envoy's to it."""

    def __init__(self, recording: Recording, warm: int = 2) -> None:
        """`warm`: exchanges before anything is counted."""
        self.pool = Pool(
            "pool",
            build_profile(load(policy_config(DEFAULT_POLICY), default_registry())),
            random.Random(1),
            PoolSettings(observe_share=0.0, receipt_share=0.0),
        )
        self.pool.apply_endpoints([spec_of(address) for address in (recording.pod, *OTHERS)])
        for _ in range(200):
            self.pool.lengths.observe("m", "", 10.0)  # enough answers were watched: else all are
        self.metrics = PickerMetrics(CollectorRegistry())
        self.now = 0.0
        transport = WireTransport(ListenerSettings(address="127.0.0.1:0"), self._exchange, lambda: self.now)
        self.service = transport._service
        self.socket, self.wire = Socket(transport), Counted()
        self.socket.connection_made(self.wire)  # type: ignore[arg-type]
        self._recording, self._next = recording, 0
        self.read([HELLO + SETTINGS_ACK])
        self.read(self.reads(warm))

    def _exchange(self) -> Exchange:
        return Exchange(self.pool, self.metrics, ExchangeSettings())

    def reads(self, times: int) -> list[bytes]:
        """Of so many exchanges, one after the other."""
        first, self._next = self._next, self._next + times
        return [read for number in range(first, self._next) for read in self._recording.played(number)]

    def read(self, reads: Iterable[bytes]) -> None:
        """What the event loop does with what the socket brings."""
        for data in reads:
            self.now += 1.0
            self.socket.data_received(data)
            while self.socket.connection.more:
                self.socket.data_received(b"")
        assert self.socket.connection.failure is None


def calls(work: Callable[[], None]) -> tuple[int, int]:
    """(calls of Python functions, of C functions) that the rooms on the way make."""
    python = native = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal python, native
        if event == "call":
            python += any(room in frame.f_code.co_filename for room in ROOMS)
        elif event == "c_call":
            native += any(room in frame.f_code.co_filename for room in ROOMS)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return python, native


async def measured(recording: Recording, times: int = TIMES) -> tuple[float, float, float, float]:
    """For each exchange: (Python calls, C calls, writes, bytes written)."""
    way = Way(recording, warm=times)
    reads = way.reads(times)
    writes, written, served = way.wire.writes, way.wire.bytes, served_by(way)
    python, native = calls(lambda: way.read(reads))
    assert served_by(way) - served == times, "every exchange was placed, and answered by a pod"
    assert way.service.reader.unfamiliar == 0, "every message was read by hand"
    assert not way.service.calls and not way.pool.table.requests.any()
    return python / times, native / times, (way.wire.writes - writes) / times, (way.wire.bytes - written) / times


def served_by(way: Way) -> int:
    """Exchanges that ended well."""
    return way.metrics.outcomes.labels("pool", "served").value


async def test_a_short_chat_in_full_duplex(core: str) -> None:
    python, native, writes, written = await measured(Recording("short"))
    assert python <= {"compiled": 63, "reference": 151}[core], f"{python} calls of Python functions"
    assert native <= {"compiled": 67, "reference": 219}[core], f"{native} calls of C functions"
    assert writes == 2, "one for each read that asks for an answer"
    assert written <= 1_730, f"{written} bytes written, of which 1,380 are the two bodies"


async def test_a_short_chat_in_the_best_mode(core: str) -> None:
    python, native, writes, written = await measured(Recording("best"))
    assert python <= {"compiled": 57, "reference": 124}[core], f"{python} calls of Python functions"
    assert native <= {"compiled": 62, "reference": 176}[core], f"{native} calls of C functions"
    assert writes == 3
    assert written <= 210, f"{written} bytes written"


async def test_a_chunk_of_a_streamed_answer(core: str) -> None:
    """What a chunk adds when it comes alone, as tokens do."""
    stream = Recording("stream")
    few, many = await measured(stream.streaming(10), 10), await measured(stream.streaming(110), 10)
    python, native, writes, written = ((more - less) / 100 for less, more in zip(few, many, strict=True))
    assert python <= {"compiled": 3.1, "reference": 8.1}[core], f"{python} calls of Python functions"
    assert native <= {"compiled": 3.1, "reference": 17.1}[core], f"{native} calls of C functions"
    assert writes == 1
    assert written <= 178, f"{written} bytes written, of which 147 are the chunk"


async def test_chunks_that_come_together_leave_together() -> None:
    recording = Recording("stream").streaming(100)
    way = Way(recording)
    *head, last, reset = way.reads(1)
    before = way.wire.writes
    way.read([*head[:3], b"".join(head[3:]) + last, reset])
    assert way.wire.writes - before == 3


def prompt(size: int) -> bytes:
    """A chat body of `size` bytes, of words as they come."""
    words = random.Random(size).choices(["the", "river", "between", "is", "quickly", "and", "of"], k=size // 4)
    text = " ".join(words)[: size - 100]
    return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]})


LONG_PROMPTS = {
    "compiled": {400_000: (230, 291), 4_000_000: (1_620, 2_180)},
    "reference": {400_000: (325, 503), 4_000_000: (1_850, 3_050)},
}
"""Calls of Python and of C functions."""


@pytest.mark.parametrize("size", [400_000, 4_000_000])
async def test_calls_of_a_long_prompt(size: int, core: str) -> None:
    python, native = LONG_PROMPTS[core][size]
    body = prompt(size)
    made, c_made, writes, written = await measured(Recording("short").asking(body), 4)
    assert made <= python, f"{made} calls of Python functions for {size} bytes"
    assert c_made <= native, f"{c_made} calls of C functions for {size} bytes"
    assert writes <= 3
    assert written <= 1.005 * len(body) + 1_000


@pytest.mark.parametrize("size", [400_000, 4_000_000])
async def test_memory_of_a_long_prompt(size: int) -> None:
    """Copies that exist at once: what was read, the body, its decoded text, the prompt, what is written."""
    body = prompt(size)
    way = Way(Recording("short").asking(body))
    reads = way.reads(1)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        way.read(reads)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= 4.3 * len(body), f"{(peak - before) / len(body):.2f} times the body's bytes"


async def test_a_long_prompt_beside_decoding_it() -> None:
    """CPU time, as a multiple of what decoding the JSON takes on the same machine in the same moment."""
    body = prompt(400_000)
    way = Way(Recording("short").asking(body))
    ratios = []
    # Nine are enough on a machine that does little else; what else runs empties the caches of the processor.
    for _ in range(60):
        reads = way.reads(2)
        began = time.process_time()
        way.read(reads)
        middle = time.process_time()
        for _ in range(10):
            CHAT.decode(body)
        ratios.append(5.0 * (middle - began) / (time.process_time() - middle))
        if len(ratios) >= 9 and min(ratios) <= 13.0:
            return
    pytest.fail(f"{min(ratios):.1f} times, at best, of {sorted(ratios)}")


async def test_nothing_runs_on() -> None:
    """The transport of these tests starts no timer and no task of its own."""
    Way(Recording("short"))
    assert len(asyncio.all_tasks()) == 1
