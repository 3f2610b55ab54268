"""The receiving half of a connection: frames read in place, headers decoded, limits watched (RFC 9113)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from poolpilot_picker import compiled
from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault, StreamFault
from poolpilot_picker.extproc.wire.fields import Block, Section
from poolpilot_picker.extproc.wire.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    END_STREAM,
    HEAD_BYTES,
    PADDED,
    unpack_head,
)
from poolpilot_picker.extproc.wire.hpack import Decoder, ListTooLarge
from poolpilot_picker.extproc.wire.limits import Allowance
from poolpilot_picker.extproc.wire.stream import NO_CALL

if TYPE_CHECKING:
    from poolpilot_picker.compiled._wire import Messages
    from poolpilot_picker.extproc.wire.connection import Connection
    from poolpilot_picker.extproc.wire.limits import Limits
    from poolpilot_picker.extproc.wire.stream import Stream


class Receiver:
    """Reads what a client sends, and does to its connection what the frames say."""

    def __init__(self, connection: Connection, limits: Limits, messages: Messages | None) -> None:
        """`messages`: what reads in place for calls that allow it, where the core is compiled."""
        self.settled = self.acknowledged = False
        """The peer's first SETTINGS came; it has acknowledged ours."""
        self._connection = connection
        self._limits = limits
        self._streams = connection.streams
        self._out = connection.sender.out
        self._credit = limits.connection_window
        self._low = limits.connection_window >> 1
        self._stream_low = limits.stream_window >> 1
        self._decoder = Decoder(Section, limits.max_header_list_bytes)
        core, blocks = compiled.in_force, self._decoder.known
        self._familiar = core.frames(connection, messages, blocks, limits, NO_CALL) if core is not None else None
        self._block: Block | None = None
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._needed = 1
        self._preface = True
        self._oddities = Allowance(limits.oddities, limits.oddities_per_s)
        self._pings = Allowance(limits.pings, limits.pings_per_s)
        self._early_resets = Allowance(limits.early_resets, limits.early_resets_per_s)
        self._handlers = {
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    # ---- input

    def receive(self, data: bytes, now: float) -> None:
        """Takes what was read; nothing, to go on where the connection has more. `now` in ms."""
        connection = self._connection
        if not connection.open:
            return
        connection.now = connection.heard = now
        if self._rest_bytes:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._needed:
                return
            data = b"".join(self._rest)
            self._rest.clear()
            self._rest_bytes = 0
        familiar, at, turns = self._familiar, 0, self._limits.frames_at_once
        try:
            if familiar is not None and self.settled and self._block is None:
                self._credit = familiar.run(data, at, turns, self._credit)
                at, turns = familiar.at, familiar.turns
                if at == len(data):
                    connection.more = False
                    return
            used = self._frames(data, at, turns) if connection.open else at
        except ConnectionFault as fault:
            connection.more = False
            connection.fail(fault.code, fault.reason)
            return
        rest = len(data) - used
        if rest and connection.open:
            self._rest.append(data[used:])
            self._rest_bytes = rest
        connection.more = rest >= self._needed and connection.open

    def _frames(self, data: bytes, at: int, turns: int) -> int:
        """Handles the frames that are there in full; returns where they end, and sets what is needed next."""
        size = len(data)
        if self._preface:
            at = self._on_preface(data)
            if self._preface:
                return 0
        connection, streams, familiar = self._connection, self._streams, self._familiar
        while True:
            start = at + HEAD_BYTES
            if start > size:
                self._needed = HEAD_BYTES
                return at
            high, low, kind, flags, stream_id = unpack_head(data, at)
            length = high << 8 | low
            end = start + length
            if length > DEFAULT_FRAME_BYTES:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a frame is larger than SETTINGS_MAX_FRAME_SIZE")
            if end > size or not turns:
                self._needed = HEAD_BYTES + length
                return at
            turns -= 1
            at = end
            if self._block is not None and kind != frames.CONTINUATION:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "another frame interrupts a header block")
            try:
                if kind == DATA:
                    stream = streams.get(stream_id)
                    if stream is None or stream.remote_over or not length or flags & PADDED:
                        self._on_odd_data(stream_id & frames.MAX_STREAM_ID, flags, data[start:end])
                    elif flags or stream.left is not None or self._credit - length < self._low:
                        self._on_data(stream, flags, data[start:end], length)
                    else:
                        # As nearly always: what `_on_data` does, without the detour.
                        self._credit -= length
                        stream.credit -= length
                        if stream.credit < 0:
                            self._too_much(stream)
                        stream.call.data(data[start:end])
                        if stream.credit < self._stream_low:
                            self.replenish(stream)
                else:
                    handler = self._handlers.get(kind)
                    if not self.settled and kind != frames.SETTINGS:
                        raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
                    if handler is None:
                        self._odd()
                    else:
                        handler(stream_id & frames.MAX_STREAM_ID, flags, data[start:end])
            except StreamFault as fault:
                connection.reset(fault.stream_id, fault.code)
                if fault.code is not Code.REFUSED_STREAM:
                    self._odd()
            if familiar is not None and self.settled and self._block is None and connection.open:
                self._credit = familiar.run(data, at, turns, self._credit)
                at, turns = familiar.at, familiar.turns
            if not connection.open:
                return at

    def _on_preface(self, data: bytes) -> int:
        preface = frames.PREFACE
        if not data.startswith(preface[: len(data)]):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the connection does not begin as HTTP/2 does")
        if len(data) < len(preface):
            self._needed = len(preface)
            return 0
        self._preface = False
        return len(preface)

    def _odd(self, weight: float = 1.0) -> None:
        """Counts what a sane peer seldom does."""
        if not self._oddities.spend(self._connection.now, weight):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that do nothing")

    # ---- data (sections 6.1 and 6.9)

    def _on_data(self, stream: Stream, flags: int, payload: bytes, size: int) -> None:
        """`size` counts against the windows: the payload with its padding."""
        self._credit -= size
        if self._credit < self._low:
            self._refill()
        stream.credit -= size
        if stream.credit < 0:
            self._too_much(stream)
        if stream.left is not None:
            stream.left -= len(payload)
            if stream.left < 0:
                raise StreamFault(stream.id, Code.PROTOCOL_ERROR, "more data than content-length")
        if flags & END_STREAM:
            # Before the call hears of it: whoever answers now need not tell the peer to stop.
            stream.remote_over = True
            if payload:
                stream.call.data(payload)
            self._remote_over(stream)
            return
        if payload:
            stream.call.data(payload)
        if stream.credit < self._stream_low:
            self.replenish(stream)

    def _too_much(self, stream: Stream) -> NoReturn:
        raise StreamFault(stream.id, Code.FLOW_CONTROL_ERROR, "more data than the stream's window allows")

    def _on_odd_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        """DATA that is padded, or empty, or for a stream that takes none."""
        if not self.settled:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        size = len(payload)
        payload = frames.unpadded(payload, flags)
        if not payload and not flags & frames.END_STREAM:
            self._odd()
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.remote_over:
            self._on_data(stream, flags, payload, size)
            return
        self._credit -= size
        if self._credit < self._low:
            self._refill()
        if stream is None:
            self._known(stream_id, "DATA")
            if self._connection.was_reset(stream_id):
                return
        raise StreamFault(stream_id, Code.STREAM_CLOSED, "DATA on a closed stream")

    def _refill(self) -> None:
        """Fills the connection's window again."""
        if self._credit < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        self._out.append(frames.window_update(0, self._limits.connection_window - self._credit))
        self._credit = self._limits.connection_window

    def replenish(self, stream: Stream) -> None:
        """Fills a stream's window again, unless it is over or its replies already wait for the peer."""
        over = stream.remote_over or self._streams.get(stream.id) is not stream
        if over or stream.credit == self._limits.stream_window or stream.queued > self._limits.max_stream_backlog:
            return
        self._out.append(frames.window_update(stream.id, self._limits.stream_window - stream.credit))
        stream.credit = self._limits.stream_window

    def _remote_over(self, stream: Stream) -> None:
        stream.remote_over = True
        if stream.left:
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR, "less data than content-length")
        stream.call.over()

    # ---- headers (sections 6.2, 6.10 and 8)

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a client's streams have odd numbers")
        fragment = frames.unpadded(payload, flags)
        if flags & frames.PRIORITIZED:
            if len(fragment) < 5:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a HEADERS frame is too short for its priority")
            fragment = fragment[5:]
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, flags, fragment)
        else:
            self._block = Block(stream_id, flags, fragment)

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None or block.stream_id != stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION of no header block")
        block.parts.append(payload)
        block.size += len(payload)
        if block.size > self._limits.max_header_block_bytes or len(block.parts) > self._limits.max_header_frames:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "a header block is too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(stream_id, block.flags, b"".join(block.parts))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """A whole block. It is decoded whatever becomes of the stream: the next block may need its table."""
        section: Section | None
        try:
            section = self._decoder.decode(block)
        except ListTooLarge:
            section = None
        connection = self._connection
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, flags, section)
        elif stream_id <= connection.last_id:
            self._on_late_headers(stream_id)
        else:
            connection.last_id = stream_id
            if connection.closing == 2 or len(self._streams) >= self._limits.max_streams:
                raise StreamFault(stream_id, Code.REFUSED_STREAM, "no further streams are taken")
            if section is not None and section.problem:
                raise StreamFault(stream_id, Code.PROTOCOL_ERROR, section.problem)
            over = bool(flags & frames.END_STREAM)
            if over and section is not None and section.content_length:
                raise StreamFault(stream_id, Code.PROTOCOL_ERROR, "less data than content-length")
            connection.begin(stream_id, section, remote_over=over)

    def _on_trailers(self, stream: Stream, flags: int, section: Section | None) -> None:
        if stream.remote_over:
            raise StreamFault(stream.id, Code.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not flags & frames.END_STREAM or (section is not None and section.trailers_problem):
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR, "trailers are malformed or do not end their stream")
        self._remote_over(stream)

    def _on_late_headers(self, stream_id: int) -> None:
        if self._connection.was_reset(stream_id):
            return
        if self._connection.was_closed(stream_id):
            raise ConnectionFault(Code.STREAM_CLOSED, "HEADERS on a closed stream")
        raise ConnectionFault(Code.PROTOCOL_ERROR, "the number of a new stream is not larger than those before")

    # ---- the other frames

    def _known(self, stream_id: int, kind: str) -> None:
        """Raises ConnectionFault for a stream that was never opened (section 5.1, idle)."""
        if stream_id > self._connection.last_id or not stream_id & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"{kind} on a stream that does not exist")

    def _on_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        """Priorities are ignored, as RFC 9113 has it (section 5.3.2)."""
        if not stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PRIORITY is not 5 bytes long")
        self._odd()

    def _on_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "RST_STREAM is not 4 bytes long")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._known(stream_id, "RST_STREAM")
            return
        self._connection.drop(stream)
        if not stream.answered and not self._early_resets.spend(self._connection.now):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many streams are reset before they are answered")

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "a client must not push")

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has a payload")
            if not self.settled:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if self.acknowledged:
                self._odd()
            else:
                self.acknowledged = True
                self._decoder.allow(self._limits.header_table_bytes)
            return
        if self.settled:
            # Moving the window of every stream is work.
            self._odd(1.0 + len(self._streams) / 100.0)
        self.settled = True
        settings = frames.read_settings(payload)
        # Before the data that a larger window lets through.
        self._out.append(frames.SETTINGS_ACK)
        for identifier, value in settings:
            self._connection.sender.heed(identifier, value, self._streams.values())

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if not self._pings.spend(self._connection.now):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many PINGs")
        if not flags & frames.ACK:
            self._out.append(frames.ping(payload, ack=True))
        else:
            self._connection.pong(payload)

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        """The peer opens no more streams; those that are open go on."""
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        self._odd()

    def _on_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not 4 bytes long")
        increment = frames.unpack_number(payload)[0] & frames.MAX_WINDOW
        if not stream_id:
            if not increment:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._connection.sender.widen(None, increment)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._known(stream_id, "WINDOW_UPDATE")
            return
        if not increment:
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        self._connection.sender.widen(stream, increment)
