"""News from one process to all others: a ring in shared memory that its writer never waits for.

Who does not read in time loses the oldest news and knows how often: what is told here improves estimates, and nothing
waits for it. A record says of itself whether it is whole (a checksum that depends on its place), so neither a writer
that dies in the middle nor one that laps its reader can hand over nonsense.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_picker.sharing.memory import Memory

_HEADER: Final = struct.Struct("<IIQ")
"""Length of the payload, kind, checksum."""
PADDING: Final = 0
"""Kind of the record that fills the end of the ring."""
_PATIENCE: Final = 1_000
"""Looks at a record that is announced and not whole: on some processors what was written first is not seen first."""


def _checksum(payload: bytes, place: int, kind: int) -> int:
    """`place`: bytes written before it, ever."""
    return xxh64_intdigest(payload, (place << 32 | kind) & 0xFFFF_FFFF_FFFF_FFFF)


class JournalWriter:
    """Writes the journal of one chair."""

    def __init__(self, memory: Memory, chair: int) -> None:
        self._ring = memoryview(memory.journals[chair])
        self._head = memory.heads[chair]
        self._size = len(self._ring)
        self._written = int(self._head[0])
        self.dropped = 0
        """Records too large to be written."""

    def write(self, kind: int, payload: bytes) -> None:
        """Appends a record; `kind` is not PADDING."""
        size, ring = self._size, self._ring
        room = -(-(_HEADER.size + len(payload)) // 8) * 8
        if room > size // 4:
            self.dropped += 1
            return
        place = self._written % size
        if place + room > size:
            self._put(place, PADDING, bytes(0), size - place)
            place = 0
        _HEADER.pack_into(ring, place, len(payload), kind, _checksum(payload, self._written, kind))
        ring[place + _HEADER.size : place + _HEADER.size + len(payload)] = payload
        self._written += room
        self._head[0] = self._written

    def _put(self, place: int, kind: int, payload: bytes, room: int) -> None:
        if room >= _HEADER.size:
            _HEADER.pack_into(self._ring, place, room, kind, _checksum(payload, self._written, kind))
        self._written += room


class JournalReader:
    """Reads the journal of another chair, from now on."""

    def __init__(self, memory: Memory, chair: int) -> None:
        self._ring = memoryview(memory.journals[chair])
        self._heads = memoryview(memory.heads[chair])
        self._size = len(self._ring)
        self._read = self._heads[0]
        self._looks = 0
        self.lost = 0
        """Times that news were lost."""

    @property
    def news(self) -> bool:
        """There is something to read."""
        return bool(self._heads[0] != self._read)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(kind, payload) of what has come since, oldest first."""
        size, ring = self._size, self._ring
        while (head := self._heads[0]) != self._read:
            if head - self._read > size:
                self._skip(head)
                return
            place = self._read % size
            if size - place < _HEADER.size:
                self._read += size - place
                continue
            length, kind, checksum = _HEADER.unpack_from(ring, place)
            if kind == PADDING and length == size - place and checksum == _checksum(b"", self._read, kind):
                self._read += length
                continue
            room = -(-(_HEADER.size + length) // 8) * 8
            payload = bytes(ring[place + _HEADER.size : place + _HEADER.size + length]) if place + room <= size else b""
            if checksum != _checksum(payload, self._read, kind) or len(payload) != length:
                self._looks += 1
                if self._heads[0] - self._read > size or self._looks > _PATIENCE:
                    self._skip(self._heads[0])
                return
            self._looks = 0
            self._read += room
            yield kind, payload

    def _skip(self, head: int) -> None:
        self._read = head
        self._looks = 0
        self.lost += 1
