# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The innermost loops of telemetry: the wanted lines of a page that comes again, and the head of the answer it is in.

Does what `ReferenceLayout` in `sources/page_layout.py` and `reference_same_head` in `sources/http_connection.py` do;
there are the reasons. Each look at the page is checked against its end before it is made; what it is compared with is
bytes that the layout keeps.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** stop, void* overflow) except? -1.0

cdef enum:
    WINDOW = 1024
    LONGEST_NUMBER = 32
    LONGEST_LENGTH = 20

cdef struct Line:
    # The bytes are those of objects that the layout keeps.
    const char* prefix
    Py_ssize_t prefix_size
    const char* follow
    Py_ssize_t follow_size
    const char* lead
    Py_ssize_t lead_size
    Py_ssize_t gap
    Py_ssize_t between
    Py_ssize_t known_size
    char known[LONGEST_NUMBER]


cdef inline bint begins(
    const char* text, Py_ssize_t at, Py_ssize_t end, const char* what, Py_ssize_t size
) noexcept:
    """`text[at:end]` begins with it."""
    return 0 <= at <= end and size <= end - at and memcmp(text + at, what, size) == 0


cdef Py_ssize_t found_at(
    const char* text, Py_ssize_t start, Py_ssize_t end, const char* what, Py_ssize_t size
) noexcept:
    """Where it is within `text[start:end]`, −1: nowhere. It is not empty."""
    cdef const char* at
    while start + size <= end:
        at = <const char*> memchr(text + start, what[0], end - size + 1 - start)
        if at == NULL:
            return -1
        if memcmp(at, what, size) == 0:
            return at - text
        start = at - text + 1
    return -1


cdef Py_ssize_t line_feeds(const char* text, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef Py_ssize_t count = 0
    cdef const char* at
    while start < end:
        at = <const char*> memchr(text + start, c"\n", end - start)
        if at == NULL:
            break
        count += 1
        start = at - text + 1
    return count


cdef Py_ssize_t last_feed(const char* text, Py_ssize_t start, Py_ssize_t end) noexcept:
    """Where the last line feed within `text[start:end]` is; 0: nowhere."""
    while end > start:
        end -= 1
        if text[end] == c"\n":
            return end
    return 0


cdef Py_ssize_t lines_since_header(const char* text, Py_ssize_t start, Py_ssize_t end) noexcept:
    """Line feeds within `text[start:end]`, from the last header in it on."""
    cdef Py_ssize_t count = 0, at = end
    while at > start:
        at -= 1
        if text[at] == c"\n":
            count += 1
            if at + 1 < end and text[at + 1] == c"#":
                break
    return count


cdef inline bint is_space(char byte) noexcept:
    return byte == c" " or 9 <= byte <= 13


cdef object number_of(const char* raw, Py_ssize_t size):
    """What Python's `float` makes of these bytes, without underscores; None where they are no number."""
    cdef char text[LONGEST_NUMBER + 1]
    while size and is_space(raw[size - 1]):
        size -= 1
    while size and is_space(raw[0]):
        raw += 1
        size -= 1
    if not 0 < size <= LONGEST_NUMBER or memchr(raw, 0, size) != NULL or memchr(raw, c"_", size) != NULL:
        return None
    memcpy(text, raw, size)
    text[size] = 0
    try:
        return PyOS_string_to_double(text, NULL, NULL)
    except ValueError:
        return None


cdef class Layout:
    """The places of all wanted lines of one page; `lines` as `page_layout` has them, `series(block, value)` makes one."""

    cdef Line* _lines
    cdef Py_ssize_t _count
    cdef list _kept
    cdef list _places
    cdef object _series

    def __cinit__(self, list lines not None, series):
        cdef Py_ssize_t index
        cdef Line* line
        cdef bytes prefix, follow, known, lead
        self._kept, self._places, self._series = [], [], series
        self._lines = <Line*> calloc(len(lines) + 1, sizeof(Line))
        if self._lines == NULL:
            raise MemoryError
        self._count = len(lines)
        for index in range(self._count):
            _, _, prefix, _, gap, between, follow, raw, lead, place = lines[index]
            known = bytes(raw)
            if not prefix or lead is None or not follow.startswith(b"\n") or gap < 0 or len(known) > LONGEST_NUMBER:
                raise ValueError(f"line {index}: a prefix, what follows, a gap and at most 32 bytes of number are needed")
            self._kept.append((prefix, follow, lead))
            name, at, block = place
            self._places.append((name, int(at), block))
            line = &self._lines[index]
            line.prefix, line.prefix_size = PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix)
            line.follow, line.follow_size = PyBytes_AS_STRING(follow), PyBytes_GET_SIZE(follow)
            line.lead, line.lead_size = PyBytes_AS_STRING(lead), PyBytes_GET_SIZE(lead)
            line.gap, line.between = gap, between
            line.known_size = PyBytes_GET_SIZE(known)
            memcpy(line.known, PyBytes_AS_STRING(known), line.known_size)

    def __dealloc__(self):
        free(self._lines)

    def read(self, text, Py_ssize_t begin, Py_ssize_t end, dict found not None):
        """Brings `found` up to date with the page at `text[begin:end]`, which ends with a line feed.

        Returns the names whose values changed, each with a new value; None: the page is another one.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= begin <= end <= view.len:
                raise IndexError(f"page at {begin} to {end} of {view.len} bytes")
            return self._read(<const char*> view.buf, begin, end, found)
        finally:
            PyBuffer_Release(&view)

    cdef list _read(self, const char* text, Py_ssize_t begin, Py_ssize_t end, dict found):
        cdef Py_ssize_t index, at, value, size, stop = begin
        cdef Line* line
        cdef const char* feed
        cdef list changed = [], names = []
        for index in range(self._count):
            line = &self._lines[index]
            at = stop + line.gap
            if not begins(text, at, end, line.prefix, line.prefix_size):
                if not line.between:
                    return None
                at = found_at(
                    text, max(stop, at - WINDOW), min(end, at + WINDOW + line.prefix_size), line.prefix, line.prefix_size
                )
                if at < 0:
                    return None
                line.gap = at - stop
            if line.between > 0 and line_feeds(text, stop, at) != line.between:
                return None
            if line.lead_size and not begins(text, last_feed(text, stop, at), at, line.lead, line.lead_size):
                return None
            if line.between < -1 and lines_since_header(text, stop, at) != -1 - line.between:
                return None
            value = at + line.prefix_size
            stop = value + line.known_size
            # What follows begins with a line feed, so the number ends where it is.
            if begins(text, value, end, line.known, line.known_size) and begins(
                text, stop, end, line.follow, line.follow_size
            ):
                continue
            feed = <const char*> memchr(text + value, c"\n", end - value)
            if feed == NULL:
                return None
            stop = feed - text
            size = stop - value
            if not begins(text, stop, end, line.follow, line.follow_size):
                return None
            if size == line.known_size and memcmp(text + value, line.known, size) == 0:
                continue
            if size > LONGEST_NUMBER:
                return None
            number = number_of(text + value, size)
            if number is None:
                return None
            changed.append((index, value, size, number))
        if self._count and self._lines[self._count - 1].follow_size == 1 and stop + 1 != end:
            return None
        for index, value, size, number in changed:
            line = &self._lines[index]
            line.known_size = size
            memcpy(line.known, text + value, size)
            name, at, block = <tuple> self._places[index]
            found[name][at] = self._series(block, number)
            names.append((name, number))
        return names


def usable(double value):
    """As `reference_usable` in `sources/engines/mapping.py`."""
    return value if 0.0 <= value < INFINITY else None


def usable_share(double value):
    """As `reference_usable_share` in `sources/engines/mapping.py`."""
    return smaller_share(value) if 0.0 <= value < INFINITY else None


cdef inline double smaller_share(double value) noexcept:
    return value if value < 1.0 else 1.0


def update(sample, list changed not None, dict found not None, dict by_family not None):
    """As `reference_update` in `sources/page_reader.py`."""
    cdef list others = []
    for family, value in changed:
        one = len(<list?> found[family]) == 1
        for field, alone in <list?> by_family[family]:
            told = alone(value) if one and alone is not None else None
            if told is None:
                others.append(field)
            else:
                setattr(sample, field, told)
    return others


def any_named(buffer, Py_ssize_t start, Py_ssize_t end, list needles not None):
    """Some line of `buffer[start:end]` begins with one of these names. Each needle is a line feed and a name."""
    cdef Py_buffer view
    cdef const char* text
    cdef const char* at
    cdef Py_ssize_t size
    cdef char behind
    cdef bytes needle
    if not needles:
        return False
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        text = <const char*> view.buf
        if not 0 <= start <= end <= view.len:
            raise IndexError(f"page at {start} to {end} of {view.len} bytes")
        while start < end:
            at = <const char*> memchr(text + start, c"\n", end - start)
            if at == NULL:
                break
            start = at - text
            for needle in needles:
                size = PyBytes_GET_SIZE(needle)
                if begins(text, start, end, PyBytes_AS_STRING(needle), size) and start + size < view.len:
                    behind = text[start + size]
                    if behind == c"{" or behind == c" " or behind == c"\t":
                        return True
            start += 1
        return False
    finally:
        PyBuffer_Release(&view)


def same_head(buffer, Py_ssize_t filled, bytes before not None, bytes behind not None):
    """(where the body begins, where it ends) in `buffer[:filled]`, whose head is `before`, a content-length, `behind`;
    None where it is another one, or not whole."""
    cdef Py_buffer view
    cdef const char* text
    cdef Py_ssize_t at = PyBytes_GET_SIZE(before), start = at, most, length = 0
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        text = <const char*> view.buf
        if not 0 <= filled <= view.len:
            raise IndexError(f"{filled} of {view.len} bytes")
        if not begins(text, 0, filled, PyBytes_AS_STRING(before), at):
            return None
        most = min(filled, start + LONGEST_LENGTH)
        while at < most and c"0" <= text[at] <= c"9":
            if at - start >= 18:
                return None
            length = 10 * length + (text[at] - c"0")
            at += 1
        if at == start or not begins(text, at, filled, PyBytes_AS_STRING(behind), PyBytes_GET_SIZE(behind)):
            return None
        at += PyBytes_GET_SIZE(behind)
        return at, at + length
    finally:
        PyBuffer_Release(&view)
