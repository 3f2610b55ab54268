"""Telemetry, step 1 of 3 (fetch → find lines → sample): one TCP connection to an engine, one GET at a time.

Answers are received into buffers that all connections share: there are as many as answers under way, not as endpoints.
An answer whose length is told stays in its buffer until it is whole; others take the longer way of `ResponseReader`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from poolpilot_picker import compiled
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http_response import Answer, Head, ResponseReader, find_head, parse_head

if TYPE_CHECKING:
    from typing_extensions import Buffer

Done = Callable[[Answer | FetchError], None]

_BUFFER: Final = 65_536
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,18})(?=\r|$)", re.IGNORECASE)
_DIGITS: Final = 18
_LONGEST_S: Final = 0.001
"""What one arrival is counted as at most: more is a process that was not given the processor."""
_KEPT_BUFFERS: Final = 16


def reference_same_head(buffer: bytes | bytearray, filled: int, before: bytes, behind: bytes) -> tuple[int, int] | None:
    """(where the body begins, where it ends) in `buffer[:filled]`, whose head is `before`, a content-length, `behind`;
    None where it is another one, or not whole."""
    if not buffer.startswith(before, 0, filled):
        return None
    start = len(before)
    stop = buffer.find(b"\r", start, min(start + _DIGITS + 1, filled))
    if stop < 0 or not buffer.startswith(behind, stop, filled):
        return None
    digits = buffer[start:stop]
    if not digits.isdigit():
        return None
    body = stop + len(behind)
    return body, body + int(digits)


same_head: Final = reference_same_head if compiled.in_force is None else compiled.in_force.same_head


class Meter:
    """Time of the event loop that connections have taken, in seconds: reading, and what is done with answers."""

    __slots__ = ("busy_s",)

    def __init__(self) -> None:
        self.busy_s = 0.0


_FREE: Final[list[bytearray]] = []
"""Buffers of the usual size that nobody uses, whatever they hold."""


def _give(buffer: bytearray) -> None:
    """A buffer is there for others."""
    if len(buffer) == _BUFFER and len(_FREE) < _KEPT_BUFFERS:
        _FREE.append(buffer)


_NOTHING: Final = bytearray()


class Connection(asyncio.BufferedProtocol):
    """One connection. After `begin`, `done` is called exactly once, with the answer or why there is none."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or Meter()
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._done: Done | None = None
        self._limit = 0
        self._buffer = _NOTHING
        self._unasked = bytearray(1)
        self._filled = 0
        self._head: Head | None = None
        self._last_head: Head | None = None
        self._before = self._behind = b""
        """The last head up to its content-length, and from there to its end."""
        self._body = self._need = 0
        """Where the body begins, and where the answer ends, once its head is read."""
        self._reader: ResponseReader | None = None
        self._heard = False
        self._began = 0.0

    @property
    def usable(self) -> bool:
        """Open, idle, and the server has not said that it will close."""
        return self._transport is not None and not self._lost and not self._transport.is_closing()

    def begin(self, request: bytes, limit: int, done: Done) -> None:
        """Sends a GET; its answer's body may have `limit` bytes. One at a time."""
        assert self._done is None, "one exchange at a time"
        if self._transport is None or self._lost:
            done(FetchError(ErrorKind.RESET, "connection closed", unheard=True))
            return
        self._done, self._limit, self._heard = done, limit, False
        self._filled = 0
        self._transport.write(request)

    def abort(self, error: FetchError | None = None) -> None:
        """Closes at once; a running exchange ends with this error."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        self._end(error or FetchError(ErrorKind.RESET, "connection closed", unheard=not self._heard))

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._lost:
            self._transport.abort()

    @override
    def get_buffer(self, sizehint: int) -> Buffer:
        self._began = time.monotonic()
        if self._done is None:
            return self._unasked
        if self._buffer is _NOTHING:
            # Not before something arrives: answers that arrive whole all use the same one, which the processor's
            # cache holds.
            self._buffer = _FREE.pop() if _FREE else bytearray(_BUFFER)
        return memoryview(self._buffer)[self._filled :] if self._filled else self._buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        if self._done is None:
            self.abort()  # bytes nobody asked for: the connection cannot be trusted any more
            return
        self._heard = True
        filled = self._filled = self._filled + nbytes
        head = self._last_head
        try:
            # Nearly all: an answer with the head of the one before, whole and nothing behind it.
            if head is not None and self._head is None and self._reader is None and head.keep_alive:
                place = same_head(self._buffer, filled, self._before, self._behind)
                if place is not None and place[1] == filled and filled - place[0] <= self._limit:
                    self._end(Answer(head.status, head.fields, self._buffer, place[0], filled))
                    return
            self._received()
        except FetchError as error:
            self.abort(error)
        finally:
            self._meter.busy_s += min(time.monotonic() - self._began, _LONGEST_S)

    def _received(self) -> None:
        if self._reader is not None:
            self._feed(self._reader)
            return
        head = self._head
        if head is None:
            head = self._last_head
            place = None if head is None else same_head(self._buffer, self._filled, self._before, self._behind)
            if head is None or place is None:
                head = self._new_head()
                if head is None:
                    return
            else:
                self._body, self._need = place
            self._head = head
            if self._need - self._body > self._limit:
                raise FetchError(ErrorKind.TOO_LARGE, f"answer above {self._limit} bytes")
            if self._need >= len(self._buffer):
                self._room(self._need + 1)
        if self._filled >= self._need:
            if self._filled > self._need or not head.keep_alive:
                self._close()
            self._end(Answer(head.status, head.fields, self._buffer, self._body, self._need))

    def _new_head(self) -> Head | None:
        """The head, once it has arrived; None also where `ResponseReader` goes on."""
        end = find_head(self._buffer, self._filled)
        if end < 0:
            self._room(self._filled + 1)
            return None
        text = bytes(memoryview(self._buffer)[:end])
        head = parse_head(text)
        if head.length is None or head.status < 200:
            self._reader = ResponseReader(self._limit)
            self._feed(self._reader)
            return None
        # Most heads differ from the last one in the content-length only.
        match = _LENGTH.search(text)
        self._last_head = None
        if match is not None and head.fields["content-length"] == match[1].decode():
            self._before, self._behind = text[: match.start(1)], text[match.end(1) :] + b"\r\n\r\n"
            self._last_head = head
        self._body, self._need = end + 4, end + 4 + head.length
        return head

    def _feed(self, reader: ResponseReader) -> None:
        reader.feed(bytes(memoryview(self._buffer)[: self._filled]))
        self._filled = 0
        if reader.response is not None:
            if not reader.keep_alive:
                self._close()
            response = reader.response
            self._end(Answer(response.status, response.headers, response.body, 0, len(response.body)))

    def _room(self, size: int) -> None:
        """Makes the buffer as large as that."""
        if size > len(self._buffer):
            larger = bytearray(max(size, 2 * len(self._buffer)))
            larger[: self._filled] = memoryview(self._buffer)[: self._filled]
            _give(self._buffer)
            self._buffer = larger

    @override
    def eof_received(self) -> bool:
        self._lost = True
        if self._done is not None:
            reader = self._reader
            try:
                if reader is None:
                    reader = ResponseReader(self._limit)
                    reader.feed(bytes(memoryview(self._buffer)[: self._filled]))
                reader.end()
            except FetchError as error:
                self._end(FetchError(error.kind, error.detail, unheard=not self._heard))
            else:
                response = reader.response
                assert response is not None
                self._end(Answer(response.status, response.headers, response.body, 0, len(response.body)))
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        detail = "connection reset" if exc is not None else "connection closed before the end of the answer"
        self._end(FetchError(ErrorKind.RESET, detail, unheard=not self._heard))

    def _close(self) -> None:
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    def _end(self, outcome: Answer | FetchError) -> None:
        done, buffer = self._done, self._buffer
        if done is None:
            return
        self._done = self._head = self._reader = None
        self._buffer = _NOTHING
        try:
            done(outcome)
        finally:
            if buffer is not _NOTHING:
                _give(buffer)
