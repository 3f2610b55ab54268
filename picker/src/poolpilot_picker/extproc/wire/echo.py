"""Chunks of an answer that nobody reads, message to message: what Envoy says of a chunk is what it wants to hear back.

Nine of ten messages of a streamed answer in full duplex are of this kind. HttpBody (`body`, the first field) and
StreamedBodyResponse (`body`, the first field) are the same bytes on the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.extproc.wire.fast_requests import FIRST, RESPONSE_BODY

if TYPE_CHECKING:
    from poolpilot_picker.extproc.wire.fast_replies import ReplyWriter
    from poolpilot_picker.extproc.wire.fast_requests import RequestReader

LEAST: Final = 6
"""Bytes of a message that has a chunk of more than one byte."""
LONG: Final = 1 << 14
"""Where lengths begin to take a third byte."""


class Echo:
    """Of one listener: shares what its reader knows by heart."""

    __slots__ = ("_heads", "_known", "_writer")

    def __init__(self, reader: RequestReader, writer: ReplyWriter) -> None:
        self._known = reader.abouts
        self._writer = writer
        self._heads = writer.heads

    def chunk(self, message: bytes, at: int) -> tuple[bytes, bytes] | None:
        """The reply, in two parts, to the message that fills `message` from `at` on.

        None for anything but a chunk that does not end its answer, in a shape that was read before.
        """
        if len(message) - at < LEAST or message[at] != RESPONSE_BODY:
            return None
        size = message[at + 1]
        start = at + 2
        if size > 0x7F:
            size += (message[start] << 7) - 0x80
            if size >= LONG:
                return None
            start += 1
        end = start + size
        if message[start] != FIRST or end > len(message) or message[end:] not in self._known:
            return None
        length = message[start + 1]
        start += 2
        if length > 0x7F:
            length += (message[start] << 7) - 0x80
            start += 1
        if start + length != end:
            return None
        return self._heads.get(length) or self._writer.chunk_head(length), message[start:end]
