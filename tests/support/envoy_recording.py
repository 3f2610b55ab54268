"""What a real Envoy sent in one exchange, read by read, to be played again under other stream numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from poolpilot_picker.extproc.wire import frames

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[1] / "data" / "envoy"
HELLO = frames.PREFACE + frames.settings([(3, 2**31 - 1), (4, 2**28)]) + frames.window_update(0, 2**30)
"""Begins a connection: windows that are never at their end, so that an exchange costs what it costs."""
_ID = re.compile(rb"(?<=x-request-id\x1a\x24).{36}")
_POD = re.compile(rb"127\.0\.0\.1:\d{5}")


class Recording:
    """One exchange. `reads` are what the socket gave, whole frames each."""

    def __init__(self, name: str) -> None:
        lines = (FOLDER / f"{name}.reads").read_text().splitlines()
        self.reads = [bytes.fromhex(line) for line in lines if not line.startswith("#")]
        self.pod = next(found.group().decode() for read in self.reads if (found := _POD.search(read)))
        """The endpoint that answered."""

    def played(self, number: int) -> list[bytes]:
        """The reads as exchange `number` (from 0) of a connection, with a request id of its own."""
        stream, name = 2 * number + 1, b"%036d" % number
        return [_renumbered(_ID.sub(name, read), stream) for read in self.reads]

    def streaming(self, chunks: int) -> Recording:
        """The same with so many content chunks, each in a read of its own as recorded."""
        longer = Recording.__new__(Recording)
        longer.reads, longer.pod = [*self.reads[:3], *[self.reads[4]] * chunks, *self.reads[-4:]], self.pod
        return longer

    def asking(self, body: bytes) -> Recording:
        """The same with another request body, which comes as one message, 128 KiB in a read."""
        longer = Recording.__new__(Recording)
        longer.pod = self.pod
        head, asked, *answer = self.reads
        first, *rest = _frames(asked)
        about = first[first.rindex(b"\x42") :]  # what stands behind the body: as recorded
        inner = b"\x0a" + _varint(len(body)) + body
        message = b"\x22" + _varint(len(inner)) + inner + about
        data = b"\0" + len(message).to_bytes(4, "big") + message
        cut = [frames.frame(frames.DATA, 0, 1, data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
        reads = [b"".join(cut[at : at + 8]) for at in range(0, len(cut), 8)]
        reads[-1] += b"".join(rest)
        longer.reads = [head, *reads, *answer]
        return longer


def _frames(read: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(read):
        high, low, *_ = frames.unpack_head(read, at)
        end = at + frames.HEAD_BYTES + (high << 8 | low)
        yield read[at:end]
        at = end


def _renumbered(read: bytes, stream: int) -> bytes:
    number = stream.to_bytes(4, "big")
    return b"".join(frame[:5] + number + frame[9:] for frame in _frames(read))


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*octets, value))
