"""The sending half of a connection: frames gathered for one write, data within the peer's windows (RFC 9113, 5.2)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault, StreamFault
from poolpilot_picker.extproc.wire.frames import DATA, pack_message_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from poolpilot_picker.extproc.wire.limits import Held
    from poolpilot_picker.extproc.wire.stream import Stream


class Sender:
    """`out` is what to write next.

    `ended` is called when the last frame of a stream is in `out`, `drained` when nothing waits any more on a stream
    that goes on.
    """

    __slots__ = ("_drained", "_ended", "_held", "_ready", "frame_bytes", "initial_window", "out", "window")

    def __init__(self, held: Held, ended: Callable[[Stream], None], drained: Callable[[Stream], None]) -> None:
        self.out: list[bytes | memoryview] = []
        self.window = frames.DEFAULT_WINDOW
        """Of the whole connection; settings do not change it."""
        self.initial_window = frames.DEFAULT_WINDOW
        self.frame_bytes = frames.DEFAULT_FRAME_BYTES
        """The largest payload that the peer takes."""
        self._held = held
        self._ended = ended
        self._drained = drained
        self._ready: dict[int, Stream] = {}
        """Streams whose data waits for the connection's window alone, in the order of their turns."""

    def message(self, stream: Stream, head: bytes, body: bytes) -> bool:
        """Sends a gRPC message, given in two parts. False: too much is waiting already, and this was not taken."""
        length = len(head) + len(body)
        size = length + 5
        if stream.queue is None and size <= self.frame_bytes and size <= stream.window and size <= self.window:
            self.window -= size
            stream.window -= size
            out = self.out
            out.append(pack_message_head(size >> 8, size & 0xFF, DATA, 0, stream.id, 0, length))
            out.append(head)
            if body:
                out.append(body)
            return True
        start = b"".join((b"\0", length.to_bytes(4, "big"), head))
        if stream.queue is None and len(start) < self.frame_bytes and size <= stream.window and size <= self.window:
            # A body is not copied to be cut.
            self._cut(stream, start, memoryview(body), size)
            return True
        return self.data(stream, start + body)

    def _cut(self, stream: Stream, start: bytes, body: memoryview, size: int) -> None:
        """Frames of a message of `size` bytes that the windows let through."""
        self.window -= size
        stream.window -= size
        most, out, left = self.frame_bytes, self.out, size
        out += (frames.head(min(most, left), DATA, 0, stream.id), start)
        at = most - len(start)
        out.append(body[:at])
        while left > most:
            left -= most
            out += (frames.head(min(most, left), DATA, 0, stream.id), body[at : at + most])
            at += most

    def data(self, stream: Stream, payload: bytes) -> bool:
        """Sends bytes; what the windows do not let through waits. False as for `message`."""
        rest = memoryview(payload)
        if stream.queue is None:
            rest = self._through(stream, rest)
        if not rest:
            return True
        if self._held.full(len(rest)):
            return False
        if stream.queue is None:
            stream.queue = deque()
            if stream.window > 0:
                self._ready[stream.id] = stream
        stream.queue.append(rest)
        stream.queued += len(rest)
        self._held.bytes += len(rest)
        return True

    def finish(self, stream: Stream, ending: bytes) -> None:
        """Sends the frame that ends our side, behind what waits."""
        stream.ending = ending
        if stream.queue is None:
            self.out.append(ending)
            self._ended(stream)

    def forget(self, stream: Stream) -> None:
        """The stream is gone, and what waits with it."""
        if stream.queue is not None:
            self._held.bytes -= stream.queued
            stream.queue, stream.queued = None, 0
            self._ready.pop(stream.id, None)

    def _through(self, stream: Stream, payload: memoryview, most: int = frames.MAX_WINDOW) -> memoryview:
        """Sends up to `most` bytes as the windows allow; returns what is left."""
        while payload and most > 0:
            room = min(len(payload), self.frame_bytes, stream.window, self.window, most)
            if room <= 0:
                break
            self.out.append(frames.head(room, frames.DATA, 0, stream.id))
            self.out.append(payload[:room])
            payload = payload[room:]
            self.window -= room
            stream.window -= room
            most -= room
        return payload

    # ---- windows

    def widen(self, stream: Stream | None, increment: int) -> None:
        """WINDOW_UPDATE, of the connection or of a stream (section 6.9.1)."""
        if stream is None:
            self.window += increment
            if self.window > frames.MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection's window is larger than 2^31-1")
            self._flush()
            return
        stream.window += increment
        if stream.window > frames.MAX_WINDOW:
            raise StreamFault(stream.id, Code.FLOW_CONTROL_ERROR, "a stream's window is larger than 2^31-1")
        self._widened(stream)
        self._flush()

    def heed(self, identifier: int, value: int, streams: Iterable[Stream]) -> None:
        """A setting of the peer (section 6.5.2). Others do not concern us: we use no table, open no streams."""
        if identifier == frames.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1")
            self.set_initial_window(value, streams)
        elif identifier == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is not within 2^14 to 2^24-1")
            self.frame_bytes = value
        elif identifier == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")

    def set_initial_window(self, size: int, streams: Iterable[Stream]) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE: moves the window of every stream, below zero too (section 6.9.2)."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in streams:
            stream.window += change
            if stream.window > frames.MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a stream's window is larger than 2^31-1")
            self._widened(stream)
        self._flush()

    def _widened(self, stream: Stream) -> None:
        if stream.queue is not None and stream.window > 0:
            self._ready[stream.id] = stream

    def _flush(self) -> None:
        """Sends what the windows let through now, a frame of each stream in turn."""
        ready = self._ready
        while ready and self.window > 0:
            stream = ready.pop(next(iter(ready)))
            if stream.queue is not None:
                self._one_frame(stream, stream.queue)
            self._widened(stream)

    def _one_frame(self, stream: Stream, queue: deque[memoryview]) -> None:
        most = self.frame_bytes
        while queue and most > 0 and stream.window > 0 and self.window > 0:
            before = len(queue[0])
            queue[0] = rest = self._through(stream, queue[0], most)
            sent = before - len(rest)
            most -= sent
            stream.queued -= sent
            self._held.bytes -= sent
            if not rest:
                queue.popleft()
        if queue:
            return
        stream.queue = None
        if stream.ending is None:
            self._drained(stream)
        else:
            self.out.append(stream.ending)
            self._ended(stream)
