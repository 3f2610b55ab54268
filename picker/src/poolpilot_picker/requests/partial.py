"""A JSON body cut anywhere → the same body closed at the cut, so that the ordinary decoders read what was seen.

Envoy's BUFFERED_PARTIAL hands over the beginning of a body above its buffer limit; `parse` must be able to use it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

_CLOSING: Final = bytes.maketrans(b"[{", b"]}")
_LITERAL: Final = b"+-.0123456789Eaeflnrstu"
"""Bytes of numbers, true, false and null."""
_SPACE: Final = b" \t\r\n"
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_MAX_PASSES: Final = 64
_MAX_DEPTH: Final = 200
_WINDOW: Final = 16
"""An escaped surrogate pair is twelve bytes long."""


class Mended(msgspec.Struct, frozen=True):
    """A cut body made decodable."""

    candidates: tuple[bytes, ...]
    """The first that is JSON is right: whether a string at the cut is a key or a value is not known without parsing."""
    cut_at: int | None
    """Position at which an open string of the outermost object was closed, if the cut was inside one."""


def mend(body: bytes) -> Mended:
    """Closes what is open at the end of `body`. No candidates when it cannot be the beginning of sensible JSON.

    Linear in the length of the body; an incomplete number, literal, escape or UTF-8 sequence at the cut is dropped.
    """
    brackets, in_string = _structure(body)
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
        return Mended((base + b'"' + closing, base + b'":null' + closing), len(base) if len(closing) == 1 else None)
    base = body.rstrip(_SPACE).rstrip(_LITERAL).rstrip(_SPACE)
    if base.endswith(b","):
        return Mended((base[:-1] + closing,), None)
    if base.endswith(b":"):
        return Mended((base + b"null" + closing,), None)
    return Mended((base + closing, base + b":null" + closing), None)


def _structure(body: bytes) -> tuple[bytes, bool]:
    """The brackets outside strings, and whether the body ends inside a string."""
    data = np.frombuffer(body, dtype=np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    before = data[quotes - 1] == _BACKSLASH
    if before.any() and (before & (data[quotes - 2] == _BACKSLASH)).any():
        # Of a run of backslashes before a quote only an odd last one escapes it.
        data = np.frombuffer(body.replace(b"\\\\", b"  "), dtype=np.uint8)
        before = data[quotes - 1] == _BACKSLASH
    quotes = quotes[~before]
    folded = data | 0x20  # [ and { fall together, ] and } too
    places = np.flatnonzero((folded == 0x7B) | (folded == 0x7D))
    outside = places[quotes.searchsorted(places) % 2 == 0]
    return data[outside].tobytes(), len(quotes) % 2 == 1


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
    while at > 0 and body[at - 1] == _BACKSLASH:
        at -= 1
    while at < end:
        if body[at] != _BACKSLASH:
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
