"""A JSON body cut anywhere → the same body closed at the cut, so that the ordinary decoders read what was seen.

Envoy's BUFFERED_PARTIAL hands over the beginning of a body above its buffer limit; `parse` must be able to use it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+\\?("|\Z)', re.DOTALL)
"""A string, or the open one at the end. It always matches once begun: a pattern that could fail at the end would start
again at every escaped quote."""
_NOT_BRACKETS: Final = re.compile(rb"[^\[\]{}]++")
_CLOSING: Final = bytes.maketrans(b"[{", b"]}")
_LITERAL: Final = b"+-.0123456789Eaeflnrstu"
"""Bytes of numbers, true, false and null."""
_SPACE: Final = b" \t\r\n"
_MAX_PASSES: Final = 64
_MAX_DEPTH: Final = 200
_WINDOW: Final = 16
"""An escaped surrogate pair is twelve bytes long."""


class Mended(msgspec.Struct, frozen=True):
    """A cut body made decodable."""

    candidates: Sequence[bytes]
    """The first that is JSON is right: whether a string at the cut is a key or a value is not known without parsing."""
    cut_at: int | None
    """Position at which an open string was closed; None when the cut was not inside a string."""


def mend(body: bytes) -> Mended:
    """Closes what is open at the end of `body`. No candidates when it cannot be the beginning of sensible JSON.

    Linear in the length of the body; an incomplete number, literal, escape or UTF-8 sequence at the cut is dropped.
    """
    rest, strings = _STRING.subn(rb"\1", body)
    in_string = strings != rest.count(b'"')
    brackets = _NOT_BRACKETS.sub(b"", rest)
    for _ in range(_MAX_PASSES):
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    if len(brackets) > _MAX_DEPTH or brackets.strip(b"[{"):
        return Mended((), None)
    closing = brackets.translate(_CLOSING)[::-1]
    if in_string:
        base = _whole_characters(body)
        return Mended((base + b'"' + closing, base + b'":null' + closing), len(base))
    base = body.rstrip(_SPACE).rstrip(_LITERAL).rstrip(_SPACE)
    if base.endswith(b","):
        return Mended((base[:-1] + closing,), None)
    if base.endswith(b":"):
        return Mended((base + b"null" + closing,), None)
    return Mended((base + closing, base + b":null" + closing), None)


def _whole_characters(body: bytes) -> bytes:
    """Without the incomplete UTF-8 sequence, escape or surrogate pair that a cut inside a string may leave."""
    end = len(body)
    for back in range(1, min(4, end) + 1):
        byte = body[end - back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if back < needed:
                end -= back
            break
        if byte < 0x80:
            break
    at = max(end - _WINDOW, 0)
    while at > 0 and body[at - 1] == 0x5C:
        at -= 1
    while at < end:
        if body[at] != 0x5C:
            at += 1
            continue
        size = _escape_size(body[at:end])
        if at + size > end:
            return body[:at]
        at += size
    return body[:end]


def _escape_size(escape: bytes) -> int:
    if escape[1:2] != b"u":
        return 2
    high = escape[2:4].lower()
    return 12 if len(escape) < 6 or (high[:1] == b"d" and high[1:] in (b"8", b"9", b"a", b"b")) else 6
