"""What ends a connection, a stream or a call of the wire transport, and with which code the peer is told."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """HTTP/2 error codes (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Status(IntEnum):
    """gRPC status codes that the picker sends."""

    OK = 0
    UNKNOWN = 2
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class ConnectionFault(Exception):  # noqa: N818 - says whose fault it is, not what class it is
    """The connection ends with GOAWAY (RFC 9113, section 5.4.1)."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class StreamFault(Exception):  # noqa: N818
    """One stream ends with RST_STREAM, the others go on (RFC 9113, section 5.4.2)."""

    def __init__(self, stream_id: int, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.reason = reason


class CallFault(Exception):  # noqa: N818
    """One call ends with this gRPC status; the caller gets the message."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
