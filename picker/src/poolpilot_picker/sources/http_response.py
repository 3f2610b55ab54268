"""The bytes of one HTTP/1.1 answer to a GET, sans I/O: fed as they arrive, strict about framing, bounded in size.

RFC 9112 sections 4 to 7: status line, fields, content-length, chunked, or to the end of the connection.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from poolpilot_picker.sources.errors import ErrorKind, FetchError

HEAD_LIMIT: Final = 65_536
_LINE_LIMIT: Final = 1_024
_KEPT_LINE: Final = 128
"""Longer header lines are not remembered."""
_MOST_FIELDS: Final = 256
_MOST_PIECES: Final = 4_096
"""Interim heads, chunk lines, chunks and trailers of one answer: each costs time of the event loop, however small."""
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Response(msgspec.Struct, frozen=True):
    """A complete answer. Header names are lower case; a name that came several times has its values joined by `, `."""

    status: int
    headers: dict[str, str]
    body: bytes


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete answer in the buffer that received it: to be read before whoever is told of it returns."""

    status: int
    headers: dict[str, str]
    buffer: bytes | bytearray
    start: int
    end: int
    """The body is `buffer[start:end]`."""

    @property
    def body(self) -> bytes:
        """A copy that lasts."""
        return bytes(memoryview(self.buffer)[self.start : self.end])


class Head(msgspec.Struct, frozen=True):
    """Status line and fields of an answer, and what they say of its body."""

    status: int
    fields: dict[str, str]
    keep_alive: bool
    chunked: bool
    length: int | None
    """Bytes of the body where that is told; None otherwise: it is chunked, or ends with the connection."""


def find_head(buffer: bytes | bytearray, size: int) -> int:
    """Where the empty line begins that ends the head in the first `size` bytes; −1: not there yet. Raises FetchError
    (protocol, too_large)."""
    end = buffer.find(b"\r\n\r\n", 0, size)
    if end > HEAD_LIMIT or (end < 0 and size > HEAD_LIMIT):
        raise FetchError(ErrorKind.TOO_LARGE, f"answer's header above {HEAD_LIMIT} bytes")
    if end < 0 and not b"HTTP/1.".startswith(buffer[: min(size, 7)]):
        raise FetchError(ErrorKind.PROTOCOL, "not an HTTP/1 answer")
    return end


def parse_head(head: bytes) -> Head:
    """A head without the empty line at its end. Raises FetchError (protocol)."""
    first, *lines = head.split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise FetchError(ErrorKind.PROTOCOL, f"status line {first[:80]!r}")
    if len(lines) > _MOST_FIELDS:
        raise FetchError(ErrorKind.PROTOCOL, f"answer's header of more than {_MOST_FIELDS} lines")
    status = int(match[2])
    fields: dict[str, str] = {}
    for line in lines:
        name, value = _field(line) if len(line) <= _KEPT_LINE else _field.__wrapped__(line)
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    keep_alive = True
    if match[1] != b"1" or "connection" in fields:
        options = {option.strip().lower() for option in fields.get("connection", "").split(",")}
        keep_alive = ("close" not in options) if match[1] == b"1" else ("keep-alive" in options)
    coding, length = fields.get("transfer-encoding"), fields.get("content-length")
    size: int | None = None
    if status < 200 or status in (204, 304):
        return Head(status, fields, keep_alive, False, 0)
    if coding is not None:
        if coding.lower() != "chunked":
            raise FetchError(ErrorKind.PROTOCOL, f"transfer-encoding {coding[:80]!r}, only chunked is read")
        # RFC 9112 6.3: with both, framing is ambiguous, do not reuse.
        keep_alive = keep_alive and length is None
    elif length is not None:
        sizes = {size.strip() for size in length.split(",")} if "," in length else {length}
        text = sizes.pop()
        if sizes or not _DIGITS.fullmatch(text.encode("latin-1")):
            raise FetchError(ErrorKind.PROTOCOL, f"content-length {length[:80]!r}")
        size = int(text)
    else:
        keep_alive = False
    return Head(status, fields, keep_alive, coding is not None, size)


@lru_cache(maxsize=256)
def _field(line: bytes) -> tuple[str, str]:
    # Servers send the same lines again and again.
    field = _FIELD.fullmatch(line)
    if field is None:
        raise FetchError(ErrorKind.PROTOCOL, f"header line {line[:80]!r}")
    return field[1].decode().lower(), field[2].strip().decode("latin-1")


class ResponseReader:
    """Takes the bytes of one answer. After `response` is set the reader is done; further bytes are an error."""

    __slots__ = (
        "_answer",
        "_body",
        "_buffer",
        "_left",
        "_limit",
        "_mode",
        "_pieces",
        "_size",
        "keep_alive",
        "response",
        "started",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._answer: Head | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._left = 0
        self._pieces = 0
        self._mode = _HEAD
        self.keep_alive = False
        self.response: Response | None = None
        self.started = False
        """Some byte of the answer has arrived."""

    def feed(self, data: bytes) -> None:
        """More bytes. Raises FetchError (protocol, too_large)."""
        self.started = True
        if self.response is not None:
            raise FetchError(ErrorKind.PROTOCOL, "bytes behind the end of the answer")
        self._buffer += data
        while self.response is None and _STEPS[self._mode](self):
            self._pieces += 1
            if self._pieces > _MOST_PIECES:
                raise FetchError(ErrorKind.PROTOCOL, f"answer in more than {_MOST_PIECES} pieces")
        if self.response is not None and self._buffer:
            self.keep_alive = False

    def end(self) -> None:
        """The server closed the connection. Raises FetchError (reset) unless that is the end of the answer."""
        if self.response is not None:
            return
        if self._mode != _UNTIL_CLOSE:
            raise FetchError(ErrorKind.RESET, "connection closed before the end of the answer")
        self._finish()

    def _head(self) -> bool:
        end = find_head(self._buffer, len(self._buffer))
        if end < 0:
            return False
        head = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        if head.status < 200:
            return True  # an interim answer: the final one follows
        self._answer = head
        self.keep_alive = head.keep_alive
        if head.chunked:
            self._mode = _CHUNK_SIZE
        elif head.length is None:
            self._mode = _UNTIL_CLOSE
        elif head.length == 0:
            self._finish()
        else:
            self._left = head.length
            self._check(self._left)
            self._mode = _SIZED
        return True

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise FetchError(ErrorKind.TOO_LARGE, f"answer above {self._limit} bytes")

    def _sized(self) -> bool:
        if len(self._buffer) < self._left:
            return False
        self._body.append(bytes(self._buffer[: self._left]))
        del self._buffer[: self._left]
        self._finish()
        return True

    def _until_close(self) -> bool:
        self._size += len(self._buffer)
        self._check(self._size)
        self._body.append(bytes(self._buffer))
        self._buffer.clear()
        return False

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, _LINE_LIMIT)
        if end < 0:
            if len(self._buffer) >= _LINE_LIMIT:
                raise FetchError(ErrorKind.PROTOCOL, "chunk line too long")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        digits = line.split(b";", 1)[0].strip()
        if not _HEX.fullmatch(digits):
            raise FetchError(ErrorKind.PROTOCOL, f"chunk size {line[:80]!r}")
        self._left = int(digits, 16)
        self._size += self._left
        self._check(self._size)
        self._mode = _CHUNK if self._left else _TRAILER
        return True

    def _chunk(self) -> bool:
        if len(self._buffer) < self._left + 2:
            return False
        if self._buffer[self._left : self._left + 2] != b"\r\n":
            raise FetchError(ErrorKind.PROTOCOL, "chunk without its line end")
        self._body.append(bytes(self._buffer[: self._left]))
        del self._buffer[: self._left + 2]
        self._mode = _CHUNK_SIZE
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if line:
            self._size += len(line)
            self._check(self._size)
        else:
            self._finish()
        return True

    def _finish(self) -> None:
        assert self._answer is not None
        self.response = Response(self._answer.status, self._answer.fields, b"".join(self._body))


_HEAD, _SIZED, _UNTIL_CLOSE, _CHUNK_SIZE, _CHUNK, _TRAILER = range(6)
# Each step takes what it can from the buffer; True: something changed, go on.
_STEPS: Final = (
    ResponseReader._head,
    ResponseReader._sized,
    ResponseReader._until_close,
    ResponseReader._chunk_size,
    ResponseReader._chunk,
    ResponseReader._trailer,
)
