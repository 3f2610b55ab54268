"""Telemetry, step 2 of 3 (fetch → find lines → sample): the wanted series of a Prometheus text page, as bytes.

A page of an engine holds hundreds of lines of which a few dozen matter, several times a second per endpoint. So the
page is not parsed: each wanted name is looked for (`bytes.find`), in the order in which the page had them, and only
its lines are read. Formats: Prometheus text 0.0.4 and OpenMetrics 1.0 (prometheus.io, "Exposition formats").

What counts as a series: a line that *begins* with the exact name (never `NAME_bucket` or `NAME_created` for NAME) and
ends with a line feed. A last line without line feed may be cut anywhere (`12` of `123`), so it is not read.

The lines of a family follow each other, as both formats demand. Where a header comes twice they do not (pages of
several processes, put together by something in front of them): then all of the page is read for every name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from poolpilot_picker import compiled
from poolpilot_picker.sources.page_layout import Layout, Place, learn
from poolpilot_picker.sources.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Labels whose values hold no quote, escape, brace or `#`, a number, perhaps a time stamp; all else is read with care.
_SIMPLE_LINE: Final = re.compile(
    rb'(?:\{([^}#\\\n]*)\})?[ \t]+([^ \t\r\n#{}"_]+)(?:[ \t]+([^ \t\r\n#{}"_]+))?[ \t\r]*\n'
)
_HEADERS: Final = (b"# TYPE ", b"# HELP ")
_TURN: Final = 512
"""Series that are read in one turn: half a millisecond."""
_MOST_SERIES: Final = 20_000
"""Of one page. What has more is no engine's page: the names that come later are not read."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """What was found: series by wanted name (a name without series is missing), and lines that could not be read.

    The next search of the same `Wanted` may change the lists.
    """

    series: dict[str, list[Series]]
    malformed: int
    truncated: bool
    """The page does not end with a line feed: its last line was not read."""
    changed: list[tuple[str, float]] | None = None
    """The names whose values differ from those of the page before, each with a new value, where all else is the same;
    None: unknown."""


_Result = TypeVar("_Result")

Turns = Generator[None, None, _Result]
"""Work that yields after each half a millisecond, so that whoever drives it can let others go first."""


def in_one_turn(turns: Turns[_Result]) -> _Result:
    """The result, at once."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            result: _Result = end.value
            return result


Needle = tuple[str, bytes]
"""A wanted name, and how a line with it begins."""


def needles(names: Iterable[str]) -> list[Needle]:
    """The names, each once."""
    return [(name, b"\n" + name.encode()) for name in dict.fromkeys(names)]


class Wanted:
    """The names one reader wants of pages that come again, with what the last pages taught about their places.

    Where a page looks like the one before, its lines are where they were (`page_layout`). One that looks different is
    searched: names in the order in which the last page had them, so that all of them together cost one pass. Names that
    a large page did not have are looked for in every sixteenth page only.
    """

    __slots__ = ("_absent", "_count", "_found", "_layout", "_lines", "_missing", "_needles")

    _RECHECK: Final = 16
    _LARGE: Final = 8192
    _HUGE: Final = 131_072

    def __init__(self, wanted: list[Needle]) -> None:
        """`wanted`: by `needles`; may be shared."""
        self._needles = wanted
        self._absent: set[str] = set()
        self._count = 0
        self._found: dict[str, list[Series]] = {}
        self._layout: Layout | None = None
        self._lines = 0
        """Of the page before; 0: not counted, for it is large."""
        self._missing: list[bytes] = []
        """Where all wanted lines are where they were, and there is none of these, it is the same page; of a small page,
        where there are also as many lines."""

    def find(self, page: bytes) -> Page:
        """Every series of the wanted names. O(page) in all when names come in page order, O(page) more for each that
        is absent or elsewhere."""
        again = self.again(page, 0, len(page))
        return again if again is not None else in_one_turn(self.search(page))

    def again(self, buffer: bytes | bytearray, start: int, end: int) -> Page | None:
        """As `find`, for a page at `buffer[start:end]` that looks like the one before; None if it must be searched."""
        self._count += 1
        layout = self._layout
        if layout is None or end <= start or buffer[end - 1] != 0x0A:
            return None
        large = end - start >= self._LARGE
        first = buffer[start]
        if first != 0x23 and first != 0x0A:  # as `_text`
            if start > 0 and buffer[start - 1] == 0x0A:
                start -= 1
            else:
                buffer, start, end = b"\n" + buffer[start:end], 0, end - start + 1
        if (not large or self._lines) and buffer.count(b"\n", start, end) != self._lines:
            return None
        if (not large or self._count % self._RECHECK == 0) and any_named(buffer, start, end, self._missing):
            return None
        changed = layout.read(buffer, start, end, self._found)
        if changed is not None:
            return Page(self._found, 0, False, changed)
        self._absent.clear()
        return None

    def forget(self) -> None:
        """The next page is searched."""
        self._layout = None

    def search(self, page: bytes) -> Turns[Page]:
        """As `find`, in turns: yields after each half a millisecond of work, returns the result."""
        text = _text(page)
        large = len(page) >= self._LARGE
        if not large or self._count % self._RECHECK == 0:
            self._absent.clear()
        end = text.rfind(b"\n") + 1
        scattered = _scattered(text)
        found: dict[str, list[Series]] = {}
        begins: list[tuple[int, tuple[str, bytes]]] = []
        places: list[Place] = []
        malformed = turn = 0
        cursor = 0
        self._layout = None
        for entry in self._needles:
            name, needle = entry
            if name in self._absent:
                continue
            if len(page) >= self._HUGE:
                yield
            start = _find_name(text, needle, 0 if scattered else cursor, end)
            if start < 0 and cursor and not scattered:
                start = _find_name(text, needle, 0, min(cursor + len(needle) + 1, end))
            if start < 0:
                if large:
                    self._absent.add(name)
                continue
            if not scattered:
                start = _first_of_family(text, needle, start, end)
            begins.append((start, entry))
            series: list[Series] = []
            for bad in _read_family(text, name, needle, start, end, scattered, series, places):
                malformed += bad
                turn += 1
                if turn % _TURN == 0:
                    if turn >= _MOST_SERIES:
                        break
                    yield
            cursor = start + 1
            if series:
                found[name] = series
            if turn >= _MOST_SERIES:
                break
        truncated = bool(page) and not page.endswith(b"\n")
        if truncated or not found:
            self._absent.clear()  # half a page, or one of something else, says nothing about the next
        if any(left[0] > right[0] for left, right in itertools.pairwise(begins)):
            placed = {name for _, (name, _) in begins}
            missing = [entry for entry in self._needles if entry[0] not in placed]
            self._needles = [entry for _, entry in sorted(begins)] + missing
        if not malformed and not truncated and len(places) == turn:
            self._layout, self._found = learn(text, places), found
            self._lines = 0 if large and not scattered else text.count(b"\n")
            self._missing = [needle for name, needle in self._needles if name not in found]
        return Page(found, malformed, truncated)


def find(page: bytes, names: Iterable[str]) -> Page:
    """Every series of `names` on one page; `Wanted` is for pages that come again."""
    return Wanted(needles(names)).find(page)


def _text(page: bytes) -> bytes:
    # A line feed in front lets the first line be found like any other; a header need not be found.
    return page if page.startswith((b"#", b"\n")) else b"\n" + page


def reference_any_named(text: bytes | bytearray, start: int, end: int, needles: list[bytes]) -> bool:
    """Some line of `text[start:end]` begins with one of these names; see `Needle`."""
    return any(_find_name(text, needle, start, end) >= 0 for needle in needles)


any_named: Final = reference_any_named if compiled.in_force is None else compiled.in_force.any_named


def _find_name(text: bytes | bytearray, needle: bytes, start: int, end: int) -> int:
    """Where a line begins with exactly this name: the offset of the line feed before it, or −1."""
    size = len(needle)
    at = text.find(needle, start, end)
    while at >= 0:
        if text[at + size] in b"{ \t":
            return at
        at = text.find(needle, at + size, end)
    return -1


def _scattered(text: bytes) -> bool:
    """Some family's lines may be in several places: its header comes again."""
    behind = text.split(b"\n# TYPE ") if not text.startswith(b"#") else (b"\n" + text).split(b"\n# TYPE ")
    names = [part[: part.find(b" ")] for part in behind[1:]]
    return len(set(names)) < len(names)


def _first_of_family(text: bytes, needle: bytes, start: int, end: int) -> int:
    """The first line of this name in the family of the line at `start`: the search may have begun within it."""
    if text.startswith(_HEADERS, text.rfind(b"\n", 0, start) + 1):
        return start  # its header is right before it
    return _find_name(text, needle, max(0, text.rfind(b"\n# TYPE ", 0, start)), end)


def _read_family(
    text: bytes,
    name: str,
    needle: bytes,
    at: int,
    end: int,
    scattered: bool,
    series: list[Series],
    places: list[Place],
) -> Iterator[bool]:
    """Appends the series from the line at `at` on, to the next family's `# TYPE` (`scattered`: to the end), and to
    `places` where they are if they are simple; tells of each whether it is malformed."""
    size = len(needle)
    simple_line = _SIMPLE_LINE.match
    limit = end if scattered else -1
    while True:
        match = simple_line(text, at + size, end)
        if match is not None:
            block, number, timestamp = match.groups()
            stop = match.end() - 1
            if timestamp is None:
                places.append(Place(name, len(series), block or b"", at, match.start(2), stop))
        else:
            stop = text.index(b"\n", at + size)
            block, number, timestamp = _split_line(text[at + size : stop])
        try:
            series.append(Series(block or b"", float(number), float(timestamp) if timestamp else None))
        except ValueError:
            yield True
        else:
            yield False
        if not scattered and text.startswith(_HEADERS, stop + 1):
            return
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
            return


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
