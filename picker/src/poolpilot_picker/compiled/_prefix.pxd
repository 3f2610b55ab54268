"""Declarations of `_prefix.pyx`: for placements that other processes tell of."""

from libc.stdint cimport uint32_t, uint64_t

from poolpilot_picker.compiled._runs cimport Holder, Runs


cdef class PrefixIndex(Runs):
    cdef uint64_t* _hashes      # of the chain at hand
    cdef double* _ends
    cdef Py_ssize_t _chain_room
    cdef object _at_hand        # whose hashes they are: what was matched is mostly inserted next
    cdef Py_ssize_t _at_hand_length
    cdef double _assumed
    cdef object _tokens
    cdef double[::1] _live_tokens
    cdef object _reuse
    cdef double[::1] _live_reuse
    cdef uint32_t _insertions
    cdef double _gap            # insertions between two uses of a prefix

    cdef _set_arrays(self, tokens)
    cdef uint32_t _checked(self, slot) except? 0xFFFFFFFF
    cdef Py_ssize_t _read(self, chain_hashes, ends) except -1
    cdef int _read_ends(self, ends, Py_ssize_t length) except -1
    cdef int _read_words(self, const uint64_t* hashes, const double* ends, Py_ssize_t length) except -1
    cdef int _insert(self, uint32_t here, Py_ssize_t length) except -1
    cdef int _make_room(self, Py_ssize_t length) except -1
    cdef uint32_t _units(self, Py_ssize_t at) noexcept
    cdef uint32_t _common(self, uint32_t run, Py_ssize_t at, Py_ssize_t length) noexcept
    cdef Py_ssize_t _same_size(self, Py_ssize_t at, Py_ssize_t length) noexcept
    cdef void _fit(self, uint32_t slot, double capacity) noexcept
    cdef uint32_t _begin(self, uint32_t slot, Py_ssize_t at, Py_ssize_t stop, uint32_t before) except? 0xFFFFFFFF
    cdef int _extend(self, uint32_t run, Py_ssize_t at, Py_ssize_t stop) except -1
