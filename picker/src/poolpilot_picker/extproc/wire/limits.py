"""What a peer may do to a connection before it is told off, and how much of it is counted."""

from __future__ import annotations

from typing import Final

import msgspec

MIB: Final = 2**20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one connection, unless said otherwise. Times are in milliseconds."""

    max_message_bytes: int = 66 * MIB
    """Of one gRPC message, before and after decompression; more ends the call with RESOURCE_EXHAUSTED."""
    max_streams: int = 100_000
    """Open at once; more are answered REFUSED_STREAM."""
    header_table_bytes: int = 0
    """SETTINGS_HEADER_TABLE_SIZE; without a table, equal header blocks are decoded once."""
    max_header_list_bytes: int = 64 * 1024
    """As RFC 9113 counts them; a larger list is answered 431."""
    max_header_block_bytes: int = 128 * 1024
    """Compressed: more ends the connection, because a block that is not read breaks the next ones."""
    max_header_frames: int = 128
    """HEADERS and CONTINUATION of one block."""
    stream_window: int = 4 * MIB
    """Bytes that a peer may send on a stream ahead of us."""
    connection_window: int = 64 * MIB
    """At least 65,535: what every connection begins with."""
    max_stream_backlog: int = MIB
    """Replies waiting for the peer's window on one stream: with more, the peer gets no further window there."""
    max_held_bytes: int = 512 * MIB
    """Of the whole listener: parts of messages and replies that wait; the stream that would add more ends with
    RESOURCE_EXHAUSTED."""
    frames_at_once: int = 200
    """Handled in one go, about 50 decisions; the rest of what was read waits for the event loop's next turn."""
    oddities: float = 1_000.0
    """Things that a sane peer seldom does (empty frames, SETTINGS, faults of single streams …), in a burst."""
    oddities_per_s: float = 100.0
    pings: float = 5_000.0
    """In a burst. Some gRPC clients send one for each round trip, to measure it."""
    pings_per_s: float = 2_000.0
    early_resets: float = 10_000.0
    """Streams that the peer opens and resets before anything was answered, in a burst."""
    early_resets_per_s: float = 1_000.0
    tick_ms: float = 1_000.0
    """How often silence is looked for."""
    handshake_ms: float = 10_000.0
    """For TLS and for the first SETTINGS, each."""
    settings_ack_ms: float = 20_000.0
    keepalive_ms: float = 30_000.0
    """Silent for so long: is it still there?"""
    keepalive_timeout_ms: float = 10_000.0
    """No answer for so long, or nothing taken from a full socket: it is not."""
    idle_ms: float = 3_600_000.0
    """Without a stream for so long, the connection is closed in good order."""
    goaway_ms: float = 1_000.0
    """A drained connection takes new streams until its peer has read the first GOAWAY, or for so long."""


class Allowance:
    """A token bucket: `burst` at once, `per_s` for ever."""

    __slots__ = ("_burst", "_last", "_left", "_per_ms")

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = self._left = burst
        self._per_ms = per_s / 1000.0
        self._last: float | None = None

    def spend(self, now: float, amount: float = 1.0) -> bool:
        """False when there is not so much left (`now` in ms)."""
        if self._last is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._last) * self._per_ms)
        self._last = now
        self._left -= amount
        return self._left >= 0.0


class Held:
    """Bytes that the connections of one listener keep for later."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self.limit = limit

    def full(self, more: int) -> bool:
        """Whether so many more would be too many."""
        return self.bytes + more > self.limit
