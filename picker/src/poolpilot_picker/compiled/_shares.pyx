# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""What a worker writes for the others, and reads of them, when a request is placed and when it ends: does what
`ReferenceShares` in `sharing/shares.py` does.
"""

from libc.math cimport INFINITY, floor
from libc.stdint cimport uint64_t

from poolpilot_picker.compiled._columns cimport FREE_AT_MS, Columns


cdef class Shares:
    """The sums over all accounts, and what of our own is remembered by time."""

    cdef object _look_around, _hear
    cdef const uint64_t[::1] _epoch
    cdef double[::1] _recent
    cdef Py_ssize_t _buckets
    cdef double _bucket_ms
    cdef list _accounts, _others
    cdef Columns _sums, _own
    cdef uint64_t _seen_epoch
    cdef bint _stale
    cdef public double due_ms

    def __init__(
        self,
        const uint64_t[::1] epoch not None,
        double[::1] recent not None,
        Py_ssize_t buckets,
        double bucket_ms,
        look_around not None,
        hear not None,
    ):
        if buckets <= 0 or not bucket_ms > 0.0 or not len(epoch):
            raise ValueError(f"{buckets} buckets of {bucket_ms} ms")
        self._epoch, self._recent, self._buckets, self._bucket_ms = epoch, recent, buckets, bucket_ms
        self._look_around, self._hear = look_around, hear
        self._stale = True
        self.due_ms = -INFINITY

    def follow(self, table not None, list accounts not None, list others not None):
        """The processes and endpoints of this moment; our own account is the first. `others`: their `recent`."""
        cdef Columns sums = table.columns, own = accounts[0]
        cdef double[::1] recent
        for other in others:
            recent = other
            if recent.shape[0] != self._recent.shape[0]:
                raise ValueError(f"{recent.shape[0]} words where ours are {self._recent.shape[0]}")
        self._others = others
        self._accounts, self._sums, self._own = accounts, sums, own
        self._seen_epoch, self._stale = self._epoch[0], False

    def resized(self):
        """The table's columns are others than before."""
        self._stale = True

    cdef int _refresh(self) except -1:
        if self._stale or self._epoch[0] != self._seen_epoch:
            self._look_around()
        return 0

    def catch_up(self, double now):
        """Before a decision."""
        if now >= self.due_ms:
            self._hear(now)
        self._refresh()
        self._sums._sum_up(self._accounts)

    def sum_up(self):
        """Makes the ledger's rows of the table the sums over all processes."""
        self._refresh()
        self._sums._sum_up(self._accounts)

    def sum_up_slot(self, Py_ssize_t slot):
        """The same for one slot."""
        self._refresh()
        self._sums._sum_up_slot(self._accounts, slot)

    def booked(self, Py_ssize_t slot, double prefill_ms, double now):
        """We place a request: it starts behind what all have placed there."""
        self._refresh()
        cdef Py_ssize_t place = self._place(slot, now)
        self._own._checked(slot)
        self._sums._checked(slot)
        self._own._block[FREE_AT_MS, slot] = self._sums._block[FREE_AT_MS, slot]
        self._recent[place + 2 * self._buckets] += prefill_ms

    def released(self, Py_ssize_t slot, double sequences, double now):
        """A request of ours ends."""
        self._recent[self._place(slot, now) + self._buckets] += sequences

    def booked_since(self, Py_ssize_t slot, double since_ms):
        """Prefill work, in ms, that others have placed since then; not what was placed within a bucket after it."""
        return self._since(slot, 2, floor(since_ms / self._bucket_ms) + 1.0)

    def released_since(self, Py_ssize_t slot, double since_ms):
        """Sequences of others that ended since then, or within a bucket before it."""
        return self._since(slot, 1, floor(since_ms / self._bucket_ms))

    cdef double _since(self, Py_ssize_t slot, Py_ssize_t row, double bucket) except? -1.0:
        cdef double[::1] recent
        cdef double total = 0.0
        cdef Py_ssize_t stamp, first = 3 * self._buckets * slot
        self._refresh()
        self._checked(slot)
        for other in self._others:
            recent = other
            for stamp in range(first, first + self._buckets):
                if recent[stamp] >= bucket:
                    total += recent[stamp + row * self._buckets]
        return total

    cdef Py_ssize_t _checked(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < self._recent.shape[0] // (3 * self._buckets):
            raise IndexError(f"slot {slot}")
        return slot

    cdef Py_ssize_t _place(self, Py_ssize_t slot, double now) except -1:
        """Of the stamp of the bucket of this moment; what was remembered there before is forgotten."""
        cdef double bucket = floor(now / self._bucket_ms)
        cdef Py_ssize_t place = <Py_ssize_t> (bucket - self._buckets * floor(bucket / self._buckets))
        place += 3 * self._buckets * self._checked(slot)
        if self._recent[place] != bucket:
            self._recent[place + self._buckets] = self._recent[place + 2 * self._buckets] = 0.0
            self._recent[place] = bucket
        return place
