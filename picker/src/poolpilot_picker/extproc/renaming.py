"""The model's name in an answer, put back to what the client asked for: byte for byte, as the chunks come.

The request's model was rewritten, and the engine names the one it was asked for, in every event of a stream. What is
looked for is a JSON member `"model": "TARGET"` at any depth: inside of a text its quotes would be escaped, so that a
text can never be taken for it.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY: Final = b'"model"'
SPACE: Final = b" \t\r\n"
MOST_SPACE: Final = 16
"""Around the colon, in a pretty-printed answer; with more it is left as it is."""
_KINDS: Final = ("application/json", "text/event-stream", "")


class Names(msgspec.Struct, frozen=True):
    """A target and what is to stand in its place."""

    pattern: re.Pattern[bytes]
    spellings: tuple[bytes, ...]
    """Of the target as a JSON text."""
    client: bytes
    """What the client asked for, as a JSON text."""

    @property
    def longest(self) -> int:
        """Bytes of the longest member that is looked for."""
        return len(KEY) + 2 * MOST_SPACE + 1 + max(map(len, self.spellings))


@lru_cache(maxsize=1_024)
def names(target: str, client: str) -> Names:
    """How JSON writers spell a target: as it is, in ASCII, and with slashes escaped."""
    plain, ascii_only = msgspec.json.encode(target), json.dumps(target).encode()
    spellings = tuple(dict.fromkeys((plain, ascii_only, plain.replace(b"/", b"\\/"), ascii_only.replace(b"/", b"\\/"))))
    space = rb"[ \t\r\n]{0,%d}" % MOST_SPACE
    pattern = re.compile(b"(%s%s:%s)(?:%s)" % (KEY, space, space, b"|".join(map(re.escape, spellings))))
    return Names(pattern, spellings, msgspec.json.encode(client))


def is_encoded(received: Mapping[str, str | bytes]) -> bool:
    """Whether the body of an answer with these headers is compressed: not what it says, but what has to be unpacked."""
    value = received.get("content-encoding") or ""
    return value.strip().lower() not in ("identity", b"identity", "", b"")


def can_be_renamed(received: Mapping[str, str | bytes]) -> bool:
    """Whether an answer with these headers is text in which a model may be named."""
    if is_encoded(received):
        return False
    value = received.get("content-type", "")
    kind = (value if isinstance(value, str) else value.decode("latin-1")).partition(";")[0].strip().lower()
    return kind in _KINDS or kind.endswith("+json")


class Renaming:
    """Of one answer. Holds back only what may be the beginning of a member that the next chunk completes."""

    __slots__ = ("_held", "_names")

    def __init__(self, target: str, client: str) -> None:
        self._names = names(target, client)
        self._held = b""

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """What may go on to the client; with the last chunk, everything."""
        data = self._held + chunk if self._held else chunk
        wanted, at = self._names, 0
        parts: list[bytes] = []
        for found in wanted.pattern.finditer(data):
            parts += (data[at : found.end(1)], wanted.client)
            at = found.end()
        end = len(data) if last else self._undecided(data, at)
        self._held = data[end:]
        if not parts:
            return data if end == len(data) else data[:end]
        parts.append(data[at:end])
        return b"".join(parts)

    def flush(self) -> bytes:
        """What was held back; the answer has ended without a last chunk."""
        held, self._held = self._held, b""
        return held

    def _undecided(self, data: bytes, start: int) -> int:
        """Where the end of the data may begin a member; its length where it does not."""
        place = data.find(b'"', max(start, len(data) - self._names.longest))
        while place >= 0:
            if self._begins(data[place:]):
                return place
            place = data.find(b'"', place + 1)
        return len(data)

    def _begins(self, text: bytes) -> bool:
        if len(text) <= len(KEY):
            return KEY.startswith(text)
        if not text.startswith(KEY):
            return False
        rest, before = _after_space(text[len(KEY) :])
        if not rest:
            return before <= MOST_SPACE
        if not rest.startswith(b":"):
            return False
        rest, between = _after_space(rest[1:])
        if before > MOST_SPACE or between > MOST_SPACE:
            return False
        return any(len(rest) < len(spelling) and spelling.startswith(rest) for spelling in self._names.spellings)


def _after_space(text: bytes) -> tuple[bytes, int]:
    rest = text.lstrip(SPACE)
    return rest, len(text) - len(rest)
