"""gRPC on top of a stream: length-prefixed messages in DATA, statuses in trailers (gRPC over HTTP/2)."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from poolpilot_picker.extproc.wire.errors import CallFault, Status
from poolpilot_picker.extproc.wire.hpack import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_picker.extproc.wire.limits import Held

PREFIX_BYTES: Final = 5
"""Compressed-flag and length."""
MAX_STATUS_TEXT: Final = 1_024
ACCEPTED: Final = b"identity,deflate,gzip"

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
_CONTENT: Final = (b"content-type", b"application/grpc")
_OK: Final = (b":status", b"200")

HEADERS: Final = encode((_OK, _CONTENT))
"""Begin every answer that has messages."""
OK_TRAILERS: Final = encode(((b"grpc-status", b"0"),))
OK_ONLY: Final = encode((_OK, _CONTENT, (b"grpc-status", b"0")))
"""The whole answer where there are no messages."""


def escaped(text: str) -> bytes:
    """`grpc-message`: what is not printable ASCII, and the percent sign, in percent-encoded UTF-8."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text.encode()
    ).strip(b" ")


def trailers(status: Status, message: str, *, only: bool) -> bytes:
    """The header block that ends a call. `only`: nothing was sent before, so that it is the whole answer."""
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        fields.append((b"grpc-message", escaped(message[:MAX_STATUS_TEXT])))
    if status is Status.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", ACCEPTED))
    return encode((_OK, _CONTENT, *fields) if only else fields)


def is_grpc(content_type: bytes) -> bool:
    """Whether a content type is `application/grpc`, with or without a suffix or parameters."""
    return content_type.startswith(b"application/grpc") and content_type[16:17] in (b"", b"+", b";", b" ")


def check_encoding(encoding: bytes) -> None:
    """Raises CallFault for a `grpc-encoding` that cannot be read."""
    if encoding and encoding != b"identity" and encoding not in _WINDOW_BITS:
        name = encoding.decode("latin-1")
        raise CallFault(Status.UNIMPLEMENTED, f"grpc-encoding {name!r} is not supported; allowed are gzip and deflate")


class MessageReader:
    """Cuts the bytes of one stream into messages."""

    __slots__ = ("_encoding", "_held", "_need", "_parts", "have", "limit")

    def __init__(self, limit: int, held: Held, encoding: bytes = b"") -> None:
        self.limit = limit
        """Of a message's length."""
        self._held = held
        self._encoding = encoding
        self._parts: list[bytes] = []
        self.have = 0
        """Bytes of a message that is not whole yet."""
        self._need = PREFIX_BYTES

    def feed(self, payload: bytes) -> Sequence[bytes]:
        """The messages that are whole now. Raises CallFault for one too large, or that cannot be decompressed."""
        if self.have and self.have + len(payload) < self._need:
            self._keep(payload)
            return ()
        if self._parts:
            self._parts.append(payload)
            payload = b"".join(self._parts)
            self.forget()
        return self._cut(payload)

    def _cut(self, data: bytes) -> list[bytes]:
        messages: list[bytes] = []
        at, size = 0, len(data)
        self._need = PREFIX_BYTES
        while size - at >= PREFIX_BYTES:
            length = int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
            if length > self.limit:
                raise self._too_large(length)
            end = at + PREFIX_BYTES + length
            if end > size:
                self._need = PREFIX_BYTES + length
                break
            message = data[at + PREFIX_BYTES : end]
            messages.append(self._decompressed(message) if data[at] else message)
            at = end
        if at < size:
            self._keep(data[at:])
        return messages

    def _keep(self, part: bytes) -> None:
        held, size = self._held, len(part)
        if held.bytes + size > held.limit:
            raise CallFault(Status.RESOURCE_EXHAUSTED, "the picker holds too many unfinished messages")
        self._parts.append(part)
        self.have += size
        held.bytes += size

    def forget(self) -> None:
        """Drops what is not whole."""
        self._held.bytes -= self.have
        self._parts, self.have = [], 0

    def _too_large(self, length: int) -> CallFault:
        return CallFault(
            Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes is larger than the limit of {self.limit}"
        )

    def _decompressed(self, message: bytes) -> bytes:
        bits = _WINDOW_BITS.get(self._encoding)
        if bits is None:
            raise CallFault(Status.INTERNAL, "a message is marked as compressed, but there is no grpc-encoding")
        reader = zlib.decompressobj(bits)
        try:
            plain = reader.decompress(message, self.limit + 1)
        except zlib.error as error:
            raise CallFault(Status.INTERNAL, f"a compressed message cannot be read: {error}") from None
        if len(plain) > self.limit:
            raise self._too_large(len(plain))
        if not reader.eof:
            raise CallFault(Status.INTERNAL, "a compressed message is cut off")
        return plain
