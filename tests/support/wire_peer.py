"""A client without I/O at a server's connection without I/O: an independent HTTP/2 implementation checks every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.settings import Settings
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, SettingsFrame

from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.connection import Connection
from poolpilot_picker.extproc.wire.errors import Code
from poolpilot_picker.extproc.wire.grpc_messages import HEADERS, OK_ONLY, OK_TRAILERS
from poolpilot_picker.extproc.wire.hpack import encode
from poolpilot_picker.extproc.wire.limits import Held, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from poolpilot_picker.extproc.wire.fields import Section
    from poolpilot_picker.extproc.wire.stream import Call, Stream

GRPC = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.Service/Method"),
    (":authority", "picker"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
BLOCK = encode([(name.encode(), value.encode()) for name, value in GRPC])
SETTINGS = SettingsFrame(0).serialize()
HELLO = frames.PREFACE + SETTINGS


class Noted:
    """A call that remembers what it is told, and does what the test says."""

    def __init__(self, connection: Connection, stream: Stream, section: Section) -> None:
        self.connection = connection
        self.stream = stream
        self.section = section
        self.received = b""
        self.is_over = False
        self.closings = 0
        self.on_data: Callable[[bytes], None] | None = None
        self.on_over: Callable[[], None] | None = None

    def send(self, head: bytes, body: bytes = b"") -> None:
        """A message of the answer."""
        if self.stream.ending is None and not self.connection.sender.message(self.stream, head, body):
            self.connection.reset(self.stream.id, Code.ENHANCE_YOUR_CALM)

    def data(self, payload: bytes) -> None:
        assert not self.is_over and not self.closings
        self.received += payload
        if self.on_data is not None:
            self.on_data(payload)

    def over(self) -> None:
        assert not self.is_over and not self.closings
        self.is_over = True
        if self.on_over is not None:
            self.on_over()

    def closed(self) -> None:
        self.closings += 1


class Server:
    """A connection whose calls are `Noted`; `begin` prepares each."""

    def __init__(self, limits: Limits | None = None, begin: Callable[[Noted], None] | None = None) -> None:
        self.held = Held((limits or Limits()).max_held_bytes)
        self.calls: dict[int, Noted] = {}
        self._begin = begin
        self.connection = Connection(limits or Limits(), self.held, self._accept, 0.0)

    def _accept(self, connection: Connection, stream: Stream, section: Section) -> Call:
        call = self.calls[stream.id] = Noted(connection, stream, section)
        if self._begin is not None:
            self._begin(call)
        return call

    def lost(self) -> None:
        """The connection breaks: afterwards every call has ended, once, and nothing is held."""
        self.connection.lost()
        assert [call.closings for call in self.calls.values()] == [1] * len(self.calls)
        assert self.held.bytes == 0 and not self.connection.streams


class Peer:
    """An h2 client on a `Server`. It raises if the server breaks a rule of HTTP/2."""

    def __init__(self, server: Server, *, settings: dict[int, int] | None = None) -> None:
        self.server = server
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self.now = 0.0
        if settings:
            self.h2.local_settings = Settings(client=True, initial_values=settings)  # type: ignore[arg-type]
        self.h2.initiate_connection()

    def exchange(self, cuts: Iterable[int] = ()) -> list[Event]:
        """Passes bytes both ways until nobody has any; input of the server is cut at these lengths. New events."""
        new: list[Event] = []
        sizes = iter(cuts)
        while True:
            data = self.h2.data_to_send()
            while data:
                size = next(sizes, len(data))
                self.server.connection.receive(data[:size], self.now)
                data = data[size:]
            while self.server.connection.more:
                self.server.connection.receive(b"", self.now)
            answer = self.server.connection.take()
            if not answer:
                break
            new += self.h2.receive_data(answer)
        self.events += new
        return new

    def open(self, fields: list[tuple[str, str]] | None = None, *, end: bool = False) -> int:
        """Begins a stream."""
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, fields or GRPC, end_stream=end)
        return stream_id

    # ── what came of a stream ────────────────────────────────────────────────

    def of(self, stream_id: int, kind: type[Any]) -> list[Any]:
        """Its events of one kind."""
        return [one for one in self.events if isinstance(one, kind) and getattr(one, "stream_id", 0) == stream_id]

    def data(self, stream_id: int) -> bytes:
        """What it received."""
        return b"".join(one.data for one in self.of(stream_id, DataReceived))

    def head(self, stream_id: int) -> dict[str, str]:
        """Its response's header fields."""
        [event] = self.of(stream_id, ResponseReceived)
        return dict(event.headers)

    def trailers(self, stream_id: int) -> dict[str, str]:
        """Its trailers."""
        [event] = self.of(stream_id, TrailersReceived)
        return dict(event.headers)

    def ended(self, stream_id: int) -> bool:
        """Whether it ended in good order."""
        return bool(self.of(stream_id, StreamEnded))

    def reset_code(self, stream_id: int) -> int | None:
        """The code it was reset with, if it was."""
        resets = self.of(stream_id, StreamReset)
        return int(resets[0].error_code) if resets else None


def frames_of(data: bytes) -> list[Frame]:
    """Frames, as an independent parser reads them."""
    found: list[Frame] = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


def echo(call: Noted) -> None:
    """Answers every piece of data with a message, and its end with OK."""

    def answer(payload: bytes) -> None:
        if not call.stream.answered:
            call.connection.send_head(call.stream, HEADERS)
        call.send(payload)

    call.on_data = answer
    call.on_over = lambda: finish(call)


def finish(call: Noted) -> None:
    """OK, whether it is the first that is said or not."""
    call.connection.finish(call.stream, OK_TRAILERS if call.stream.answered else OK_ONLY)


def raw(server: Server, *parts: bytes | Frame) -> list[Frame]:
    """What the server says to these bytes, after its greeting."""
    for part in parts:
        server.connection.receive(part if isinstance(part, bytes) else part.serialize(), server.connection.now)
    return frames_of(server.connection.take())


def hello(server: Server) -> None:
    """The client's greeting."""
    raw(server, HELLO, SettingsFrame(0, flags=["ACK"]))


def headers(stream_id: int, *flags: str, block: bytes = BLOCK, **more: object) -> HeadersFrame:
    """A stream's first frame, by default with a whole block."""
    return HeadersFrame(stream_id, block, flags=list(flags or ("END_HEADERS",)), **more)


def failure(said: list[Frame]) -> str:
    """The code of the GOAWAY that ends a connection."""
    away = said[-1]
    assert isinstance(away, GoAwayFrame), said
    return Code(away.error_code).name


def reset(said: list[Frame], stream_id: int = 1) -> str:
    """The code that a stream was reset with."""
    [code] = [one.error_code for one in said if isinstance(one, RstStreamFrame) and one.stream_id == stream_id]
    return Code(code).name
