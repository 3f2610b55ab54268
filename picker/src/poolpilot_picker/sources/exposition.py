"""Telemetry, step 2 of 3 (fetch → find lines → sample): the wanted series of a Prometheus text page, as bytes.

A page of an engine holds hundreds of lines of which a few dozen matter, several times a second per endpoint. So the
page is not parsed: each wanted name is looked for (`bytes.find`), in the order in which the page had them, and only
its lines are read. Formats: Prometheus text 0.0.4 and OpenMetrics 1.0 (prometheus.io, "Exposition formats").

What counts as a series: a line that *begins* with the exact name (never `NAME_bucket` or `NAME_created` for NAME) and
ends with a line feed. A last line without line feed may be cut anywhere (`12` of `123`), so it is not read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

Labels = Mapping[str, str]

NO_LABELS: Final[Labels] = MappingProxyType({})

_LABEL: Final = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*')
# Labels whose values hold no quote, escape, brace or `#`, a number, perhaps a time stamp; all else is read with care.
_SIMPLE_LINE: Final = re.compile(
    rb'(?:\{([^}#\\\n]*)\})?[ \t]+([^ \t\r\n#{}"_]+)(?:[ \t]+([^ \t\r\n#{}"_]+))?[ \t\r]*\n'
)
_ESCAPE: Final = re.compile(r'\\([\\"n])')
_UNESCAPED: Final = {"\\": "\\", '"': '"', "n": "\n"}


class Series(msgspec.Struct, frozen=True, gc=False):
    """One line: raw text between the braces, value, and time stamp in ms where the line has one."""

    block: bytes
    value: float
    timestamp_ms: float | None = None

    @property
    def labels(self) -> Labels:
        """Parsed labels; the same block is parsed once."""
        return parse_labels(self.block) if self.block else NO_LABELS


class Page(NamedTuple):
    """What was found: series by wanted name (a name without series is missing), and lines that could not be read."""

    series: dict[str, list[Series]]
    malformed: int
    truncated: bool
    """The page does not end with a line feed: its last line was not read."""


@lru_cache(maxsize=4096)
def parse_labels(block: bytes) -> Labels:
    """Labels between braces: `a="x",b="y"` → {"a": "x", "b": "y"}. Escapes are \\\\, \\" and \\n.

    Raises ValueError where the block is not a list of labels. The result is shared: read-only.
    """
    labels: dict[str, str] = {}
    at, end = 0, len(block)
    if not block.strip():
        return NO_LABELS
    while True:
        match = _LABEL.match(block, at)
        if match is None:
            raise ValueError(f"label expected at byte {at} of {block[:200]!r}")
        name, value = match[1].decode(), match[2].decode("utf-8", "replace")
        labels[_unescape(name[1:-1]) if name.startswith('"') else name] = _unescape(value)
        at = match.end()
        if at == end:
            return MappingProxyType(labels)
        if block[at] != 0x2C:
            raise ValueError(f"comma expected at byte {at} of {block[:200]!r}")
        at += 1
        if not block[at:].strip():
            return MappingProxyType(labels)  # a trailing comma is allowed


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED[match[1]], text) if "\\" in text else text


class Wanted:
    """The names one reader wants of pages that come again, with what the last page taught about their places.

    Names are looked for in the order in which the last page had them, so that all of them together cost one pass. A
    name that a large page did not have costs a pass of its own: it is looked for again on every sixteenth page only.
    """

    __slots__ = ("_absent", "_count", "_needles")

    _RECHECK: Final = 16
    _LARGE: Final = 8192

    def __init__(self, names: Iterable[str]) -> None:
        self._needles: list[tuple[str, bytes]] = [(name, b"\n" + name.encode()) for name in dict.fromkeys(names)]
        self._absent: set[str] = set()
        self._count = 0

    def find(self, page: bytes) -> Page:
        """Every series of the wanted names. O(page) in all when names come in page order, O(page) more for each that
        is absent or elsewhere."""
        # A line feed in front lets the first line be found like any other.
        text = b"\n" + page
        end = text.rfind(b"\n") + 1
        large = len(page) >= self._LARGE
        if not large or self._count % self._RECHECK == 0:
            self._absent.clear()
        self._count += 1
        found: dict[str, list[Series]] = {}
        places: list[tuple[int, tuple[str, bytes]]] = []
        malformed = 0
        cursor = 0
        for entry in self._needles:
            name, needle = entry
            if name in self._absent:
                continue
            start = _find_name(text, needle, cursor, end)
            if start < 0 and cursor:
                start = _find_name(text, needle, 0, min(cursor + len(needle) + 1, end))
            if start < 0:
                if large:
                    self._absent.add(name)
                continue
            start = _first_of_family(text, needle, start, end)
            places.append((start, entry))
            series: list[Series] = []
            malformed += _read_family(text, needle, start, end, series)
            cursor = start + 1
            if series:
                found[name] = series
        if not found:
            self._absent.clear()  # a page of something else says nothing about the next
        if any(left[0] > right[0] for left, right in itertools.pairwise(places)):
            placed = {name for _, (name, _) in places}
            missing = [entry for entry in self._needles if entry[0] not in placed]
            self._needles = [entry for _, entry in sorted(places)] + missing
        return Page(found, malformed, bool(page) and not page.endswith(b"\n"))


def find(page: bytes, names: Iterable[str]) -> Page:
    """Every series of `names` on one page; `Wanted` is for pages that come again."""
    return Wanted(names).find(page)


def _find_name(text: bytes, needle: bytes, start: int, end: int) -> int:
    """Where a line begins with exactly this name: the offset of the line feed before it, or −1."""
    size = len(needle)
    at = text.find(needle, start, end)
    while at >= 0:
        if text[at + size] in b"{ \t":
            return at
        at = text.find(needle, at + size, end)
    return -1


def _first_of_family(text: bytes, needle: bytes, start: int, end: int) -> int:
    """The first line of this name in the family of the line at `start`: the search may have begun within it."""
    if text[text.rfind(b"\n", 0, start) + 1] == 0x23:
        return start  # a header is right before it
    return _find_name(text, needle, max(0, text.rfind(b"\n# TYPE ", 0, start)), end)


def _read_family(text: bytes, needle: bytes, at: int, end: int, series: list[Series]) -> int:
    """Appends the series from the line at `at` on, to the next family's `# TYPE`; returns how many are malformed."""
    size = len(needle)
    simple_line = _SIMPLE_LINE.match
    malformed = 0
    limit = -1
    while True:
        match = simple_line(text, at + size, end)
        if match is not None:
            block, number, timestamp = match.groups()
            stop = match.end() - 1
        else:
            stop = text.index(b"\n", at + size)
            block, number, timestamp = _split_line(text[at + size : stop])
        try:
            series.append(Series(block or b"", float(number), float(timestamp) if timestamp else None))
        except ValueError:
            malformed += 1
        if text.startswith((b"\n# TYPE ", b"\n# HELP "), stop):
            return malformed
        if text.startswith(needle, stop, end) and text[stop + size] in b"{ \t":
            at = stop
            continue
        # Sums and counts of a histogram alternate with its buckets: the family goes on to the next header.
        if limit < 0:
            limit = text.find(b"\n# TYPE ", stop, end)
            if limit < 0:
                limit = end
        at = _find_name(text, needle, stop, limit)
        if at < 0:
            return malformed


def _split_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    """The careful way, for escapes, braces in quotes and exemplars: (block, number, time stamp); the number is empty
    where the line is malformed."""
    block = b""
    rest = line.strip()
    if rest.startswith(b"{"):
        close = _closing_brace(rest)
        if close < 0:
            return b"", b"", b""
        block, rest = rest[1:close], rest[close + 1 :]
    fields = rest.split(b"#", 1)[0].split()
    # Python's float would also read `1_0`.
    if not 1 <= len(fields) <= 2 or b"_" in b"".join(fields):
        return block, b"", b""
    return block, fields[0], fields[1] if len(fields) > 1 else b""


def _closing_brace(line: bytes) -> int:
    """The brace that closes the one at the start, outside quotes; −1 if none."""
    quoted = False
    at = 1
    while at < len(line):
        byte = line[at]
        if byte == 0x5C and quoted:
            at += 1
        elif byte == 0x22:
            quoted = not quoted
        elif byte == 0x7D and not quoted:
            return at
        at += 1
    return -1
