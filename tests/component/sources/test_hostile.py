"""Endpoints that send too much, too little, too slowly or for ever cost bounded time and memory, and nobody else."""

import asyncio
import contextlib
import gzip
import itertools

import pytest

from engine_pages import RecordingSink, answer, page, serving, until
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http import HttpClient, Limits
from poolpilot_picker.sources.http_connection import Connection
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.state.endpoints import EndpointSpec

BUSY = page("vllm-0.32/metrics-busy-lora.txt")
LIMITS = Limits(connect_timeout_ms=5_000, timeout_ms=5_000, max_bytes=2**20)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@contextlib.asynccontextmanager
async def sending(pieces):
    """A server that answers each connection with the pieces, as fast as they are taken, for ever where they do not end.

    Yields (port, bytes that were sent).
    """
    sent = [0]

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces():
                writer.write(piece)
                sent[0] += len(piece)
                await writer.drain()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], sent
    finally:
        server.close()


def forever(head: bytes, piece: bytes):
    return lambda: itertools.chain([head], itertools.repeat(piece))


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        (forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n"), ErrorKind.TOO_LARGE),
        (forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000), ErrorKind.PROTOCOL),
        (forever(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 1000), ErrorKind.PROTOCOL),
        (forever(OK + b"\r\n", b"x" * 65_536), ErrorKind.TOO_LARGE),
        (forever(OK, b"X-Name: value\r\n" * 100), ErrorKind.TOO_LARGE),
        (forever(OK, b"x" * 4096), ErrorKind.TOO_LARGE),
        (forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), ErrorKind.PROTOCOL),
        (lambda: [OK + b"a: b\r\n" * 300 + b"Content-Length: 1\r\n\r\nx"], ErrorKind.PROTOCOL),
        (lambda: [OK + b"Content-Length: 999999999999\r\n\r\n"], ErrorKind.TOO_LARGE),
    ],
    ids=[
        "chunks",
        "tiny chunks",
        "trailers",
        "to the close",
        "fields",
        "one field",
        "interim",
        "many fields",
        "length",
    ],
)
async def test_what_never_ends_is_given_up_by_its_size(pieces, kind):
    async with sending(pieces) as (port, sent):
        client = HttpClient("127.0.0.1", port)
        with pytest.raises(FetchError) as error:
            await client.get("/metrics", {}, LIMITS)
        assert error.value.kind is kind
        # What was sent beyond the limit lies in the buffers of the kernel.
        assert sent[0] < 2**20 + 2**24


async def test_a_buffer_is_as_large_as_its_answer_and_lent_for_as_long():
    body = b"x" * 900_000
    replies = [answer(body), answer(b"small"), answer(body)]
    async with serving(lambda _: replies.pop(0)) as server:
        client = HttpClient("127.0.0.1", server.port)
        for expected in (body, b"small", body):
            assert (await client.get("/", {}, LIMITS)).body == expected
            connection = client._connection
            assert isinstance(connection, Connection)
            assert len(connection._buffer) == 0
        client.close()
        assert server.connections == 1


async def test_a_head_that_is_nearly_the_last_one():
    replies = [
        answer(b"one"),
        answer(b"three, longer"),
        answer(b"4", status=503),
        answer(b"five"),
        answer(b"six").replace(b"Content-Length: 3", b"Content-Length: 3 "),
        answer(b"seven").replace(b"Content-Length: 5", b"Content-Length: +5"),
    ]
    async with serving(lambda _: replies.pop(0)) as server:
        client = HttpClient("127.0.0.1", server.port)
        found = [await client.get("/", {}, LIMITS) for _ in range(5)]
        assert [one.body for one in found] == [b"one", b"three, longer", b"4", b"five", b"six"]
        assert [one.status for one in found] == [200, 200, 503, 200, 200]
        with pytest.raises(FetchError) as error:
            await client.get("/", {}, LIMITS)
        assert error.value.kind is ErrorKind.PROTOCOL


@contextlib.asynccontextmanager
async def polling(sink, *specs, **options):
    cadence = Cadence(fast_ms=10, slow_ms=10, retry_ms=10, retry_max_ms=40, models_ms=60_000)
    source = TelemetrySource(sink, **{"settings": Settings(cadence=cadence, limits=LIMITS), **options})
    source.update(specs)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def spec_of(port: int) -> EndpointSpec:
    return EndpointSpec(host="127.0.0.1", port=port, engine="triton")


TRITON = b"nv_inference_pending_request_count 4\n"


@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_what_is_packed_is_not_unpacked(coding):
    sink = RecordingSink()
    bomb = gzip.compress(b"nv_inference_pending_request_count 4\n" * 100_000)
    async with (
        serving(lambda _: answer(bomb, Content_Encoding=coding)) as server,
        polling(sink, spec_of(server.port)),
    ):
        await until(lambda: len(sink.unreachable) >= 3)
        assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}
    assert {reason for _, reason, _ in sink.unreachable} == {ErrorKind.CONTENT}
    assert not sink.samples


async def test_an_endpoint_that_hangs_after_good_answers_is_given_up_and_delays_nobody():
    sink = RecordingSink()
    hang: list[bool] = []
    short = Settings(
        cadence=Cadence(fast_ms=10, slow_ms=10, retry_ms=10, retry_max_ms=40, models_ms=60_000),
        limits=Limits(connect_timeout_ms=5_000, timeout_ms=200),
    )
    async with (
        serving(lambda _: asyncio.sleep(60) if hang else answer(TRITON)) as ill,
        serving(lambda _: answer(TRITON)) as good,
        polling(sink, spec_of(ill.port), spec_of(good.port), settings=short) as source,
    ):
        await until(lambda: len(sink.samples) >= 10 and len({address for address, _ in sink.samples}) == 2)
        hang.append(True)
        count = len(sink.samples)
        await until(lambda: sink.unreachable)
        assert source.stats.endpoints[spec_of(ill.port).address].reason is ErrorKind.TIMEOUT
        assert len(sink.samples) > count
        hang.clear()
        sink.samples.clear()
        await until(lambda: spec_of(ill.port).address in {address for address, _ in sink.samples})
    assert {(address, reason) for address, reason, _ in sink.unreachable} == {
        (spec_of(ill.port).address, ErrorKind.TIMEOUT)
    }


async def test_a_kept_connection_closed_between_polls_is_replaced_unseen():
    sink = RecordingSink()
    replies = itertools.cycle([answer(TRITON), answer(TRITON), None])
    async with serving(lambda _: next(replies)) as server, polling(sink, spec_of(server.port)) as source:
        await until(lambda: len(sink.samples) >= 12)
        assert "reset" not in source.stats.errors
    assert not sink.unreachable


async def test_large_pages_are_read_in_turns():
    sink = RecordingSink()
    lines = b"".join(b'nv_inference_pending_request_count{model="%d"} 1\n' % number for number in range(16_000))
    assert 700_000 < len(lines) < 2**20
    turns = []
    loop = asyncio.get_running_loop()

    def count():
        turns.append(len(sink.samples))
        loop.call_soon(count)

    async with serving(lambda _: answer(lines)) as server, polling(sink, spec_of(server.port)):
        await until(lambda: sink.samples)
        loop.call_soon(count)
        seen = len(sink.samples)
        await until(lambda: len(sink.samples) > seen + 2)
        assert sink.samples[-1][1].waiting == 16_000.0
        per_sample = len(turns) / (len(sink.samples) - seen)
    assert per_sample >= 16_000 / 512


async def test_pages_are_polled_without_a_task_each():
    sink = RecordingSink()
    async with serving(lambda _: answer(TRITON)) as server, polling(sink, spec_of(server.port)) as source:
        await until(lambda: len(sink.samples) >= 3)
        await until(lambda: not source._tasks)
        spawned = []
        source._spawn = lambda *arguments: spawned.append(arguments)  # type: ignore[method-assign]
        count = len(sink.samples)
        await until(lambda: len(sink.samples) >= count + 10)
        assert not spawned
    assert server.connections <= 2
