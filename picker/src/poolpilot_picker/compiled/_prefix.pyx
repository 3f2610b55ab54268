# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The prefix index in compact memory: the same answers as the reference in `state/prefix.py`. Read by every decision.

A chain is a path through runs (`_runs.pyx`): a block that does not follow its predecessor in the run begins a run of
its own, and so does a block of another size. When a slot touches only the beginning of what it holds of a run, the run
is split there.

Memory: 8 bytes a block, once however many slots hold it, and about 70 bytes a run.
"""

from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsDouble, PyLong_Check
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from libc.math cimport INFINITY, floor
from libc.stdint cimport INT32_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from poolpilot_picker.compiled._runs cimport NONE, UNITS, Holder, Runs

import numpy as np

cdef extern from *:
    """
    /* PyLong_AsUnsignedLongLong takes three to four times as long for what needs more than 60 bits. */
    static CYTHON_INLINE unsigned long long unsigned_64(PyObject* value) {
    #if PY_VERSION_HEX < 0x030E0000
        if (_PyLong_Sign(value) >= 0 && _PyLong_NumBits(value) <= 64) return PyLong_AsUnsignedLongLongMask(value);
    #endif
        return PyLong_AsUnsignedLongLong(value);
    }
    """
    uint64_t unsigned_64(object value) except? 0xFFFFFFFFFFFFFFFF

cdef enum:
    MOST_SLOTS = 1 << 20
    MOST_TOKENS = 1 << 25

cdef extern from *:
    """
    #define FIRST_GAP 50.0
    #define GAP_SMOOTHING 0.03
    """
    const double FIRST_GAP
    const double GAP_SMOOTHING


cdef class PrefixIndex(Runs):
    """Approximate index of resident prefix blocks. Capacities and matches in tokens."""

    def __cinit__(self, double assumed_tokens=300_000.0):
        self._assumed = assumed_tokens
        self._gap = FIRST_GAP
        self._set_arrays(np.zeros(0))

    def __dealloc__(self):
        free(self._hashes)
        free(self._ends)

    cdef _set_arrays(self, tokens):
        self._tokens = self._live_tokens = tokens
        self._reuse = self._live_reuse = np.zeros(len(tokens))

    # ── what it knows ────────────────────────────────────────────────────────

    def __len__(self):
        """Distinct blocks known."""
        return self._blocks

    def tokens(self):
        """Indexed tokens per slot, live."""
        return self._tokens

    def reuse(self):
        """How likely what each slot would drop next is asked for again, 0 to 1, shape (slots,), until the next call."""
        cdef uint32_t slot, oldest
        for slot in range(self._slot_count):
            oldest = self._slots[slot].oldest
            if oldest == NONE:
                self._live_reuse[slot] = 0.0
            else:
                # Insertions are counted modulo 2³².
                oldest = self._insertions - self._holder(oldest, slot).used
                self._live_reuse[slot] = self._gap / (self._gap + oldest)
        return self._reuse

    def capacity(self, slot):
        """Tokens a slot may hold."""
        return self._slots[self._checked(slot)].capacity

    def held(self, slot):
        """Hashes of a slot's blocks, least recently used first."""
        cdef uint32_t at = self._checked(slot)
        cdef uint32_t run = self._slots[at].oldest
        cdef uint32_t block
        cdef Holder* holder
        found = []
        while run != NONE:
            holder = self._holder(run, at)
            for block in range(holder.held, 0, -1):
                found.append(self._runs[run].hashes[block - 1])
            run = holder.newer
        return found

    def match(self, chain, double most=float("inf")):
        """Tokens of the chain's head that each slot holds, at most `most`, shape (slots,)."""
        cdef Py_ssize_t length, at = 0
        cdef uint32_t run, index, held, step
        cdef Holder* holders
        cdef double end
        matched = np.zeros(self._slot_count)
        if not chain.hashes or not self._live:
            return matched
        cdef double[::1] tokens = matched
        cdef object ends = PySequence_Fast(chain.ends, "ends must be a sequence")
        length = self._read(chain.hashes, ends)
        while at < length:
            run = self._find(self._hashes[at])
            if run == NONE:
                break
            step = self._common(run, at, length)
            holders = self._holders(run)
            for index in range(self._runs[run].count):
                held = holders[index].held
                end = number(ends, at + (held if held < step else step) - 1)
                tokens[holders[index].slot] = end if end < most else most
            at += step
        return matched

    # ── what happens ─────────────────────────────────────────────────────────

    def insert(self, chain, slot):
        """The chain's blocks are now the most recently used of the slot; the oldest fall out above its capacity."""
        cdef uint32_t here = self._checked(slot)
        cdef Py_ssize_t length
        if not chain.hashes or self._slots[here].capacity <= 0:
            return
        cdef object ends = PySequence_Fast(chain.ends, "ends must be a sequence")
        length = self._read(chain.hashes, ends)
        self._read_ends(ends, length)
        self._insert(here, length)

    cdef int _insert(self, uint32_t here, Py_ssize_t length) except -1:
        """The same for the chain at hand; the slot keeps prefixes."""
        cdef uint32_t run, before = NONE
        cdef uint32_t step, held
        cdef uint32_t unused = 0
        cdef Py_ssize_t stop, at = 0, known = 0
        cdef Holder* holder
        self._insertions += 1
        while at < length:
            run = self._find(self._hashes[at])
            if run == NONE:
                break
            step = self._common(run, at, length)
            holder = self._holder(run, here)
            held = holder.held if holder != NULL else 0
            if held:
                unused = self._insertions - holder.used
                known = at + (held if held < step else step)
            if held > step:
                self._split(run, step)
            elif held < step:
                self._hold(run, here, step)
            self._touch(run, here, before)
            self._holder(run, here).used = self._insertions
            before = run
            at += step
        if known and 0.0 < self._ends[known - 1] <= self._ends[length - 1] < INFINITY:
            self._gap += GAP_SMOOTHING * (self._ends[known - 1] / self._ends[length - 1]) * (unused - self._gap)
        while at < length:
            stop = self._same_size(at, length)
            # A run that this slot holds alone ends where the slot's part of it does.
            if before != NONE and self._runs[before].count == 1 and self._runs[before].units == self._units(at):
                self._extend(before, at, stop)
            else:
                before = self._begin(here, at, stop, before)
            at = stop
        self._fit(here, self._slots[here].capacity)
        return 0

    def set_capacity(self, slot, double tokens):
        """The engine's cache size became known; 0: it caches no prefixes."""
        cdef uint32_t here = self._checked(slot)
        self._slots[here].capacity = tokens
        self._fit(here, tokens)

    def forget(self, slot):
        """The engine restarted: nothing is resident."""
        self._fit(self._checked(slot), 0.0)

    def clear(self, slot):
        """The slot changed hands: nothing is resident, and the size is not known."""
        self.forget(slot)
        self._slots[self._checked(slot)].capacity = self._assumed

    def resize(self, Py_ssize_t slots):
        """Follows the number of slots; a slot that goes must have been cleared."""
        if not 0 <= slots <= MOST_SLOTS:
            raise ValueError(f"slots must be 0 to {int(MOST_SLOTS)}, not {slots}")
        if slots == self._slot_count:
            return
        array = np.zeros(slots)
        kept = min(slots, <Py_ssize_t> self._slot_count)
        array[:kept] = self._tokens[:kept]
        self._resize_slots(<uint32_t> slots, self._assumed)
        self._set_arrays(array)

    # ── chains ───────────────────────────────────────────────────────────────

    cdef uint32_t _checked(self, slot) except? 0xFFFFFFFF:
        cdef Py_ssize_t number = slot
        if not 0 <= number < self._slot_count:
            raise IndexError(f"slot {number} of {self._slot_count}")
        return <uint32_t> number

    cdef Py_ssize_t _read(self, chain_hashes, ends) except -1:
        """Copies a chain's hashes; returns their number. Runs no code but this: the index stays as it is meanwhile."""
        cdef object hashes = PySequence_Fast(chain_hashes, "hashes must be a sequence")
        cdef Py_ssize_t at, length = PySequence_Fast_GET_SIZE(hashes)
        if PySequence_Fast_GET_SIZE(ends) < length:
            raise ValueError(f"a chain of {length} hashes needs as many ends, not {len(ends)}")
        if hashes is self._at_hand and length == self._at_hand_length:
            return length
        self._at_hand = None
        if length > self._chain_room:
            self._make_room(length)
        for at in range(length):
            self._hashes[at] = block_hash(<object> PySequence_Fast_GET_ITEM(hashes, at))
        self._at_hand, self._at_hand_length = hashes, length
        return length

    cdef int _read_ends(self, ends, Py_ssize_t length) except -1:
        cdef Py_ssize_t at
        for at in range(length):
            self._ends[at] = number(ends, at)
        return 0

    cdef int _read_words(self, const uint64_t* hashes, const double* ends, Py_ssize_t length) except -1:
        """Makes a chain the one at hand that is no Python object."""
        self._at_hand = None
        if length > self._chain_room:
            self._make_room(length)
        memcpy(self._hashes, hashes, length * sizeof(uint64_t))
        memcpy(self._ends, ends, length * sizeof(double))
        return 0

    cdef int _make_room(self, Py_ssize_t length) except -1:
        cdef void* room
        if length > INT32_MAX:
            raise ValueError(f"a chain may have {int(INT32_MAX)} blocks, not {length}")
        room = realloc(self._hashes, length * sizeof(uint64_t))
        if room == NULL:
            raise MemoryError
        self._hashes = <uint64_t*> room
        room = realloc(self._ends, length * sizeof(double))
        if room == NULL:
            raise MemoryError
        self._ends = <double*> room
        self._chain_room = length
        return 0

    cdef uint32_t _units(self, Py_ssize_t at) noexcept:
        """Size of the chain's block in units: at least one token, so that capacity bounds the number of blocks."""
        cdef double size = self._ends[at] - (self._ends[at - 1] if at else 0.0)
        if not size > 1.0:
            return <uint32_t> UNITS
        if size > MOST_TOKENS:
            size = MOST_TOKENS
        return <uint32_t> floor(size * UNITS + 0.5)

    cdef uint32_t _common(self, uint32_t run, Py_ssize_t at, Py_ssize_t length) noexcept:
        """How many blocks the run and the chain from `at` on have in common; their first is."""
        cdef uint64_t* hashes = self._runs[run].hashes
        cdef Py_ssize_t most = length - at
        cdef uint32_t step = 1
        if most > self._runs[run].length:
            most = self._runs[run].length
        while step < most and hashes[step] == self._hashes[at + step]:
            step += 1
        return step

    cdef Py_ssize_t _same_size(self, Py_ssize_t at, Py_ssize_t length) noexcept:
        """Where the chain's next block of another size is."""
        cdef uint32_t units = self._units(at)
        at += 1
        while at < length and self._units(at) == units:
            at += 1
        return at

    # ── runs ─────────────────────────────────────────────────────────────────

    cdef void _fit(self, uint32_t slot, double capacity) noexcept:
        """Drops the least recently used blocks of a slot until the rest fits."""
        self._shrink(slot, capacity)
        self._live_tokens[slot] = <double> self._slots[slot].units / UNITS

    cdef uint32_t _begin(self, uint32_t slot, Py_ssize_t at, Py_ssize_t stop, uint32_t before) except? 0xFFFFFFFF:
        """Makes a run of a new part of the chain, held by the slot, next older than `before`; returns it."""
        cdef uint32_t length = <uint32_t> (stop - at)
        cdef uint32_t run = self._new_run(length, self._units(at), 1)
        memcpy(self._runs[run].hashes, self._hashes + at, length * sizeof(uint64_t))
        self._put_in(run)
        self._runs[run].holders.one = Holder(slot, 0, NONE, NONE, self._insertions)
        self._link(run, slot, before)
        self._count(run, &self._runs[run].holders.one, length)
        return run

    cdef int _extend(self, uint32_t run, Py_ssize_t at, Py_ssize_t stop) except -1:
        """A new part of the chain follows a run that only one slot holds: it becomes part of it."""
        cdef uint32_t old = self._runs[run].length, length = <uint32_t> (stop - at)
        self._resize_run(run, old + length)
        memcpy(self._runs[run].hashes + old, self._hashes + at, length * sizeof(uint64_t))
        self._count(run, &self._runs[run].holders.one, old + length)
        return 0


cdef uint64_t block_hash(value) except? 0xFFFFFFFFFFFFFFFF:
    if not PyLong_Check(value):
        raise TypeError(f"a hash must be an int, not {type(value).__name__}")
    return unsigned_64(value)


cdef double number(sequence, Py_ssize_t at) except? -1.0:
    """The number at a place of a list or tuple that is so long."""
    cdef object value = <object> PySequence_Fast_GET_ITEM(sequence, at)
    if PyFloat_Check(value):
        return PyFloat_AS_DOUBLE(value)
    if PyLong_Check(value):
        return PyLong_AsDouble(value)
    raise TypeError(f"an end must be a number, not {type(value).__name__}")
