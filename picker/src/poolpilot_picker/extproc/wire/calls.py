"""gRPC calls on streams: messages in, replies out, one status at the end. The service says which call a stream is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from poolpilot_picker import compiled
from poolpilot_picker.extproc.listener import SERVICE
from poolpilot_picker.extproc.replies import NO_MUTATION, BodyReply, HeadersReply, StreamedReply
from poolpilot_picker.extproc.wire.echo import Echo
from poolpilot_picker.extproc.wire.errors import CallFault, Code, Status
from poolpilot_picker.extproc.wire.fast_replies import ReplyWriter
from poolpilot_picker.extproc.wire.fast_requests import RequestReader
from poolpilot_picker.extproc.wire.frames import unpack_number
from poolpilot_picker.extproc.wire.grpc_messages import (
    HEADERS,
    OK_ONLY,
    OK_TRAILERS,
    PREFIX_BYTES,
    MessageReader,
    check_encoding,
    is_grpc,
    trailers,
)
from poolpilot_picker.extproc.wire.hpack import encode
from poolpilot_picker.extproc.wire.stream import NO_CALL
from poolpilot_picker.instruments.seldom import Seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.extproc.exchange import Exchange
    from poolpilot_picker.extproc.replies import Reply
    from poolpilot_picker.extproc.wire.connection import Connection
    from poolpilot_picker.extproc.wire.fields import Section
    from poolpilot_picker.extproc.wire.limits import Held, Limits
    from poolpilot_picker.extproc.wire.stream import Call, Stream

log = logging.getLogger(__name__)

PROCESS: Final = f"/{SERVICE}/Process".encode()
FAILED: Final = "the picker failed; its log has the details"
SHUTTING_DOWN: Final = "the picker is shutting down"
NOT_GRPC: Final = b"This port speaks gRPC: Envoy's external processing (%s) and grpc.health.v1.Health.\n" % (
    SERVICE.encode()
)

CODES: Final = {
    Status.OK: "OK",
    Status.UNKNOWN: "Unknown",
    Status.NOT_FOUND: "NotFound",
    Status.RESOURCE_EXHAUSTED: "ResourceExhausted",
    Status.UNIMPLEMENTED: "Unimplemented",
    Status.INTERNAL: "Internal",
    Status.UNAVAILABLE: "Unavailable",
}
"""Spelled as Go's pickers do."""


class GrpcCall:
    """What all calls have in common. Subclasses say what a message does, and what the end of the request."""

    __slots__ = ("_reader", "_sender", "connection", "log_failure", "stream")

    def __init__(
        self, connection: Connection, stream: Stream, reader: MessageReader, log_failure: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.stream = stream
        self._reader = reader
        self._sender = connection.sender
        self.log_failure = log_failure

    def message(self, data: bytes) -> None:
        """A whole message of the peer."""
        raise NotImplementedError

    def complete(self) -> None:
        """The peer has said everything."""
        raise NotImplementedError

    def data(self, payload: bytes) -> None:
        """Bytes of messages."""
        stream = self.stream
        try:
            for message in self._reader.feed(payload):
                self.message(message)
                if stream.ending is not None:
                    return
        except CallFault as fault:
            self.end(fault.status, fault.message)
        except Exception:
            self.log_failure()
            self.end(Status.INTERNAL, FAILED)

    def over(self) -> None:
        """The peer sends no more."""
        if self._reader.have:
            self.end(Status.INTERNAL, "the last message is cut off")
        else:
            self.complete()

    def send(self, head: bytes, body: bytes = b"") -> None:
        """A message, given in two parts. A stream that cannot take more is reset."""
        stream = self.stream
        if stream.ending is not None:
            return
        if not stream.answered:
            self.connection.send_head(stream, HEADERS)
        if not self._sender.message(stream, head, body):
            self.connection.reset(stream.id, Code.ENHANCE_YOUR_CALM)

    def end(self, status: Status = Status.OK, message: str = "") -> None:
        """The status, and no more."""
        stream = self.stream
        if status is Status.OK:
            block = OK_TRAILERS if stream.answered else OK_ONLY
        else:
            block = trailers(status, message, only=not stream.answered)
        self.connection.finish(stream, block)

    def closed(self) -> None:
        """The call is at its end."""
        self._reader.forget()


class PlainCall:
    """What is not gRPC is told, at its end, that this is the wrong place for it."""

    __slots__ = ("_connection", "_method", "_stream")

    def __init__(self, connection: Connection, stream: Stream, method: bytes) -> None:
        self._connection = connection
        self._stream = stream
        self._method = method

    def data(self, payload: bytes) -> None:
        """Not read."""

    def over(self) -> None:
        """Answers."""
        post = self._method == b"POST"
        fields = [
            (b":status", b"415" if post else b"405"),
            (b"content-type", b"text/plain"),
            (b"content-length", b"%d" % len(NOT_GRPC)),
        ]
        if not post:
            fields.append((b"allow", b"POST"))
        self._connection.respond(self._stream, encode(fields), b"" if self._method == b"HEAD" else NOT_GRPC)

    def closed(self) -> None:
        """Nothing to tidy up."""


class ProcessCall(GrpcCall):
    """ExternalProcessor/Process: the stream of one exchange."""

    __slots__ = ("_code", "_echo", "_service", "exchange", "watching")

    def __init__(self, service: Service, connection: Connection, stream: Stream, reader: MessageReader) -> None:
        # As `GrpcCall` does, for one call less on each request's way.
        self.connection, self.stream, self._reader, self._sender = connection, stream, reader, connection.sender
        self.log_failure = service.log_failure
        self._service = service
        self._echo = service.echo.chunk
        self._code = "Canceled"
        self.exchange: Exchange = service.new_exchange()
        self.watching = False
        """Observability mode: nobody reads our answers."""
        self.exchange.outlet = self
        stream.direct = self.exchange
        service.calls[self] = None

    def data(self, payload: bytes) -> None:
        """Bytes of messages. As a rule a frame is a message, and most of them are chunks that pass through."""
        reader, size = self._reader, len(payload) - PREFIX_BYTES
        if reader.have or size < 0 or payload[0] or unpack_number(payload, 1)[0] != size or size > reader.limit:
            super().data(payload)
            # What follows a part of a message is no message.
            stream = self.stream
            stream.direct = self.exchange if not reader.have and stream.ending is None else None
            return
        try:
            if self.exchange.passing:
                echo = self._echo(payload, PREFIX_BYTES)
                if echo is not None:
                    self.send(*echo)
                    return
            self.message(payload, PREFIX_BYTES)
        except Exception:
            self.failed()

    def message(self, data: bytes, at: int = 0) -> None:
        service = self._service
        replies = service.reader.dispatch(self.exchange, data, self.connection.now, at)
        if replies is None:
            self.watching = True
            return
        encode_reply = service.writer.encode
        for reply in replies:
            self.send(*encode_reply(reply))

    def say(self, replies: list[Reply]) -> None:
        """What the exchange says without being asked."""
        encode_reply = self._service.writer.encode
        for reply in replies:
            self.send(*encode_reply(reply))
        self.connection.spoke()

    def failed(self) -> None:
        """The exception at hand is a fault of ours."""
        self.log_failure()
        self.end(Status.INTERNAL, FAILED)

    def complete(self) -> None:
        self.end()

    def end(self, status: Status = Status.OK, message: str = "") -> None:
        if self.stream.ending is None:
            self._code = CODES[status]
        super().end(status, message)

    def give_up(self) -> None:
        """The picker must end the stream now, in the way that does the least harm: see `Exchange.give_up`."""
        try:
            replies = [] if self.watching else self.exchange.give_up(self._service.now())
            for reply in replies or ():
                self.send(*self._service.writer.encode(reply))
        except Exception:
            self.failed()
            return
        if replies is None:
            self.end(Status.UNAVAILABLE, SHUTTING_DOWN)
        else:
            self.end()

    def closed(self) -> None:
        service, code = self._service, self._code
        if self._reader.have:
            self._reader.forget()
        if service.calls.pop(self, self) is self:
            return
        service.ended[code] = service.ended.get(code, 0) + 1
        try:
            self.exchange.closed(now=service.now())
        except Exception:
            self.log_failure()


class Service:
    """Of one listener: gives new streams their calls, and knows the calls that are open."""

    def __init__(
        self,
        new_exchange: Callable[[], Exchange],
        now: Callable[[], float],
        limits: Limits,
        held: Held,
    ) -> None:
        self.new_exchange = new_exchange
        self.now = now
        self.reader = RequestReader()
        self.writer = ReplyWriter()
        self.echo = Echo(self.reader, self.writer)
        core = compiled.in_force
        self.messages = (
            core.messages(
                self.reader,
                self.writer,
                (StreamedReply, HeadersReply, BodyReply, NO_MUTATION),
                HEADERS,
                limits.max_message_bytes,
            )
            if core is not None
            else None
        )
        """The compiled way of what is familiar, where the core is compiled; the rest of this module takes the rest."""
        self.calls: dict[ProcessCall, None] = {}
        self.ended: dict[str, int] = {}
        """Streams that have ended, by gRPC code."""
        self._limits = limits
        self._held = held
        self._seldom = Seldom()
        self._usual: Section | None = None
        """The head that most calls of `Process` have: a proxy sends the same each time."""
        self._methods: dict[bytes, Callable[[Connection, Stream, MessageReader], Call]] = {
            PROCESS: lambda connection, stream, reader: ProcessCall(self, connection, stream, reader)
        }

    def add(self, path: bytes, make: Callable[[Connection, Stream, MessageReader], Call]) -> None:
        """Another method."""
        self._methods[path] = make

    def log_failure(self) -> None:
        """Logs the exception at hand: a fault of ours, once a minute."""
        if count := self._seldom.due("stream", self.now()):
            log.exception("a stream failed", extra={"times": count})

    def accept(self, connection: Connection, stream: Stream, section: Section) -> Call:
        """The call of a new stream; NO_CALL where it is answered already."""
        try:
            if section is self._usual:
                reader = MessageReader(self._limits.max_message_bytes, self._held, section.encoding)
                return ProcessCall(self, connection, stream, reader)
            if section.method != b"POST" or not is_grpc(section.content_type):
                return PlainCall(connection, stream, section.method)
            make = self._methods.get(section.path)
            if make is None:
                raise CallFault(Status.UNIMPLEMENTED, f"unknown method {section.path.decode('latin-1')}")
            check_encoding(section.encoding)
            call = make(connection, stream, MessageReader(self._limits.max_message_bytes, self._held, section.encoding))
            if section.path == PROCESS:
                self._usual = section
            return call
        except CallFault as fault:
            status, message = fault.status, fault.message
        except Exception:
            self.log_failure()
            status, message = Status.INTERNAL, FAILED
        connection.finish(stream, trailers(status, message, only=True))
        return NO_CALL
