"""Telemetry, step 2 of 3, the short way: where the wanted lines of an endpoint's pages are, learned from the last page.

An engine writes the same lines in the same order for as long as it runs; only numbers change. So a page that comes
again is not searched: each wanted line is expected as far behind the one before as last time, its name and labels are
compared where they should be, and its number is read. What a page must fulfil for that, line by line:

* the line begins with the very bytes it had, with the family's header before it where it is the first of its family; a
  first one without its header right before it (the sum of a histogram) has the line before that it had, and is as many
  lines behind the header;
* lines of one family follow each other as before (at once, or with as many other lines between);
* behind a family's last line comes what came there before, or the page ends there as before: no series was added.

Anything else, and numbers that are none, leave the page to the full search of `exposition`, which teaches anew.

`compiled/_pages.pyx` does the same as `ReferenceLayout` in a tenth of the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

import msgspec

from poolpilot_picker import compiled
from poolpilot_picker.sources.series import Series

_WINDOW: Final = 1_024
"""How far a line may move against the one before, because numbers between them have become longer or shorter."""
_LONGEST_NUMBER: Final = 32
_MOST_LINES: Final = 96
"""With more wanted lines than these, the way is not short."""


class Place(msgspec.Struct, gc=False):
    """Where the full search read one series: offsets into the text. `at` is the line feed before the line."""

    name: str
    number: int
    """Of this series among those of its name."""
    block: bytes
    at: int
    value: int
    """Where its number begins."""
    stop: int
    """The line feed at its end."""


# One wanted line of the pages that come again:
#   whole    the line as it was last, with the begin of what came behind; empty where that is not enough to know it
#   length   of it, to the line feed behind the number
#   prefix   the bytes before its number
#   size     of the prefix
#   gap      from the end of the wanted line before (the begin of the page for the first) to the begin of the prefix
#   between  line feeds in that gap where it is not empty and this and the line before are of one family; negative: of
#            two; below −1: −1 less the lines since the header, for a line whose header is not right before it
#   follow   begin of what comes behind; a line feed alone where the page ends
#   raw      the number as it was written last
#   lead     begin of the line before, where that must be checked
#   series   its name, its number among those of its name, its labels
Line = tuple[bytes, int, bytes, int, int, int, bytes, "bytes | bytearray", bytes, tuple[str, int, bytes]]


class Layout(Protocol):
    """The places of all wanted lines of one page."""

    def read(
        self, text: bytes | bytearray, begin: int, end: int, found: dict[str, list[Series]]
    ) -> list[tuple[str, float]] | None:
        """Brings `found` up to date with the page at `text[begin:end]`, which ends with a line feed.

        Returns the names whose values changed, each with a new value; None: the page is another one.
        """
        ...


def layout_of(lines: list[Line]) -> Layout:
    """A layout of the kind in force."""
    core = compiled.in_force
    return ReferenceLayout(lines) if core is None else core.layout(lines, Series)


class ReferenceLayout:
    """A layout in Python."""

    __slots__ = ("_lines",)

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def read(
        self, text: bytes | bytearray, begin: int, end: int, found: dict[str, list[Series]]
    ) -> list[tuple[str, float]] | None:
        """As `Layout.read`."""
        # The innermost loop of all telemetry: a few dozen instructions for each wanted line.
        changed: list[tuple[int, Line, float]] = []
        startswith, find = text.startswith, text.find
        stop = begin
        lines = self._lines
        for index, (whole, length, prefix, size, gap, between, follow, known, lead, place) in enumerate(lines):
            at = stop + gap
            if whole and startswith(whole, at, end):
                stop = at + length
                continue
            if not startswith(prefix, at, end):
                if not between:
                    return None
                at = find(prefix, max(stop, at - _WINDOW), min(end, at + _WINDOW + size))
                if at < 0:
                    return None
                gap = at - stop
                lines[index] = (whole, length, prefix, size, gap, between, follow, known, lead, place)
            if between > 0 and text.count(b"\n", stop, at) != between:
                return None
            if lead and not startswith(lead, max(text.rfind(b"\n", stop, at), 0), at):
                return None
            if between < -1 and _lines_since_header(text, stop, at) != -1 - between:
                return None
            value = at + size
            stop = find(b"\n", value, end)
            if stop < 0 or not startswith(follow, stop, end):
                return None
            raw = text[value:stop]
            if raw != known:
                if b"_" in raw or len(raw) > _LONGEST_NUMBER:  # Python's float reads `1_0`
                    return None
                try:
                    number = float(raw)
                except ValueError:
                    return None
                whole = b"" if between > 0 or lead else prefix + raw + follow
                line = (whole, size + len(raw), prefix, size, gap, between, follow, raw, lead, place)
                changed.append((index, line, number))
        if lines and lines[-1][6] == b"\n" and stop + 1 != end:
            return None
        names = []
        for index, line, number in changed:
            lines[index] = line
            name, at, block = line[9]
            found[name][at] = Series(block, number)
            names.append((name, number))
        return names


def learn(text: bytes, places: list[Place]) -> Layout | None:
    """The layout of a page whose wanted lines were read without oddities; None where the short way cannot be taken."""
    if len(places) > _MOST_LINES:
        return None
    lines: list[Line] = []
    stop = 0
    family = ""
    for place in sorted(places, key=lambda one: one.at):
        gap_text = text[stop : place.at]
        before, family = family, place.name.removesuffix("_sum").removesuffix("_count")
        same_family = bool(lines) and (not gap_text or (family == before and b"\n#" not in gap_text))
        start = place.at if same_family else _with_header(text, place.at)
        if start < stop or place.stop - place.value >= _LONGEST_NUMBER:
            return None
        between = gap_text.count(b"\n") if same_family else -1
        lead = b""
        if not same_family and start == place.at:
            # A series that comes before the first of its family must be seen.
            if start > stop:
                lead = _shared(_begin(text, text.rfind(b"\n", stop, start)))
                between = -1 - _lines_since_header(text, stop, start)
            else:
                between = 0
        follow = _shared(_begin(text, place.stop))
        lines.append(
            (
                b"" if between > 0 or lead else text[start : place.stop] + follow,
                place.stop - start,
                _shared(text[start : place.value]),
                place.value - start,
                start - stop,
                between,
                follow,
                text[place.value : place.stop],
                lead,
                (place.name, place.number, place.block),
            )
        )
        stop = place.stop
    return layout_of(lines) if lines else None


def _lines_since_header(text: bytes | bytearray, start: int, end: int) -> int:
    """Line feeds within `text[start:end]`, from the last header in it on."""
    return text.count(b"\n", max(text.rfind(b"\n#", start, end), start), end)


@lru_cache(maxsize=4096)
def _shared(text: bytes) -> bytes:
    """The same bytes for all endpoints whose pages have them: what every page is compared with stays in the
    processor's cache."""
    return text


def _with_header(text: bytes, at: int) -> int:
    """The begin of the header line right before the line at `at`, or of that line itself."""
    before = max(text.rfind(b"\n", 0, at), 0)
    return before if before < at and text.startswith((b"\n#", b"#"), before) else at


def _begin(text: bytes, stop: int) -> bytes:
    """From the line feed at `stop` to the end of the next line's name."""
    end = stop + 1
    while end < len(text) and text[end] not in b"{ \n":
        end += 1
    return text[stop : end + 1]
