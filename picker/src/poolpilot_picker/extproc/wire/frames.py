"""HTTP/2 frames: numbers, and the bytes of those we send (RFC 9113, sections 4 and 6)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
MAX_STREAM_ID: Final = 2**31 - 1
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
LARGEST_FRAME_BYTES: Final = 2**24 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

_HEAD: Final = struct.Struct(">HBBBI")
unpack_head: Callable[[bytes, int], tuple[int, int, int, int, int]] = _HEAD.unpack_from
"""(length >> 8, length & 255, type, flags, stream id with the reserved bit) of a frame at an offset."""
_NUMBER: Final = struct.Struct(">I")
unpack_number = _NUMBER.unpack_from
_SETTING: Final = struct.Struct(">HI")
_GOAWAY: Final = struct.Struct(">II")
pack_message_head = struct.Struct(">HBBBIBI").pack
"""Head of a DATA frame and of the gRPC message that fills it."""


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The head of a frame."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return head(len(payload), kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """SETTINGS with these values."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in values))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def ping(opaque: bytes, *, ack: bool = False) -> bytes:
    """PING with 8 bytes of data."""
    return frame(PING, ACK if ack else 0, 0, opaque)


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """GOAWAY."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + debug)


def rst_stream(stream_id: int, code: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """(identifier, value) pairs in their order. Raises ConnectionFault for a wrong size."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "the length of a SETTINGS frame is not a multiple of 6")
    return list(_SETTING.iter_unpack(payload))


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding. Raises ConnectionFault where there is too much."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
