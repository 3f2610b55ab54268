"""Declarations of `_runs.pyx`: what the prefix index is made of."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define NONE UINT32_MAX          /* no run */
    #define MOST_RUNS INT32_MAX
    #define UNITS 64.0               /* of a token: sizes are whole numbers of them, so that sums are exact */
    #define CHUNK 16                 /* bytes that the allocator adds to a piece, about */
    """
    const uint32_t NONE
    const uint32_t MOST_RUNS
    const double UNITS
    const size_t CHUNK


cdef struct Holder:
    uint32_t slot
    uint32_t held       # blocks, 1..length of the run
    uint32_t newer      # runs, in the slot's LRU order
    uint32_t older
    uint32_t used       # number of the insertion that used it last


cdef union Holders:
    Holder one          # where count is 1
    Holder* many        # sorted by slot; room for the next power of two


cdef struct Run:
    uint64_t* hashes    # of its blocks; NULL: the number is free
    Holders holders
    uint32_t units      # size of each block
    uint32_t length     # of the longest holder; next free number where the number is free
    uint32_t count      # of holders


cdef struct Slot:
    uint32_t newest
    uint32_t oldest
    int64_t units
    double capacity     # tokens


cdef class Runs:
    cdef Run* _runs
    cdef uint32_t _run_room, _run_count, _run_free, _live
    cdef uint32_t* _table
    cdef uint32_t _table_mask
    cdef uint64_t _mix
    cdef Slot* _slots
    cdef uint32_t _slot_count
    cdef int64_t _blocks, _entries
    cdef size_t _heap

    cdef int _resize_slots(self, uint32_t slots, double capacity) except -1
    cdef uint32_t _new_run(self, uint32_t length, uint32_t units, uint32_t count) except? 0xFFFFFFFF
    cdef void _free_run(self, uint32_t run) noexcept
    cdef int _resize_run(self, uint32_t run, uint32_t length) except -1
    cdef int _split(self, uint32_t run, uint32_t at) except -1
    cdef Holder* _holders(self, uint32_t run) noexcept
    cdef uint32_t _place(self, uint32_t run, uint32_t slot) noexcept
    cdef Holder* _holder(self, uint32_t run, uint32_t slot) noexcept
    cdef void _count(self, uint32_t run, Holder* holder, uint32_t held) noexcept
    cdef int _hold(self, uint32_t run, uint32_t slot, uint32_t held) except -1
    cdef void _let_go(self, uint32_t run, uint32_t slot) noexcept
    cdef void _unlink(self, Holder* holder) noexcept
    cdef void _link(self, uint32_t run, uint32_t slot, uint32_t before) noexcept
    cdef void _touch(self, uint32_t run, uint32_t slot, uint32_t before) noexcept
    cdef void _shrink(self, uint32_t slot, double capacity) noexcept
    cdef void _shorten(self, uint32_t run, uint32_t length) noexcept
    cdef uint32_t _home(self, uint64_t block) noexcept
    cdef uint32_t _find(self, uint64_t block) noexcept
    cdef void _put_in(self, uint32_t run) noexcept
    cdef void _take_out(self, uint32_t run) noexcept
    cdef int _grow_table(self) except -1


cdef inline uint32_t room_for(uint32_t count) noexcept:
    """The next power of two."""
    cdef uint32_t room = 1
    while room < count:
        room *= 2
    return room
