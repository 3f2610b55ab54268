"""Replies → the bytes of ProcessingResponse messages, as `codec.encode` would serialise them, without protobuf objects.

A message comes in two parts, so that a body need not be copied to stand behind its tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from poolpilot_picker.extproc.replies import (
    NO_MUTATION,
    BodyReply,
    HeadersReply,
    ImmediateReply,
    Mutation,
    PatienceReply,
    Reply,
    StreamedReply,
    TrailersReply,
)
from poolpilot_picker.requests.headers import DESTINATION, LB_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_picker.extproc.replies import Field, ModeOverride

CACHED: Final = 1_024
CACHED_BYTES: Final = 512

Key = TypeVar("Key")

_SMALL: Final = tuple(bytes((value,)) for value in range(0x80))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _part(tag: int, content: bytes) -> bytes:
    """Field with a length and so many bytes; `tag` is field number × 8 + 2."""
    return b"".join((_SMALL[tag], _varint(len(content)), content))


def _number(tag: int, value: int) -> bytes:
    """A varint field; absent where it is 0. Negative ones take ten bytes."""
    return _SMALL[tag] + _varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def _text(tag: int, value: bytes) -> bytes:
    """A text or bytes field; absent where it is empty."""
    return _part(tag, value) if value else b""


def _flag(tag: int, value: bool) -> bytes:
    return bytes((tag, 1)) if value else b""


class ReplyWriter:
    """Encodes replies. What comes again (options of header mutations, destinations, heads of chunks) is remembered."""

    __slots__ = ("_heads", "destinations", "heads", "options")

    def __init__(self) -> None:
        self.options: dict[Field, bytes] = {}
        """Fields of header mutations, as they were written before."""
        self.destinations: dict[str, bytes] = {"": b""}
        """Dynamic metadata that names a destination, as it was written before."""
        self._heads: dict[tuple[bool, bool, int], bytes] = {}
        self.heads: dict[int, bytes] = {}
        """First parts of an answer's chunks that do not end it, by the size of the chunk, as far as they are known."""

    def encode(self, reply: Reply) -> tuple[bytes, bytes]:
        """(first part, second part) of one message."""
        if isinstance(reply, StreamedReply):
            return self._chunk_head(reply), reply.chunk
        return self._small(reply), b""

    def _small(self, reply: Reply) -> bytes:
        if isinstance(reply, HeadersReply):
            if reply.mutation is NO_MUTATION and reply.mode_override is None:
                return b"\x0a\0" if reply.request else b"\x12\0"
            override = _override(reply.mode_override) if reply.mode_override is not None else b""
            return self._changed(b"\x0a" if reply.request else b"\x12", reply.mutation, b"") + override
        if isinstance(reply, BodyReply):
            if reply.mutation is NO_MUTATION and reply.body is None:
                return b"\x1a\0" if reply.request else b"\x22\0"
            body = _part(0x1A, _part(0x0A, reply.body)) if reply.body is not None else b""
            return self._changed(b"\x1a" if reply.request else b"\x22", reply.mutation, body)
        if isinstance(reply, ImmediateReply):
            return _part(0x3A, self._immediate(reply))
        if isinstance(reply, PatienceReply):
            seconds, rest = divmod(reply.milliseconds, 1000)
            return _part(0x52, _number(0x08, seconds) + _number(0x10, rest * 1_000_000))
        assert isinstance(reply, TrailersReply)
        return (b"\x2a\0" if reply.request else b"\x32\0") + self._destination(reply.destination)

    def _changed(self, tag: bytes, mutation: Mutation, body: bytes) -> bytes:
        """A HeadersResponse or BodyResponse, and the dynamic metadata beside it."""
        fields = self._header_mutation(mutation.set_headers, mutation.remove_headers)
        if fields:
            body = b"".join((b"\x12", _varint(len(fields)), fields, body))
        if mutation.clear_route_cache:
            body += b"\x28\x01"
        if body:
            size = _varint(len(body))
            body = b"".join((_varint(1 + len(size) + len(body)), b"\x0a", size, body))
        return b"".join((tag, body or b"\0", self._destination(mutation.destination)))

    def _header_mutation(self, fields: Sequence[Field], removed: Sequence[str] = ()) -> bytes:
        known = self.options.get
        options = [known(field) or self._option(field) for field in fields]
        if removed:
            options += [_part(0x12, name.encode()) for name in removed]
        return b"".join(options)

    def _option(self, field: Field) -> bytes:
        """A HeaderValueOption that overwrites or adds, within a HeaderMutation."""
        name, value = field
        header = _text(0x0A, name.encode()) + _text(0x1A, value.encode("utf-8", "surrogateescape"))
        option = _part(0x0A, _part(0x0A, header) + b"\x18\x02")
        _remember(self.options, field, option)
        return option

    def _destination(self, destination: str) -> bytes:
        """Dynamic metadata that names it; nothing where there is none."""
        known = self.destinations.get(destination)
        if known is None:
            inner = _struct(DESTINATION, _part(0x1A, destination.encode()))
            known = _part(0x42, _struct(LB_NAMESPACE, _part(0x2A, inner)))
            _remember(self.destinations, destination, known)
        return known

    def _chunk_head(self, reply: StreamedReply) -> bytes:
        """All of a full duplex chunk's message but the chunk, which is its last field."""
        size = len(reply.chunk)
        if reply.compressed or reply.without_message:
            flags = _flag(0x10, reply.end_of_stream) + _flag(0x18, reply.without_message)
            return _head_of_chunk(reply.request, flags + _flag(0x20, reply.compressed), size)
        key = (reply.request, reply.end_of_stream, size)
        known = self._heads.get(key)
        if known is None:
            known = _head_of_chunk(reply.request, _flag(0x10, reply.end_of_stream), size)
            _remember(self._heads, key, known)
        return known

    def chunk_head(self, size: int) -> bytes:
        """The first part for a chunk of an answer that does not end it; found in `heads` the next time."""
        head = _head_of_chunk(False, b"", size)
        _remember(self.heads, size, head)
        return head

    def _immediate(self, reply: ImmediateReply) -> bytes:
        parts = [_part(0x0A, _number(0x08, reply.status))]
        if reply.set_headers:
            parts.append(_part(0x12, self._header_mutation(reply.set_headers)))
        parts.append(_text(0x1A, reply.body))
        if reply.grpc_status is not None:
            parts.append(_part(0x22, _number(0x08, reply.grpc_status)))
        parts.append(_text(0x2A, reply.details.encode()))
        return b"".join(parts)


def _head_of_chunk(request: bool, flags: bytes, size: int) -> bytes:
    head = flags + b"\x0a" + _varint(size) if size else flags
    for tag in (0x1A, 0x1A, 0x0A, 0x1A if request else 0x22):
        head = _SMALL[tag] + _varint(len(head) + size) + head
    return head


def _override(modes: ModeOverride) -> bytes:
    return _part(0x4A, _number(0x18, int(modes.request)) + _number(0x20, int(modes.response)))


def _struct(key: str, value: bytes) -> bytes:
    """A google.protobuf.Struct of one field."""
    return _part(0x0A, _part(0x0A, key.encode()) + _part(0x12, value))


def _remember(cache: dict[Key, bytes], key: Key, value: bytes) -> None:
    if len(value) <= CACHED_BYTES:
        if len(cache) >= CACHED:
            cache.clear()
        cache[key] = value
