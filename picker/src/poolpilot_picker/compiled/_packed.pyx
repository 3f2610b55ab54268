# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""Placements as workers tell each other of them, packed and taken in: does what `flow/packed.py` does. On the way of
every request, and once for each of the others'.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.sequence cimport PySequence_Fast
from libc.math cimport INFINITY
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from poolpilot_picker.compiled._prefix cimport PrefixIndex

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef struct Told:
    uint64_t generation
    double work_ms
    double ttft_ms
    double cached
    double adapter_ms
    uint32_t slot
    uint32_t blocks     # hashes follow, then ends
    uint32_t adapter    # bytes, behind them
    uint32_t key        # bytes, behind those; then zeros up to a multiple of eight

cdef struct Sum:
    double work_ms
    double ttft_ms
    double cached
    long forecasts
    bint any


cdef class Packed:
    """Placements that are still to be told."""

    cdef char* _bytes
    cdef size_t _room, _used, _most
    cdef PrefixIndex _index
    cdef const uint64_t[::1] _generations
    cdef object _write, _fault
    cdef double _together_ms
    cdef readonly double told_ms
    cdef public bint wanted

    def __init__(
        self, const uint64_t[::1] generations not None, double together_ms, size_t most, write not None, fault not None
    ):
        self._generations, self._together_ms, self._most = generations, together_ms, most
        self._write, self._fault = write, fault
        self.told_ms = -INFINITY

    def read_with(self, PrefixIndex index not None):
        """`index` reads the chains."""
        self._index = index

    def __dealloc__(self):
        free(self._bytes)

    def __len__(self):
        """Bytes."""
        return self._used

    def placed(self, slot, chain, lesson, adapter, adapter_ms, routing_key, double now):
        """Adds one, and tells all that there are if that is due."""
        if not self.wanted:
            return
        try:
            self._add(slot, chain, lesson, adapter, adapter_ms, routing_key)
        except Exception:
            self._fault()
            return
        if now - self.told_ms >= self._together_ms or self._used >= self._most:
            self.tell(now)

    def tell(self, double now):
        """Tells all that there are."""
        if self._used:
            self.told_ms = now
            self._write(self.take())

    cdef int _add(self, uint32_t slot, chain, lesson, str adapter, double adapter_ms, str routing_key) except -1:
        cdef Py_ssize_t length = 0, adapter_size = 0, key_size = 0
        cdef const char* adapter_bytes = NULL
        cdef const char* key_bytes = NULL
        cdef Told told
        cdef size_t size, chain_size
        cdef char* to
        if self._index is None or adapter is None or routing_key is None:
            raise TypeError("no index, or None for a name")
        hashes = chain.hashes
        if hashes:
            ends = PySequence_Fast(chain.ends, "ends must be a sequence")
            # Mostly what the index read a moment ago.
            length = self._index._read(hashes, ends)
            self._index._read_ends(ends, length)
        if adapter:
            adapter_bytes = PyUnicode_AsUTF8AndSize(adapter, &adapter_size)
        if routing_key:
            key_bytes = PyUnicode_AsUTF8AndSize(routing_key, &key_size)
        told.generation, told.slot, told.adapter_ms = self._generations[slot], slot, adapter_ms
        if lesson is None:
            told.work_ms = told.ttft_ms = told.cached = 0.0
        else:
            told.work_ms, told.ttft_ms, told.cached = lesson.work_ms, lesson.ttft_ms, lesson.cached
        told.blocks, told.adapter, told.key = <uint32_t> length, <uint32_t> adapter_size, <uint32_t> key_size
        chain_size = length * sizeof(uint64_t)
        size = sizeof(Told) + 2 * chain_size + ((adapter_size + key_size + 7) & ~(<size_t> 7))
        if self._used + size > self._room:
            self._grow(self._used + size)
        to = self._bytes + self._used
        memcpy(to, &told, sizeof(Told))
        to += sizeof(Told)
        memcpy(to, self._index._hashes, chain_size)
        to += chain_size
        memcpy(to, self._index._ends, chain_size)
        to += chain_size
        if adapter_size or key_size:
            memset(to + ((adapter_size + key_size) & ~(<size_t> 7)), 0, 8)
            memcpy(to, adapter_bytes, adapter_size)
            memcpy(to + adapter_size, key_bytes, key_size)
        self._used += size
        return 0

    def take(self):
        """All of them, oldest first; none are left."""
        cdef Py_ssize_t used = self._used
        self._used = 0
        return PyBytes_FromStringAndSize(self._bytes, used)

    cdef int _grow(self, size_t needed) except -1:
        cdef size_t room = 4096
        while room < needed + 8:
            room *= 2
        cdef void* larger = realloc(self._bytes, room)
        if larger == NULL:
            raise MemoryError
        self._bytes, self._room = <char*> larger, room - 8
        return 0


def take_in(bytes told not None, PrefixIndex index not None, list slots not None, const uint64_t[::1] generations):
    """Adds to the index what was placed elsewhere, for slots that have the same endpoint here.

    Returns what the learners are to be told, (slot, work ms, sum of predicted TTFTs, their number, cached tokens) for
    each slot, and (slot, adapter, its load in ms, routing key) of placements with a name.
    """
    cdef const char* text
    cdef const char* at = PyBytes_AS_STRING(told)
    cdef const char* end = at + PyBytes_GET_SIZE(told)
    cdef Py_ssize_t count = len(slots)
    cdef size_t chain_size, names
    cdef Told one
    cdef Py_ssize_t slot
    if count > generations.shape[0]:
        count = generations.shape[0]
    cdef Sum* sums = <Sum*> PyMem_Calloc(count + 1, sizeof(Sum))
    if sums == NULL:
        raise MemoryError
    taught, named = [], []
    try:
        while at < end:
            if <size_t> (end - at) < sizeof(Told):
                raise ValueError(f"{end - at} bytes are no placement")
            memcpy(&one, at, sizeof(Told))
            at += sizeof(Told)
            chain_size = one.blocks * sizeof(uint64_t)
            names = (<size_t> one.adapter + one.key + 7) & ~(<size_t> 7)
            if <size_t> (end - at) < 2 * chain_size + names:
                raise ValueError(f"a placement of {one.blocks} blocks ends after {end - at} bytes")
            slot = one.slot
            if slot < count and slots[slot] is not None and one.generation == generations[slot]:
                if one.blocks and slot < index._slot_count and index._slots[slot].capacity > 0:
                    index._read_words(<const uint64_t*> at, <const double*> (at + chain_size), one.blocks)
                    index._insert(<uint32_t> slot, one.blocks)
                sums[slot].any = True
                sums[slot].work_ms += one.work_ms
                sums[slot].cached += one.cached
                if one.ttft_ms > 0.0:
                    sums[slot].ttft_ms += one.ttft_ms
                    sums[slot].forecasts += 1
                if names:
                    text = at + 2 * chain_size
                    named.append((
                        slot, text[:one.adapter].decode(), one.adapter_ms,
                        text[one.adapter:one.adapter + one.key].decode(),
                    ))
            at += 2 * chain_size + names
        for slot in range(count):
            if sums[slot].any:
                taught.append((slot, sums[slot].work_ms, sums[slot].ttft_ms, sums[slot].forecasts, sums[slot].cached))
    finally:
        PyMem_Free(sums)
    return taught, named
