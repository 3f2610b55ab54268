"""The Go programs of the cost bench by themselves: what the servers tell, and that the clients hide nothing."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from poolpilot_lab.bench.cost import pickers, probe, tools
from poolpilot_lab.bench.cost.pages import BASE_MODEL
from poolpilot_lab.processes import free_ports
from poolpilot_picker.sources.http import HttpClient, Limits

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="no Go compiler on the path")

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def program() -> Path:
    return asyncio.run(tools.built())


@pytest.fixture
async def generator(program: Path, tmp_path: Path) -> AsyncIterator[tools.Generator]:
    async with tools.Generator(program, tmp_path) as one:
        yield one


async def get(address: str, path: str) -> bytes:
    host, _, port = address.partition(":")
    client = HttpClient(host, int(port))
    try:
        answer = await client.get(path, {}, Limits())
        assert answer.status == 200
        return answer.body
    finally:
        client.close()


def values(page: bytes) -> dict[str, float]:
    lines = [line for line in page.decode().splitlines() if line and not line.startswith("#")]
    return {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


async def test_the_servers_tell_what_an_engine_tells(program: Path, tmp_path: Path) -> None:
    [port] = free_ports(1, "127.0.1.1")
    where = tools.addresses(3, port)
    assert where == [f"127.0.1.{number}:{port}" for number in (1, 2, 3)]
    async with tools.Servers(program, where, tmp_path, selects=True) as servers:
        whole = await get(where[0], "/metrics")
        assert 50_000 < len(whole) < 60_000
        assert len(values(whole)) > 100
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        query = "&".join(f"name[]={name}" for name in gauges)
        first, second = [values(await get(where[1], f"/metrics/?{query}")) for _ in range(2)]
        assert set(first) == set(gauges)
        assert first["vllm:num_requests_running"] == 0
        assert first["vllm:kv_cache_usage_perc"] != second["vllm:kv_cache_usage_perc"], "gauges move"
        assert BASE_MODEL.encode() in await get(where[2], "/v1/models")
        counts = await servers.counts()
        assert (counts.pages, counts.models, counts.requests) == (3, 1, 0)
        assert counts.page_bytes > len(whole)


async def test_servers_that_cannot_select_send_everything(program: Path, tmp_path: Path) -> None:
    [port] = free_ports(1, "127.0.1.1")
    async with tools.Servers(program, tools.addresses(1, port), tmp_path, selects=False):
        page = await get(f"127.0.1.1:{port}", "/metrics/?name[]=vllm:num_requests_running")
    assert len(page) > 50_000


async def test_streams_and_whole_answers(generator: tools.Generator, program: Path, tmp_path: Path) -> None:
    [port] = free_ports(1, "127.0.1.1")
    [where] = tools.addresses(1, port)
    async with tools.Servers(program, [where], tmp_path / "s", selects=True) as servers:
        await servers.shape(chunks=7, interval_ms=1.0)
        spec = tools.LoadSpec(target=where, concurrency=3, requests=12, prompt=tools.Prompt(bytes=900, stream=True))
        streamed = await generator.run(spec)
        # Seven chunks and [DONE].
        assert (streamed.count, streamed.errors, streamed.chunks) == (12, 0, 12 * 8)
        whole = await generator.run(
            tools.LoadSpec(target=where, concurrency=2, requests=10, prompt=tools.Prompt(bytes=900_000))
        )
        assert (whole.count, whole.errors, whole.chunks, whole.connections) == (10, 0, 0, 2)
        assert (await servers.counts()).requests == 22


async def test_a_body_that_was_written_anew_is_streamed_too(program: Path, tmp_path: Path) -> None:
    """Go's pickers write the fields in the order of their names: `stream` comes after the messages."""
    [port] = free_ports(1, "127.0.1.1")
    [where] = tools.addresses(1, port)
    body = b'{"max_tokens":200,"messages":[{"content":"%s","role":"user"}],"model":"bench","stream":true}' % (
        b"a " * 500
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    async with tools.Servers(program, [where], tmp_path / "s", selects=True) as servers:
        await servers.shape(chunks=3, interval_ms=1.0)
        reader, writer = await asyncio.open_connection("127.0.1.1", port)
        writer.write(head + body)
        answer = await reader.read()
        writer.close()
    assert answer.count(b"data: ") == 4


async def test_a_stream_that_comes_in_one_piece_is_an_error(generator: tools.Generator) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    async with served(handler) as where:
        prompt = tools.Prompt(bytes=900, stream=True)
        told = await generator.run(tools.LoadSpec(target=where, concurrency=1, requests=1, prompt=prompt))
    assert told.errors == 1
    assert list(told.reasons) == ["answer in one piece where a stream was asked for"]


@contextlib.asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """The address of a server whose connections are closed when the handler is done, and at the end all of them."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await handler(reader, writer)
                await writer.drain()
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def body_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(int(length.split(b":")[1]))


async def test_arrivals_do_not_wait_for_answers(generator: tools.Generator) -> None:
    """An open loop: nobody is answered before twenty have asked. A closed one would never get there."""
    asked = 0
    enough = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await body_of(reader)
        asked += 1
        if asked == 20:
            enough.set()
        await enough.wait()
        writer.write(OK)

    async with served(handler) as where:
        spec = tools.LoadSpec(target=where, rate=400.0, requests=20, limit_s=20.0, prompt=tools.Prompt(bytes=300))
        result = await generator.run(spec)
    assert (result.count, result.errors, result.connections) == (20, 0, 20)
    # The first has waited for all the others: that is in its latency, which counts from when it was due.
    assert result.latency_ms.max >= result.latency_ms.p50 > 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy", "status 503: busy"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n0\r\n\r\n", "without its end"),
        (b"SSH-2.0-server\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "EOF"),
        (b"", "EOF"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(generator: tools.Generator, answer: bytes, reason: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await body_of(reader)
        writer.write(answer)

    async with served(handler) as where:
        spec = tools.LoadSpec(target=where, concurrency=1, requests=3, limit_s=20.0, prompt=tools.Prompt(bytes=300))
        result = await generator.run(spec)
    assert (result.count, result.errors) == (0, 3)
    [said] = result.reasons
    assert reason in said


async def test_prompts_are_new_or_share_their_beginning(generator: tools.Generator) -> None:
    bodies: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            bodies.append(await body_of(reader))
            writer.write(OK)

    async with served(handler) as where:
        for prompt in (
            tools.Prompt(bytes=1_000),
            tools.Prompt(bytes=1_000, prefixes=2, prefix_share=0.5, models=("m-1", "m-2")),
        ):
            await generator.run(tools.LoadSpec(target=where, concurrency=1, requests=12, limit_s=20.0, prompt=prompt))
    assert [len(body) for body in bodies] == [1_000] * 24
    starts = [body.partition(b'"content":"')[2][:400] for body in bodies]
    assert len(set(starts[:12])) == 12
    assert len(set(starts[12:])) == 2
    assert {body[:16] for body in bodies[12:]} == {b'{"model":"m-1","', b'{"model":"m-2","'}


@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_a_picker_is_probed_without_an_envoy(generator: tools.Generator, tmp_path: Path, transport: str) -> None:
    [pod] = tools.addresses(1, 9)
    async with pickers.poolpilot([pod], transport, pickers.Scrape.ADAPTIVE, 1, tmp_path / "p") as picker:
        result = await generator.probe(probe.spec(picker.ports[0], pod, rate=300.0, requests=40, seed=1))
    assert (result.count, result.errors) == (40, 0)
    assert result.unstamped == 0
    assert 0 < result.handed_ms.p50 <= result.handed_ms.p99
    assert 0 < result.reply_ms.p50 <= result.reply_ms.p99


async def test_a_reply_counts_from_its_request_to_the_kernel_s_stamp(generator: tools.Generator) -> None:
    headers = b"\x88"  # :status 200
    reply = b"\0\0\0\0\1x"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"Process")
        await asyncio.sleep(0.2)
        writer.write(frame(1, 4, 1, headers) + frame(0, 0, 1, reply) + frame(1, 5, 1, headers))
        await reader.read()

    async with served(handler) as where:
        port = int(where.rpartition(":")[2])
        result = await generator.probe(probe.spec(port, "127.0.1.1:9", rate=50.0, requests=1, seed=1))
    assert (result.count, result.errors, result.unstamped) == (1, 0, 0)
    assert result.handed_ms.p50 > 190.0, "since the request, not since the reply"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


async def test_exchanges_without_a_reply_are_errors(generator: tools.Generator) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"Process")

    async with served(handler) as where:
        port = int(where.rpartition(":")[2])
        result = await generator.probe(probe.spec(port, "127.0.1.1:9", rate=50.0, requests=1, seed=1))
    assert (result.count, result.errors) == (0, 1)


async def test_a_spec_without_bounds_is_refused(generator: tools.Generator) -> None:
    with pytest.raises(tools.BenchError, match="neither seconds nor requests bound the run"):
        await generator.run(tools.LoadSpec(target="127.0.0.1:9", concurrency=1, prompt=tools.Prompt(bytes=300)))


async def test_a_generator_that_ends_is_said(generator: tools.Generator) -> None:
    generator.child.kill()
    assert await generator.child.ended(5.0)
    with pytest.raises(tools.BenchError, match="load generator: "):
        await generator.run(
            tools.LoadSpec(target="127.0.0.1:9", concurrency=1, seconds=1, prompt=tools.Prompt(bytes=300))
        )


async def test_where_there_is_no_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(tools.UsageError, match="stand-in servers and load generator: no Go compiler"):
        await tools.built()
