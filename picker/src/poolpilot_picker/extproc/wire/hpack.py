"""Header blocks ↔ header fields (RFC 7541). The first thing that is read of a stream.

We ask the peer to keep no dynamic table (SETTINGS_HEADER_TABLE_SIZE 0): then equal blocks mean equal fields, and a
block that was seen before costs one look-up. Until the peer has acknowledged that, it may use a table of 4,096 bytes,
which is kept for it. Our own blocks use no table at all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from poolpilot_picker.extproc.wire import huffman
from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Field = tuple[bytes, bytes]

DEFAULT_TABLE_BYTES: Final = 4_096
ENTRY_OVERHEAD: Final = 32
"""Counted for each field beside name and value, in tables (section 4.1) and lists (RFC 9113, section 6.5.2)."""
CACHED_BLOCKS: Final = 256
CACHED_BLOCK_BYTES: Final = 1_024
CACHED_STRINGS: Final = 512
CACHED_STRING_BYTES: Final = 128
"""Coded; with tracing every block is another, but few of its strings are."""

# Appendix A: names with their values, index 1 first.
_STATIC_TEXT: Final = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204|
:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|
accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|
content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|
last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""
STATIC_TABLE: Final[tuple[Field, ...]] = (
    (b"", b""),
    *(
        (name, value)
        for name, _, value in (
            one.strip().encode().partition(b" ") for one in _STATIC_TEXT.replace("\n", "").split("|")
        )
    ),
)
_STATIC_SIZE: Final = len(STATIC_TABLE)

T = TypeVar("T")


def _broken(reason: str) -> ConnectionFault:
    return ConnectionFault(Code.COMPRESSION_ERROR, reason)


class ListTooLarge(Exception):  # noqa: N818 - not a fault of the connection: the block was read to its end
    """The header list is larger than announced; the decoder's state is good."""


class _Cursor:
    """A header block being read. `known`: strings that were decoded before."""

    __slots__ = ("at", "block", "known")

    def __init__(self, block: bytes, known: dict[bytes, bytes]) -> None:
        self.block = block
        self.known = known
        self.at = 0

    def integer(self, prefix_bits: int) -> int:
        """Section 5.1. Raises ConnectionFault beyond 28 bits: nothing here is that large."""
        block, mask = self.block, (1 << prefix_bits) - 1
        value = block[self.at] & mask
        self.at += 1
        if value < mask:
            return value
        for shift in (0, 7, 14, 21):
            if self.at >= len(block):
                raise _broken("a header block ends in the middle of a number")
            byte = block[self.at]
            self.at += 1
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _broken("a number in a header block is too large")

    def string(self) -> bytes:
        """Section 5.2."""
        if self.at >= len(self.block):
            raise _broken("a header block ends where a string should be")
        coded = self.block[self.at] & 0x80
        length = self.integer(7)
        end = self.at + length
        if end > len(self.block):
            raise _broken("a header block ends in the middle of a string")
        text = self.block[self.at : end]
        self.at = end
        return self._decoded(text) if coded else text

    def _decoded(self, text: bytes) -> bytes:
        known = self.known.get(text)
        if known is None:
            known = huffman.decode(text)
            if len(text) <= CACHED_STRING_BYTES:
                if len(self.known) >= CACHED_STRINGS:
                    self.known.clear()
                self.known[text] = known
        return known


class Decoder(Generic[T]):
    """Reads the blocks of one connection, in their order. `interpret` makes of the fields what is kept and cached."""

    def __init__(self, interpret: Callable[[Sequence[Field]], T], max_list_bytes: int) -> None:
        self._interpret = interpret
        self._max_list_bytes = max_list_bytes
        self._table: deque[Field] = deque()
        self._table_bytes = 0
        self._capacity = DEFAULT_TABLE_BYTES
        self._allowed = DEFAULT_TABLE_BYTES
        self._must_shrink = False
        self.known: dict[bytes, T] = {}
        """What blocks meant that came before, as far as they would mean it still."""
        self._strings: dict[bytes, bytes] = {}

    def allow(self, table_bytes: int) -> None:
        """The peer has acknowledged our SETTINGS_HEADER_TABLE_SIZE (section 4.2; RFC 9113, section 4.3.1)."""
        self._allowed = table_bytes
        # A block that was good before may not be now.
        self.known.clear()
        if self._table_bytes > table_bytes:
            self._must_shrink = True
        elif self._capacity > table_bytes:
            # A peer that has put nothing into its table need not say that it keeps it so.
            self._capacity = table_bytes

    def decode(self, block: bytes) -> T:
        """What `interpret` makes of the block. Raises ConnectionFault, or ListTooLarge once the block is read."""
        known = self.known.get(block)
        if known is not None:
            return known
        fields, room, changed = self._fields(block)
        if changed:
            self.known.clear()
        if room < 0:
            raise ListTooLarge
        meaning = self._interpret(fields)
        if not changed and len(block) <= CACHED_BLOCK_BYTES:
            if len(self.known) >= CACHED_BLOCKS:
                self.known.clear()
            self.known[block] = meaning
        return meaning

    def _fields(self, block: bytes) -> tuple[list[Field], int, bool]:
        """(fields, bytes that the list might still have had, whether the dynamic table changed)."""
        cursor = _Cursor(block, self._strings)
        fields: list[Field] = []
        room = self._max_list_bytes
        changed = False
        size = len(block)
        while cursor.at < size:
            first = block[cursor.at]
            if first & 0xE0 == 0x20:
                if room != self._max_list_bytes:
                    raise _broken("a table size update comes after a header field")
                changed = self._resize(cursor.integer(5)) or changed
                continue
            if self._must_shrink:
                raise _broken("the dynamic table was not reduced as announced")
            if first & 0x80:
                field = self._entry(cursor.integer(7))
            elif first & 0x40:
                field = self._literal(cursor, 6)
                self._add(field)
                changed = changed or self._capacity > 0
            else:
                field = self._literal(cursor, 4)
            room -= len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
            if room >= 0:
                fields.append(field)
        return fields, room, changed

    def _entry(self, index: int) -> Field:
        if 0 < index < _STATIC_SIZE:
            return STATIC_TABLE[index]
        at = index - _STATIC_SIZE
        if not 0 <= at < len(self._table):
            raise _broken(f"a header block names table entry {index}, which does not exist")
        return self._table[at]

    def _literal(self, cursor: _Cursor, prefix_bits: int) -> Field:
        index = cursor.integer(prefix_bits)
        name = self._entry(index)[0] if index else cursor.string()
        return name, cursor.string()

    def _add(self, field: Field) -> None:
        needed = len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
        self._evict(self._capacity - needed)
        if needed <= self._capacity:
            self._table.appendleft(field)
            self._table_bytes += needed

    def _resize(self, capacity: int) -> bool:
        """True if that changed anything."""
        if capacity > self._allowed:
            raise _broken(f"the dynamic table is set to {capacity} bytes; allowed are {self._allowed}")
        changed = capacity != self._capacity
        self._capacity = capacity
        self._must_shrink = False
        self._evict(capacity)
        return changed

    def _evict(self, down_to: int) -> None:
        while self._table and self._table_bytes > down_to:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_OVERHEAD


# ---- encoding

NO_TABLE: Final = b"\x20"
"""Begins the first block of a connection: we keep no dynamic table, whatever the peer allows or will allow."""


def _number(value: int, prefix_bits: int, pattern: int) -> bytes:
    mask = (1 << prefix_bits) - 1
    if value < mask:
        return bytes((pattern | value,))
    rest = value - mask
    octets = bytearray((pattern | mask,))
    while rest >= 0x80:
        octets.append(rest & 0x7F | 0x80)
        rest >>= 7
    octets.append(rest)
    return bytes(octets)


_STATIC_INDEX: Final = {field: index for index, field in enumerate(STATIC_TABLE) if index}
_STATIC_NAME: Final = {name: index for index, (name, _) in reversed(list(enumerate(STATIC_TABLE))) if index}


def encode(fields: Iterable[Field]) -> bytes:
    """A block that neither uses nor changes a dynamic table: entries of the static one, else literals."""
    parts: list[bytes] = []
    for name, value in fields:
        index = _STATIC_INDEX.get((name, value))
        if index is not None:
            parts.append(_number(index, 7, 0x80))
            continue
        index = _STATIC_NAME.get(name, 0)
        parts.append(_number(index, 4, 0))
        if not index:
            parts += (_number(len(name), 7, 0), name)
        parts += (_number(len(value), 7, 0), value)
    return b"".join(parts)
