"""Telemetry, step 2 of 3, the short way: where the wanted lines of an endpoint's pages are, learned from the last page.

An engine writes the same lines in the same order for as long as it runs; only numbers change. So a page that comes
again is not searched: each wanted line is expected as far behind the one before as last time, its name and labels are
compared where they should be, and its number is read. What a page must fulfil for that, line by line:

* the line begins with the very bytes it had, with the family's header before it where it is the first of its family;
* lines of one family follow each other as before (at once, or with as many other lines between);
* behind a family's last line comes what came there before: no series was added.

Anything else, and numbers that are none, leave the page to the full search of `exposition`, which teaches anew.
"""

from __future__ import annotations

from typing import Final

import msgspec

from poolpilot_picker.sources.series import Series

_WINDOW: Final = 256
"""How far a line may move against the one before, because numbers between them have become longer or shorter."""
_LONGEST_NUMBER: Final = 32
_MOST_LINES: Final = 96
"""With more wanted lines than these, the way is not short."""


class Place(msgspec.Struct, gc=False):
    """Where the full search read one series: offsets into the text. `at` is the line feed before the line."""

    name: str
    number: int
    """Of this series among those of its name."""
    at: int
    value: int
    """Where its number begins."""
    stop: int
    """The line feed at its end."""


class _Line(msgspec.Struct, gc=False):
    """One wanted line of the pages that come again."""

    place: Place
    prefix: bytes
    gap: int
    """From the end of the wanted line before (the begin of the page for the first) to the begin of the prefix."""
    between: int
    """Line feeds in that gap, where this and the line before are of one family; −1: of two."""
    follow: bytes
    """Begin of what comes behind."""
    raw: bytes
    """The number as it was written last."""


class Layout:
    """The places of all wanted lines of one page."""

    __slots__ = ("_lines",)

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines

    def read(self, text: bytes, found: dict[str, list[Series]]) -> set[str] | None:
        """Brings `found` up to date and returns the names whose values changed; None: the page is another one."""
        changed: list[tuple[_Line, bytes, float]] = []
        stop = 0
        for line in self._lines:
            at = stop + line.gap
            prefix = line.prefix
            if not text.startswith(prefix, at):
                if line.between == 0:
                    return None
                at = text.find(prefix, max(stop, at - _WINDOW), at + _WINDOW + len(prefix))
                if at < 0:
                    return None
                line.gap = at - stop
            if line.between > 0 and text.count(b"\n", stop, at) != line.between:
                return None
            value = at + len(prefix)
            stop = text.find(b"\n", value, value + _LONGEST_NUMBER)
            if stop < 0 or not text.startswith(line.follow, stop):
                return None
            raw = text[value:stop]
            if raw != line.raw:
                try:
                    changed.append((line, raw, float(raw)))
                except ValueError:
                    return None
                if b"_" in raw:  # Python's float reads `1_0`
                    return None
        for line, raw, number in changed:
            line.raw = raw
            series = found[line.place.name]
            series[line.place.number] = Series(series[line.place.number].block, number)
        return {line.place.name for line, _, _ in changed}


def learn(text: bytes, places: list[Place]) -> Layout | None:
    """The layout of a page whose wanted lines were read without oddities; None where the short way cannot be taken."""
    if len(places) > _MOST_LINES:
        return None
    lines: list[_Line] = []
    stop = 0
    for place in sorted(places, key=lambda one: one.at):
        gap_text = text[stop : place.at]
        same_family = bool(lines) and b"\n#" not in gap_text and text[place.at : place.at + 2] != b"\n#"
        start = place.at if same_family else _with_header(text, place.at)
        if start < stop or place.stop - place.value >= _LONGEST_NUMBER:
            return None
        lines.append(
            _Line(
                place=place,
                prefix=text[start : place.value],
                gap=start - stop,
                between=gap_text.count(b"\n") if same_family else -1,
                follow=_begin(text, place.stop),
                raw=text[place.value : place.stop],
            )
        )
        stop = place.stop
    return Layout(lines) if lines else None


def _with_header(text: bytes, at: int) -> int:
    """The begin of the header line right before the line at `at`, or of that line itself."""
    before = text.rfind(b"\n", 0, at)
    return before if before >= 0 and text[before + 1] == 0x23 else at


def _begin(text: bytes, stop: int) -> bytes:
    """From the line feed at `stop` to the end of the next line's name."""
    end = stop + 1
    while end < len(text) and text[end] not in b"{ \n":
        end += 1
    return text[stop : end + 1]
