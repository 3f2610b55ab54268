"""ProcessingRequest messages → calls of the exchange, read from the wire without protobuf objects.

Knows the shapes that data planes send. Whatever else a message has (unknown fields, a part given twice, text that is
not UTF-8, numbers beyond the usual) goes to the generated class, so that both transports understand it alike.
Protocol buffers encoding: a tag (field number × 8 + wire type), then a varint or a length and so many bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from poolpilot_picker.extproc.answered import NO_METADATA, Metadata
from poolpilot_picker.extproc.codec import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolpilot_picker.extproc.exchange import Exchange
    from poolpilot_picker.extproc.replies import Reply

CACHED: Final = 4_096
"""Entries of each cache."""
CACHED_BYTES: Final = 256
"""Longer ones are not kept."""

# Tags of ProcessingRequest: the kinds of message are one oneof.
REQUEST_HEADERS: Final = 0x12
RESPONSE_HEADERS: Final = 0x1A
REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A
METADATA: Final = 0x42
ATTRIBUTES: Final = 0x4A
OBSERVABILITY: Final = 0x50
PROTOCOL_CONFIG: Final = 0x5A

FIRST: Final = 0x0A
"""Field 1, a length and bytes."""
SECOND: Final = 0x12
THIRD: Final = 0x1A

_DOUBLE: Final = struct.Struct("<d").unpack

T = TypeVar("T")


class Unfamiliar(Exception):  # noqa: N818 - not an error: another reader takes over
    """The message has a shape that is not read here."""


class Parts(NamedTuple):
    """What a message says."""

    kind: int = 0
    """Its tag in the oneof; 0 where there is none."""
    fields: Sequence[tuple[str, str | bytes]] = ()
    body: bytes = b""
    end_of_stream: bool = False
    modes: tuple[int, int] | None = None
    metadata: Metadata = NO_METADATA
    attributes: Mapping[str, Any] = NO_METADATA
    observed: bool = False
    """In observability mode: nobody reads our answers."""


class Cache(Generic[T]):
    """What `read` makes of bytes, remembered for those that come again."""

    __slots__ = ("_known", "_read")

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read
        self._known: dict[bytes, T] = {}

    def __call__(self, data: bytes) -> T:
        known = self._known.get(data)
        if known is None:
            known = self._read(data)
            if len(data) <= CACHED_BYTES:
                if len(self._known) >= CACHED:
                    self._known.clear()
                self._known[data] = known
        return known


def _length(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends) of a varint below 2^28."""
    value = shift = 0
    for byte in data[at : at + 4]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Unfamiliar


def _chunk(data: bytes, at: int) -> tuple[bytes, int]:
    """(bytes, where they end) of a length and so many bytes."""
    length, at = _length(data, at)
    end = at + length
    if end > len(data):
        raise Unfamiliar
    return data[at:end], end


def _body(data: bytes) -> tuple[bytes, bool]:
    """(body, end of stream) of an HttpBody."""
    body, at = b"", 0
    if data[:1] == b"\x0a":
        body, at = _chunk(data, 1)
    rest = data[at:]
    if not rest:
        return body, False
    if rest == b"\x10\x01":
        return body, True
    raise Unfamiliar


def _modes(data: bytes) -> tuple[int, int]:
    """(request, response) body mode of a ProtocolConfiguration."""
    modes = [0, 0, 0]
    for at in range(0, len(data), 2):
        pair = data[at : at + 2]
        if len(pair) < 2 or pair[0] not in (0x08, 0x10, 0x18) or pair[1] > 0x7F:
            raise Unfamiliar
        modes[(pair[0] >> 3) - 1] = pair[1]
    return modes[0], modes[1]


def _field(data: bytes) -> tuple[str, str | bytes]:
    """(name, value) of a HeaderValue; as `codec.fields_of` has it, but a raw value that is UTF-8 comes as text."""
    name, text, raw = "", "", b""
    at, size = 0, len(data)
    while at < size:
        tag = data[at]
        chunk, at = _chunk(data, at + 1)
        if tag == FIRST:
            name = chunk.decode().lower()
        elif tag == SECOND:
            text = chunk.decode()
        elif tag == THIRD:
            raw = chunk
        else:
            raise Unfamiliar
    if not raw:
        return name, text
    try:
        return name, raw.decode()
    except UnicodeDecodeError:
        return name, raw


def _value(data: bytes) -> Any:
    """A google.protobuf.Value as plain Python."""
    if not data:
        return None
    tag = data[0]
    if tag == THIRD:
        chunk, end = _chunk(data, 1)
        plain: Any = chunk.decode()
    elif tag == 0x11:
        end = 9
        if len(data) < end:
            raise Unfamiliar
        [plain] = _DOUBLE(data[1:9])
    elif tag in (0x08, 0x20):
        if len(data) != 2 or data[1] > 1:
            raise Unfamiliar
        end, plain = 2, None if tag == 0x08 else data[1] == 1
    elif tag == 0x2A:
        chunk, end = _chunk(data, 1)
        plain = _struct(chunk)
    elif tag == 0x32:
        chunk, end = _chunk(data, 1)
        plain = [_value(item) for item in _repeated(chunk)]
    else:
        raise Unfamiliar
    if end != len(data):
        raise Unfamiliar
    return plain


def _repeated(data: bytes) -> list[bytes]:
    """The payloads of field 1, which is all there is."""
    items: list[bytes] = []
    at, size = 0, len(data)
    while at < size:
        if data[at] != FIRST:
            raise Unfamiliar
        item, at = _chunk(data, at + 1)
        items.append(item)
    return items


def _entry(data: bytes) -> tuple[str, bytes]:
    """(key, value) of an entry of a map from text to messages."""
    if data[:1] != b"\x0a":
        raise Unfamiliar
    key, at = _chunk(data, 1)
    if data[at : at + 1] != b"\x12":
        raise Unfamiliar
    value, at = _chunk(data, at + 1)
    if at != len(data):
        raise Unfamiliar
    return key.decode(), value


def _struct(data: bytes) -> dict[str, Any]:
    """A google.protobuf.Struct as plain Python."""
    return {key: _value(value) for key, value in map(_entry, _repeated(data))}


def _attributes(data: bytes) -> Mapping[str, Any]:
    return _struct(_entry(data)[1])


def _metadata(data: bytes) -> Metadata:
    return {name: _struct(struct) for name, struct in map(_entry, _repeated(data))}


class RequestReader:
    """Reads messages. What repeats from request to request is remembered by its bytes, and must not be changed."""

    __slots__ = ("_attributes", "_fields", "_metadata", "_modes", "unfamiliar")

    def __init__(self) -> None:
        self._fields: Cache[tuple[str, str | bytes]] = Cache(_field)
        self._attributes: Cache[Mapping[str, Any]] = Cache(_attributes)
        self._metadata: Cache[Metadata] = Cache(_metadata)
        self._modes: Cache[tuple[int, int]] = Cache(_modes)
        self.unfamiliar = 0
        """Messages left to the generated class."""

    def dispatch(self, exchange: Exchange, message: bytes, now: float) -> list[Reply] | None:
        """Hands a message to the exchange and returns its replies, as `codec.dispatch` does.

        None: it is for observers, whose answers nobody reads, so nothing was done. Raises protobuf's DecodeError where
        the bytes are no message.
        """
        try:
            parts = self.read(message)
        except (Unfamiliar, UnicodeDecodeError, RecursionError):
            return self._slowly(exchange, message, now)
        kind, fields, body, end, modes, metadata, attributes, observed = parts
        if observed:
            return None
        if modes is not None:
            exchange.set_modes(*modes)
        if kind == RESPONSE_BODY:
            return exchange.response_body(body, end, now=now)
        if kind == REQUEST_BODY:
            return exchange.request_body(body, end, now=now, metadata=metadata)
        if kind == REQUEST_HEADERS:
            return exchange.request_headers(fields, end, now=now, metadata=metadata)
        if kind == RESPONSE_HEADERS:
            return exchange.response_headers(fields, end, now=now, attributes=attributes, metadata=metadata)
        return []

    def _slowly(self, exchange: Exchange, message: bytes, now: float) -> list[Reply] | None:
        self.unfamiliar += 1
        parsed = ext_proc.ProcessingRequest.FromString(message)
        return None if parsed.observability_mode else dispatch(exchange, parsed, now)

    def read(self, message: bytes) -> Parts:
        """Takes a message apart. Raises Unfamiliar or UnicodeDecodeError."""
        kind, payload = 0, b""
        modes: tuple[int, int] | None = None
        metadata = NO_METADATA
        attributes: Mapping[str, Any] = NO_METADATA
        observed = False
        seen = 0
        at, size = 0, len(message)
        while at < size:
            tag = message[at]
            if tag & 7 == 2:
                chunk, at = _chunk(message, at + 1)
            elif tag == OBSERVABILITY:
                value, at = _length(message, at + 1)
                observed = value != 0
                continue
            else:
                raise Unfamiliar
            if REQUEST_HEADERS <= tag <= RESPONSE_BODY and not kind:
                kind, payload = tag, chunk
            elif tag <= seen:
                raise Unfamiliar
            elif tag == METADATA:
                metadata = self._metadata(chunk) if chunk else NO_METADATA
            elif tag == ATTRIBUTES:
                attributes = self._attributes(chunk)
            elif tag == PROTOCOL_CONFIG:
                modes = self._modes(chunk)
            else:
                raise Unfamiliar
            seen = tag
        if kind >= REQUEST_BODY:
            body, end = _body(payload)
            return Parts(kind, (), body, end, modes, metadata, attributes, observed)
        fields, end = self._headers(payload)
        return Parts(kind, fields, b"", end, modes, metadata, attributes, observed)

    def _headers(self, data: bytes) -> tuple[list[tuple[str, str | bytes]], bool]:
        """(fields, end of stream) of an HttpHeaders."""
        fields: list[tuple[str, str | bytes]] = []
        if not data:
            return fields, False
        entries, at = b"", 0
        if data[0] == FIRST:
            entries, at = _chunk(data, 1)
        rest = data[at:]
        if rest not in (b"", b"\x18\x01"):
            raise Unfamiliar
        read = self._fields
        at, size = 0, len(entries)
        while at < size:
            if entries[at] != FIRST:
                raise Unfamiliar
            entry, at = _chunk(entries, at + 1)
            fields.append(read(entry))
        return fields, rest != b""
