"""ProcessingRequest messages → calls of the exchange, read from the wire without protobuf objects.

Knows the shapes that data planes send. Whatever else a message has (unknown fields, a part given twice, text that is
not UTF-8, numbers beyond the usual) goes to the generated class, so that both transports understand it alike.
Protocol buffers encoding: a tag (field number × 8 + wire type), then a varint or a length and so many bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from poolpilot_picker.extproc.answered import NO_METADATA, Metadata
from poolpilot_picker.extproc.codec import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_picker.extproc.exchange import Exchange
    from poolpilot_picker.extproc.replies import Reply

CACHED: Final = 1_024
"""Entries of each cache."""
CACHED_BYTES: Final = 512
"""Longer ones are not kept."""

# Tags of ProcessingRequest: the kinds of message are one oneof.
REQUEST_HEADERS: Final = 0x12
RESPONSE_HEADERS: Final = 0x1A
REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A
METADATA: Final = 0x42
ATTRIBUTES: Final = 0x4A
PROTOCOL_CONFIG: Final = 0x5A
BODIES: Final = (REQUEST_BODY, RESPONSE_BODY)
HEADS: Final = (REQUEST_HEADERS, RESPONSE_HEADERS)
"""Trailers are rare, and left to the generated class, as is observability mode."""

FIRST: Final = 0x0A
"""Field 1, a length and bytes."""
SECOND: Final = 0x12
THIRD: Final = 0x1A

_DOUBLE: Final = struct.Struct("<d").unpack

T = TypeVar("T")

Read = tuple[int, "list[tuple[str, str | bytes]] | bytes", bool, "About"]
"""A message: (tag of its kind, fields or body, end of stream, what stands behind)."""


class Unfamiliar(Exception):  # noqa: N818 - not an error: another reader takes over
    """The message has a shape that is not read here."""


Fields = list[tuple[str, "str | bytes"]]
About = tuple["tuple[int, int] | None", Metadata, "Mapping[str, Any]"]
"""What stands behind the kind of message: (body modes, metadata, attributes)."""


class Cache(Generic[T]):
    """What `read` makes of bytes, remembered for those that come again."""

    __slots__ = ("_read", "known")

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read
        self.known: dict[bytes, T] = {}

    def __call__(self, data: bytes) -> T:
        known = self.known.get(data)
        if known is None:
            known = self._read(data)
            if len(data) <= CACHED_BYTES:
                if len(self.known) >= CACHED:
                    self.known.clear()
                self.known[data] = known
        return known


def _span(data: bytes, at: int) -> tuple[int, int]:
    """(where they begin, where they end) of a length (a varint below 2^28) and so many bytes. May raise IndexError."""
    length = data[at]
    at += 1
    if length > 0x7F:
        length &= 0x7F
        shift = 7
        while (byte := data[at]) > 0x7F:
            length |= (byte & 0x7F) << shift
            shift += 7
            if shift > 21:
                raise Unfamiliar
            at += 1
        length |= byte << shift
        at += 1
    end = at + length
    if end > len(data):
        raise Unfamiliar
    return at, end


def _chunk(data: bytes, at: int) -> tuple[bytes, int]:
    """(bytes, where they end) of a length and so many bytes."""
    start, end = _span(data, at)
    return data[start:end], end


def _flag(data: bytes, at: int, end: int, tag: int) -> bool:
    """What a message still says between two offsets: nothing (False), or the flag `tag` (True)."""
    if at == end:
        return False
    if at + 2 == end and data[at] == tag and data[at + 1] == 1:
        return True
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


def _about(data: bytes) -> About:
    """What a ProcessingRequest says behind the kind of message."""
    modes: tuple[int, int] | None = None
    metadata: Metadata = NO_METADATA
    attributes: Mapping[str, Any] = NO_METADATA
    seen = at = 0
    while at < len(data):
        tag = data[at]
        # Fields in their order, each once: what is repeated would have to be merged.
        if tag <= seen:
            raise Unfamiliar
        seen = tag
        chunk, at = _chunk(data, at + 1)
        if tag == METADATA:
            metadata = {name: _struct(struct) for name, struct in map(_entry, _repeated(chunk))} or NO_METADATA
        elif tag == ATTRIBUTES:
            attributes = _struct(_entry(chunk)[1])
        elif tag == PROTOCOL_CONFIG:
            modes = _modes(chunk)
        else:
            raise Unfamiliar
    return modes, metadata, attributes


class RequestReader:
    """Reads messages. What repeats from request to request is remembered by its bytes, and must not be changed."""

    __slots__ = ("_fields", "about", "abouts", "fields", "unfamiliar")

    FAILURES: ClassVar = (Unfamiliar, IndexError, UnicodeDecodeError, RecursionError)
    """What reading raises for a message that is not familiar."""

    def __init__(self) -> None:
        self._fields: Cache[tuple[str, str | bytes]] = Cache(_field)
        self.fields = self._fields.known
        """Header fields that were read before."""
        self.about: Cache[About] = Cache(_about)
        self.abouts = self.about.known
        """What stands behind the kind of message, as far as it was read before."""
        self.unfamiliar = 0
        """Messages left to the generated class."""

    def dispatch(self, exchange: Exchange, message: bytes, now: float, at: int = 0) -> list[Reply] | None:
        """Hands a message to the exchange and returns its replies, as `codec.dispatch` does. `at`: where it begins.

        None: it is for observers, whose answers nobody reads, so nothing was done. Raises protobuf's DecodeError where
        the bytes are no message.
        """
        read = self.read(message, at)
        if read is None:
            return self._slowly(exchange, message[at:], now)
        kind, content, over, (modes, metadata, attributes) = read
        if modes is not None:
            exchange.set_modes(*modes)
        if isinstance(content, bytes):
            if kind == RESPONSE_BODY:
                return exchange.response_body(content, over, now=now)
            return exchange.request_body(content, over, now=now, metadata=metadata)
        if kind == REQUEST_HEADERS:
            return exchange.request_headers(content, over, now=now, metadata=metadata)
        return exchange.response_headers(content, over, now=now, attributes=attributes, metadata=metadata)

    def read(self, message: bytes, at: int = 0) -> Read | None:
        """What a message says that begins at `at`; None where it is not familiar. `compiled/_wire.pyx` reads alike."""
        try:
            kind = message[at]
            start, end = _span(message, at + 1)
            # The same for every message of a stream, and for many streams.
            behind = message[end:]
            about = self.abouts.get(behind) or self.about(behind)
            if kind in BODIES:
                body = b""
                if start < end and message[start] == FIRST:
                    first, start = _span(message, start + 1)
                    body = message[first:start]
                return kind, body, start != end and _flag(message, start, end, 0x10), about
            if kind in HEADS:
                fields, over = self._headers(message, start, end)
                return kind, fields, over, about
        except self.FAILURES:
            pass
        return None

    def _slowly(self, exchange: Exchange, message: bytes, now: float) -> list[Reply] | None:
        self.unfamiliar += 1
        parsed = ext_proc.ProcessingRequest.FromString(message)
        return None if parsed.observability_mode else dispatch(exchange, parsed, now)

    def _headers(self, data: bytes, at: int, end: int) -> tuple[Fields, bool]:
        """(fields, end of stream) of an HttpHeaders between two offsets."""
        fields: Fields = []
        if at < end and data[at] == FIRST:
            at, stop = _span(data, at + 1)
            known = self.fields.get
            while at < stop:
                if data[at] != FIRST:
                    raise Unfamiliar
                length = data[at + 1]
                if length < 0x80:
                    start = at + 2
                    at = start + length
                else:
                    start, at = _span(data, at + 1)
                entry = data[start:at]
                fields.append(known(entry) or self._fields(entry))
            if at != stop:
                raise Unfamiliar
        return fields, _flag(data, at, end, 0x18)
