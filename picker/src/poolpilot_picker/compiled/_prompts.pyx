# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""What a prompt's bytes say of it: how many tokens they are likely to be, and which beginnings it shares with others.

Does what the references in `requests/tokens.py` and `requests/chain.py` do; there are the reasons. Hashes are XXH64
(specification: xxHash, doc/xxhash_spec.md), as the package `xxhash` has them. Pointers go only into bytes objects that
the caller holds, and every read is within their size.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    MOST_STRETCHES = 8

cdef uint64_t P1 = 0x9E3779B185EBCA87
cdef uint64_t P2 = 0xC2B2AE3D27D4EB4F
cdef uint64_t P3 = 0x165667B19E3779F9
cdef uint64_t P4 = 0x85EBCA77C2B2AE63
cdef uint64_t P5 = 0x27D4EB2F165667C5


cdef inline uint64_t turned(uint64_t value, int bits) noexcept:
    return (value << bits) | (value >> (64 - bits))


cdef inline uint64_t four(const uint8_t* at) noexcept:
    return <uint64_t> at[0] | <uint64_t> at[1] << 8 | <uint64_t> at[2] << 16 | <uint64_t> at[3] << 24


cdef inline uint64_t eight(const uint8_t* at) noexcept:
    return (
        <uint64_t> at[0] | <uint64_t> at[1] << 8 | <uint64_t> at[2] << 16 | <uint64_t> at[3] << 24
        | <uint64_t> at[4] << 32 | <uint64_t> at[5] << 40 | <uint64_t> at[6] << 48 | <uint64_t> at[7] << 56
    )


cdef inline uint64_t stirred(uint64_t lane, uint64_t word) noexcept:
    return turned(lane + word * P2, 31) * P1


cdef inline uint64_t merged(uint64_t whole, uint64_t lane) noexcept:
    return (whole ^ stirred(0, lane)) * P1 + P4


cdef uint64_t xxh64(const uint8_t* at, Py_ssize_t size, uint64_t seed) noexcept:
    cdef uint64_t a, b, c, d, whole
    cdef Py_ssize_t left = size
    if left >= 32:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while left >= 32:
            a = stirred(a, eight(at))
            b = stirred(b, eight(at + 8))
            c = stirred(c, eight(at + 16))
            d = stirred(d, eight(at + 24))
            at += 32
            left -= 32
        whole = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18)
        whole = merged(merged(merged(merged(whole, a), b), c), d)
    else:
        whole = seed + P5
    whole += <uint64_t> size
    while left >= 8:
        whole = turned(whole ^ stirred(0, eight(at)), 27) * P1 + P4
        at += 8
        left -= 8
    if left >= 4:
        whole = turned(whole ^ (four(at) * P1), 23) * P2 + P3
        at += 4
        left -= 4
    while left:
        whole = turned(whole ^ (at[0] * P5), 11) * P1
        at += 1
        left -= 1
    whole = (whole ^ (whole >> 33)) * P2
    whole = (whole ^ (whole >> 29)) * P3
    return whole ^ (whole >> 32)


cdef uint64_t weight(const uint8_t* at, Py_ssize_t size, const uint8_t* table) noexcept:
    # Four sums, so that one addition need not wait for the one before.
    cdef uint32_t a = 0, b = 0, c = 0, d = 0
    cdef Py_ssize_t left = size
    while left >= 4:
        a += table[at[0]]
        b += table[at[1]]
        c += table[at[2]]
        d += table[at[3]]
        at += 4
        left -= 4
    while left:
        a += table[at[0]]
        at += 1
        left -= 1
    return <uint64_t> a + b + c + d


cdef class Weigher:
    """Estimates tokens. `table`: what each byte weighs, in units of 1 / `unit` token; texts longer than `sample` bytes
    are judged by `windows` windows of that total length."""

    cdef bytes _table
    cdef Py_ssize_t _sample, _windows
    cdef double _unit

    def __init__(self, bytes table not None, double unit, Py_ssize_t sample, Py_ssize_t windows):
        if PyBytes_GET_SIZE(table) != 256 or not unit > 0.0 or not 0 < windows <= sample < 1 << 22:
            raise ValueError("a table has 256 weights, a unit and a sample are positive, the sample below 4 MiB")
        self._table, self._unit, self._sample, self._windows = table, unit, sample, windows

    def units(self, bytes text not None):
        """Estimated tokens of UTF-8 text, as `reference_text_units` has them."""
        cdef const uint8_t* table = <const uint8_t*> PyBytes_AS_STRING(self._table)
        cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(text)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(text), seen = length, step, width, window
        cdef uint64_t total = 0
        if length == 0:
            return 0.0
        if length > self._sample:
            width, step = self._sample // self._windows, length // self._windows
            seen = width * self._windows
            for window in range(self._windows):
                total += weight(at + window * step, width, table)
        else:
            total = weight(at, length, table)
        return <double> (total * <uint64_t> length) / (seen * self._unit)


cdef class Blocks:
    """How a prompt is cut. `stretches`: (first byte, byte after the last, block size) of each stretch of equal blocks,
    one behind the other from 0."""

    cdef Py_ssize_t _count
    cdef Py_ssize_t[MOST_STRETCHES] _stop, _size

    def __init__(self, stretches):
        cdef Py_ssize_t start, stop, size, at = 0
        self._count = 0
        for start, stop, size in stretches:
            if self._count == MOST_STRETCHES or start != at or size <= 0 or stop <= start or (stop - start) % size:
                raise ValueError(f"at most {int(MOST_STRETCHES)} stretches of whole blocks, each behind the last")
            self._stop[self._count], self._size[self._count] = stop, size
            self._count += 1
            at = stop

    def chain(self, bytes prompt not None, seed, double most):
        """(hashes, ends) of the full blocks of a prompt whose blocks have `most` tokens to share."""
        cdef const uint8_t* text = <const uint8_t*> PyBytes_AS_STRING(prompt)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(prompt), at = 0, stretch, size, stop
        cdef uint64_t last = seed
        cdef double rate = most / length if length else 0.0, end
        cdef list hashes = [], ends = []
        for stretch in range(self._count):
            size = self._size[stretch]
            stop = min(self._stop[stretch], length)
            while at + size <= stop:
                last = xxh64(text + at, size, last)
                at += size
                hashes.append(last)
                end = at * rate
                ends.append(end if end < most else most)
            if length < self._stop[stretch]:
                break
        return hashes, ends

    def hashes(self, bytes prompt not None, seed):
        """Of the full blocks."""
        return self.chain(prompt, seed, 0.0)[0]
