"""One HTTP/2 connection of a server, sans I/O: bytes in, `take()` out, calls told (RFC 9113, sections 3 to 6).

Holds the streams and the connection's life: greeting, silence, drain, failure. What comes in is the receiver's, what
goes out the sender's.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from poolpilot_picker import compiled
from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.errors import Code
from poolpilot_picker.extproc.wire.hpack import NO_TABLE, encode
from poolpilot_picker.extproc.wire.receiver import Receiver
from poolpilot_picker.extproc.wire.sender import Sender
from poolpilot_picker.extproc.wire.stream import NO_CALL, Call, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.compiled._wire import Messages
    from poolpilot_picker.extproc.wire.fields import Section
    from poolpilot_picker.extproc.wire.limits import Held, Limits

ENDS_KEPT: Final = 1_024
"""Streams whose end is remembered."""
LIST_TOO_LARGE: Final = encode(
    (
        (b":status", b"431"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"8"),
        (b"grpc-message", b"the header list is too large"),
    )
)
ALIVE_PING: Final = b"alive?\0\0"
DRAIN_PING: Final = b"drain\0\0\0"


class Connection:
    """`accept` gives a new stream its call; `now` (ms) is the time of the input at hand."""

    def __init__(
        self,
        limits: Limits,
        held: Held,
        accept: Callable[[Connection, Stream, Section], Call],
        now: float,
        messages: Messages | None = None,
    ) -> None:
        self.now = now
        self.streams: dict[int, Stream] = {}
        self.last_id = 0
        self.open = True
        """False: nothing is read any more, and what is left to write is the last."""
        self.dead = False
        """The peer is gone, or takes nothing: nothing can be written either."""
        self.closing = 0
        """GOAWAY: 0 not sent, 1 announced, 2 no new streams."""
        self.failure: tuple[Code, str] | None = None
        """Why the connection failed, where it did."""
        self.sender = Sender(held, self._ended, self._drained)
        self._limits = limits
        self.accept = accept
        """Gives a new stream its call."""
        core = compiled.in_force
        self._new_stream = Stream if core is None else core.stream
        self._began = self.heard = now
        self.idle_since = now
        """When the last stream ended."""
        self._pinged: float | None = None
        self._closing_since = now
        self.table_said = False
        self._reset: dict[int, None] = {}
        self.ended: deque[int] = deque(maxlen=ENDS_KEPT)
        """Streams that are over, the last ones."""
        self.spoke: Callable[[], None] = unheard
        """Told when there is something to write that no input asked for."""
        self.more = False
        """Whole frames wait for another `receive` (of nothing), so that others have their turn."""
        self._receiver = Receiver(self, limits, messages)
        self.receive: Callable[[bytes, float], None] = self._receiver.receive
        """Takes what was read, and the time."""
        greeting = (
            (frames.HEADER_TABLE_SIZE, limits.header_table_bytes),
            (frames.MAX_CONCURRENT_STREAMS, limits.max_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window),
            (frames.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
        )
        self.sender.out.append(frames.settings(greeting))
        if limits.connection_window > frames.DEFAULT_WINDOW:
            self.sender.out.append(frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW))

    # ---- bytes

    def take(self) -> bytes:
        """What is to be written now."""
        out = self.sender.out
        data = b"".join(out)
        out.clear()
        return data

    # ---- streams

    def begin(self, stream_id: int, section: Section | None, *, remote_over: bool) -> None:
        """A new stream; without a section its header list was too large."""
        left = section.content_length if section is not None else None
        stream = self._new_stream(stream_id, NO_CALL, self._limits.stream_window, self.sender.initial_window, left)
        stream.remote_over = remote_over
        self.streams[stream_id] = stream
        if section is None:
            self.respond(stream, LIST_TOO_LARGE)
            return
        call = self.accept(self, stream, section)
        if stream.ending is not None:
            call.closed()
            return
        stream.call = call
        if remote_over:
            call.over()

    def send_head(self, stream: Stream, block: bytes) -> None:
        """The header block that begins an answer."""
        stream.answered = True
        self.sender.out.append(self._headers(stream, block, frames.END_HEADERS))

    def finish(self, stream: Stream, block: bytes) -> None:
        """Ends the answer with this header block: trailers, or the only one."""
        if stream.ending is None:
            stream.answered = True
            self._finish(stream, self._headers(stream, block, frames.END_HEADERS | frames.END_STREAM))

    def respond(self, stream: Stream, block: bytes, body: bytes = b"") -> None:
        """A whole answer in plain HTTP."""
        if not body:
            self.finish(stream, block)
        elif stream.ending is None:
            self.send_head(stream, block)
            if self.sender.data(stream, body):
                self._finish(stream, frames.frame(frames.DATA, frames.END_STREAM, stream.id))
            else:
                self.reset(stream.id, Code.ENHANCE_YOUR_CALM)

    def _headers(self, stream: Stream, block: bytes, flags: int) -> bytes:
        if not self.table_said:
            self.table_said = True
            block = NO_TABLE + block
        return frames.frame(frames.HEADERS, flags, stream.id, block)

    def _finish(self, stream: Stream, ending: bytes) -> None:
        call, stream.call, stream.direct = stream.call, NO_CALL, None
        self.sender.finish(stream, ending)
        call.closed()

    def _ended(self, stream: Stream) -> None:
        """Our side of the stream has ended."""
        if not stream.remote_over:
            # The answer is whole, and the peer may stop (section 8.1).
            self._say_reset(stream.id, Code.NO_ERROR)
        self.drop(stream)

    def _drained(self, stream: Stream) -> None:
        self._receiver.replenish(stream)

    def reset(self, stream_id: int, code: Code) -> None:
        """Ends a stream, or one that was not accepted, with RST_STREAM."""
        self._say_reset(stream_id, code)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.drop(stream)

    def _say_reset(self, stream_id: int, code: Code) -> None:
        self.sender.out.append(frames.rst_stream(stream_id, code))
        self._reset[stream_id] = None
        if len(self._reset) > ENDS_KEPT:
            del self._reset[next(iter(self._reset))]

    def drop(self, stream: Stream) -> None:
        """Forgets a stream; its call hears that it is over."""
        if self.streams.pop(stream.id, None) is None:
            return
        self.ended.append(stream.id)
        self.sender.forget(stream)
        call, stream.call, stream.direct = stream.call, NO_CALL, None
        stream.ending = stream.ending or b""
        call.closed()
        if not self.streams:
            self.idle_since = self.now
            if self.closing == 2:
                self.open = False

    def was_reset(self, stream_id: int) -> bool:
        """Whether we ended the stream with RST_STREAM not long ago: what was under way then is ignored."""
        return stream_id in self._reset

    def was_closed(self, stream_id: int) -> bool:
        """Whether the stream ended not long ago."""
        return stream_id in self.ended

    # ---- life

    def fail(self, code: Code, reason: str) -> None:
        """The connection ends with GOAWAY, and everything on it (section 5.4.1)."""
        if not self.open:
            return
        self.failure = code, reason
        self._shut()
        self.sender.out.append(frames.goaway(self.last_id, code, reason.encode()))

    def lost(self) -> None:
        """The connection is gone."""
        self.dead = True
        self._shut()

    def _lose(self, reason: str) -> None:
        self.failure = Code.NO_ERROR, reason
        self.lost()

    def _shut(self) -> None:
        self.open = False
        for stream in list(self.streams.values()):
            self.drop(stream)

    def go_away(self, now: float) -> None:
        """Announces the end: what the peer opens before it reads this is still served (section 6.8)."""
        if self.open and not self.closing:
            self.now = now
            self.closing = 1
            self._closing_since = now
            self.sender.out.append(frames.goaway(frames.MAX_STREAM_ID, Code.NO_ERROR))
            self.sender.out.append(frames.ping(DRAIN_PING))

    def pong(self, payload: bytes) -> None:
        """An answer to a PING: one sent after the first GOAWAY proves that it was read."""
        if self.closing == 1 and payload == DRAIN_PING:
            self._refuse_new()

    def _refuse_new(self) -> None:
        self.closing = 2
        self.sender.out.append(frames.goaway(self.last_id, Code.NO_ERROR))
        if not self.streams:
            self.open = False

    @property
    def refusing(self) -> bool:
        """No stream can come any more."""
        return self.closing == 2 or not self.open

    def tick(self, now: float, *, stalled_ms: float = 0.0) -> None:
        """Time passes: a peer that is silent for too long is asked, then given up.

        `stalled_ms`: for how long the socket has taken nothing; meanwhile nothing is read either.
        """
        limits = self._limits
        self.now = now
        if stalled_ms > limits.keepalive_timeout_ms:
            self._lose("the peer takes nothing")
        if stalled_ms or not self.open:
            self.heard = now
            return
        if not self._receiver.acknowledged:
            waited = now - self._began
            if waited > (limits.settings_ack_ms if self._receiver.settled else limits.handshake_ms):
                self.fail(Code.SETTINGS_TIMEOUT, "no answer to SETTINGS")
                return
        self._watch(now)
        if self.closing == 1 and now - self._closing_since > limits.goaway_ms:
            self._refuse_new()
        elif not self.closing and not self.streams and now - self.idle_since > limits.idle_ms:
            self.go_away(now)

    def _watch(self, now: float) -> None:
        if self._pinged is not None and self.heard < self._pinged:
            if now - self._pinged > self._limits.keepalive_timeout_ms:
                self._lose("the peer does not answer")
            return
        self._pinged = None
        if now - self.heard > self._limits.keepalive_ms:
            self._pinged = now
            self.sender.out.append(frames.ping(ALIVE_PING))


def unheard() -> None:
    """Where nobody writes."""
