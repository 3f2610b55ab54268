"""How the gRPC transport ends a stream, with a stand-in for gRPC's own context: what real clients make hard to time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from exchange_desk import BUFFERED, NONE, Desk
from poolpilot_picker.extproc.grpc_transport import GrpcTransport, _Stream
from poolpilot_picker.extproc.listener import ListenerSettings
from poolpilot_picker.extproc.replies import BodyReply, PatienceReply, TrailersReply

if TYPE_CHECKING:
    from collections.abc import Callable


class Context:
    """Hands out messages and then does what it is told; remembers what was written."""

    def __init__(self, *messages: ext_proc.ProcessingRequest, then: Callable[[], Any]) -> None:
        self._messages = list(messages)
        self._then = then
        self.written: list[ext_proc.ProcessingResponse] = []
        self.aborted: grpc.StatusCode | None = None
        self.gone = False
        self.write_error: BaseException | None = None

    async def read(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        return await self._then()

    async def write(self, message: ext_proc.ProcessingResponse) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.aborted = code
        raise grpc.aio.AbortError(details)

    def done(self) -> bool:
        return self.gone


class Bench:
    """A transport that nobody connects to."""

    def __init__(self) -> None:
        self.desk = Desk(BUFFERED, NONE)
        self.transport = GrpcTransport(ListenerSettings(address="127.0.0.1:0"), self.desk.renew, lambda: self.desk.now)

    async def run(self, context: Context) -> BaseException | None:
        """Serves one stream to its end; returns what the handler raised."""
        results = await asyncio.gather(self.transport._process(None, context), return_exceptions=True)  # type: ignore[arg-type]
        assert self.transport.streams == 0
        self.desk.settled()
        [raised] = results
        return raised if isinstance(raised, BaseException) else None


def models() -> ext_proc.ProcessingRequest:
    """A request that is placed at its headers."""
    message = ext_proc.ProcessingRequest()
    message.request_headers.end_of_stream = True
    return message


async def raising(error: BaseException) -> Any:
    raise error


async def eof() -> Any:
    return grpc.aio.EOF


async def test_end_of_file_is_the_normal_end() -> None:
    bench = Bench()
    context = Context(models(), then=eof)
    assert await bench.run(context) is None
    assert len(context.written) == 1 and bench.transport.ended == {"OK": 1}


@pytest.mark.parametrize("messages", [0, 1])
async def test_a_cancelled_stream_stays_cancelled(messages: int) -> None:
    """gRPC cancels the handler when the data plane resets the stream: nothing can be said any more."""
    bench = Bench()
    context = Context(*[models()] * messages, then=lambda: raising(asyncio.CancelledError()))
    assert isinstance(await bench.run(context), asyncio.CancelledError)
    assert len(context.written) == messages and context.aborted is None
    assert bench.transport.ended == {"Canceled": 1}


async def test_cancelled_while_writing() -> None:
    bench = Bench()
    context = Context(models(), then=eof)
    context.write_error = asyncio.CancelledError()
    assert isinstance(await bench.run(context), asyncio.CancelledError)
    assert bench.transport.ended == {"Canceled": 1}


async def test_cancelled_while_writing_although_it_is_to_end() -> None:
    """Its last words would follow half an answer."""
    bench = Bench()
    context = Context(models(), then=eof)

    async def write(_: object) -> None:
        for stream in bench.transport._streams:
            stream.end()
        raise asyncio.CancelledError

    context.write = write  # type: ignore[method-assign]
    assert isinstance(await bench.run(context), asyncio.CancelledError)


async def test_told_to_end_while_writing_it_finishes_what_it_says() -> None:
    bench = Bench()
    context = Context(models(), then=eof)
    plain = context.write

    async def write(message: ext_proc.ProcessingResponse) -> None:
        for stream in bench.transport._streams:
            stream.end()
        await asyncio.sleep(0)
        await plain(message)

    context.write = write  # type: ignore[method-assign]
    assert await bench.run(context) is None
    assert len(context.written) == 1 and bench.transport.ended == {"OK": 1}


async def test_a_write_to_a_stream_that_is_gone_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    context = Context(models(), then=eof)
    context.write_error, context.gone = grpc.aio.UsageError("RPC already finished."), True
    await bench.run(context)
    assert context.aborted is None and caplog.records == []
    assert bench.transport.ended == {"Canceled": 1}


async def test_a_fault_is_an_error_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(3):
        context = Context(models(), then=lambda: raising(ValueError("bytes")))
        await bench.run(context)
        assert context.aborted is grpc.StatusCode.INTERNAL
    assert bench.transport.ended == {"Internal": 3}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert bench.desk.outcomes() == {"aborted": 3}
    assert bench.desk.in_flight() == {}


class SlowContext(Context):
    """Writes take their time, and may not overlap."""

    def __init__(self) -> None:
        super().__init__(then=eof)
        self.free = asyncio.Event()
        self.writing = False

    async def write(self, message: ext_proc.ProcessingResponse) -> None:
        assert not self.writing, "a call takes one write at a time"
        self.writing = True
        await self.free.wait()
        self.writing = False
        self.written.append(message)


async def test_what_is_said_while_an_answer_is_being_written_comes_behind_it() -> None:
    """A request is dispatched while the data plane is still asked for patience."""
    context, desk = SlowContext(), Desk(BUFFERED, NONE)
    task = asyncio.current_task()
    assert task is not None
    stream = _Stream(desk.exchange, task, context)  # type: ignore[arg-type]
    answering = asyncio.create_task(stream.answer([PatienceReply(milliseconds=1_000)]))
    await asyncio.sleep(0)
    assert context.writing
    stream.say([BodyReply(request=True)])
    stream.say([TrailersReply(request=True)])
    for _ in range(3):
        await asyncio.sleep(0)
    context.free.set()
    await answering
    await stream.answer([TrailersReply(request=False)])
    kinds = [message.WhichOneof("response") for message in context.written]
    assert kinds == [None, "request_body", "request_trailers", "response_trailers"]
