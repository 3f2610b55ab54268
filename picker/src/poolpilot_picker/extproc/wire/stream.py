"""One HTTP/2 stream, and the call that runs on it. Made by the connection when a request begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections import deque

    from poolpilot_picker.extproc.exchange import Exchange


class Call(Protocol):
    """What the connection tells of a stream."""

    def data(self, payload: bytes) -> None:
        """Bytes of the request, in their order."""
        ...

    def over(self) -> None:
        """The peer sends no more."""
        ...

    def closed(self) -> None:
        """The call is at its end, however it came to it. Told exactly once."""
        ...


class NoCall:
    """Of a stream that was answered: what still arrives is nobody's."""

    def data(self, payload: bytes) -> None:
        """Nothing."""

    def over(self) -> None:
        """Nothing."""

    def closed(self) -> None:
        """Nothing."""


NO_CALL: Final = NoCall()


class Stream:
    """An open stream (RFC 9113, section 5.1: open, or half-closed on either side)."""

    __slots__ = (
        "answered",
        "call",
        "credit",
        "direct",
        "ending",
        "id",
        "left",
        "queue",
        "queued",
        "remote_over",
        "window",
    )

    def __init__(self, stream_id: int, call: Call, credit: int, window: int, left: int | None) -> None:
        self.id = stream_id
        self.call = call
        self.direct: Exchange | None = None
        """Whom a message that fills a frame may be read for in place: see `compiled/_wire.pyx`; None: nobody."""
        self.credit = credit
        """Bytes that the peer may still send; below 0 it has sent too many."""
        self.window = window
        """Bytes that we may still send; negative after the peer has lowered its initial window."""
        self.left = left
        """Bytes that `content-length` still announces; None without it."""
        self.queue: deque[memoryview] | None = None
        """Data that waits for a window."""
        self.queued = 0
        """Its bytes."""
        self.ending: bytes | None = None
        """The frame that ends our side, once everything before it is sent; None while the call goes on."""
        self.remote_over = False
        self.answered = False
        """Response headers were sent."""
