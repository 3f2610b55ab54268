"""The bytes of one HTTP/1.1 answer to a GET, sans I/O: fed as they arrive, strict about framing, bounded in size.

RFC 9112 sections 4 to 7: status line, fields, content-length, chunked, or to the end of the connection.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from poolpilot_picker.sources.errors import ErrorKind, FetchError

_HEAD_LIMIT: Final = 65_536
_LINE_LIMIT: Final = 1_024
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Response(msgspec.Struct, frozen=True):
    """A complete answer. Header names are lower case; a name that came several times has its values joined by `, `."""

    status: int
    headers: dict[str, str]
    body: bytes


class ResponseReader:
    """Takes the bytes of one answer. After `response` is set the reader is done; further bytes are an error."""

    __slots__ = (
        "_body",
        "_buffer",
        "_headers",
        "_left",
        "_limit",
        "_mode",
        "_size",
        "keep_alive",
        "response",
        "started",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._left = 0
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
            pass
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
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise FetchError(ErrorKind.TOO_LARGE, f"answer's header above {_HEAD_LIMIT} bytes")
            if not b"HTTP/1.".startswith(self._buffer[:7]):
                raise FetchError(ErrorKind.PROTOCOL, "not an HTTP/1 answer")
            return False
        if end > _HEAD_LIMIT:
            raise FetchError(ErrorKind.TOO_LARGE, f"answer's header above {_HEAD_LIMIT} bytes")
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        match = _STATUS.fullmatch(lines[0])
        if match is None:
            raise FetchError(ErrorKind.PROTOCOL, f"status line {lines[0][:80]!r}")
        status = int(match[2])
        if status < 200:
            return True  # an interim answer: the final one follows
        fields: dict[str, str] = {}
        for line in lines[1:]:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise FetchError(ErrorKind.PROTOCOL, f"header line {line[:80]!r}")
            name, value = field[1].decode().lower(), field[2].strip().decode("latin-1")
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
        self._headers = {":status": str(status), **fields}
        self._frame(status, fields, http11=match[1] == b"1")
        return True

    def _frame(self, status: int, fields: dict[str, str], *, http11: bool) -> None:
        options = {option.strip().lower() for option in fields.get("connection", "").split(",")}
        self.keep_alive = ("close" not in options) if http11 else ("keep-alive" in options)
        coding = fields.get("transfer-encoding")
        length = fields.get("content-length")
        if status in (204, 304):
            self._finish()
        elif coding is not None:
            if coding.lower() != "chunked":
                raise FetchError(ErrorKind.PROTOCOL, f"transfer-encoding {coding[:80]!r}, only chunked is read")
            if length is not None:
                self.keep_alive = False  # RFC 9112 6.3: ambiguous framing, do not reuse
            self._mode = _CHUNK_SIZE
        elif length is not None:
            sizes = {size.strip() for size in length.split(",")}
            size = sizes.pop()
            if sizes or not _DIGITS.fullmatch(size.encode("latin-1")):
                raise FetchError(ErrorKind.PROTOCOL, f"content-length {length[:80]!r}")
            self._left = int(size)
            self._check(self._left)
            self._mode = _SIZED
        else:
            self.keep_alive = False
            self._mode = _UNTIL_CLOSE

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
        status = int(self._headers.pop(":status"))
        self.response = Response(status, self._headers, b"".join(self._body))


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
