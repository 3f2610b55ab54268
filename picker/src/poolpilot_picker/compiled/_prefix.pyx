# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The prefix index in compact memory: the same answers as the reference in `state/prefix.py`. Read by every decision.

A prompt's blocks follow one another wherever they are held, so they are kept as runs: stretches of blocks that no slot
has touched in part. Each run lists its holders by slot, with how many of its first blocks they hold. A slot's blocks of
one run are neighbours in its LRU order, so runs, not blocks, are linked: from holder to holder, by the run's number.

A block whose predecessor is followed by another block in its run begins a run of its own, and so does a block of
another size; a hash table finds runs by the hash of their first block. When a slot touches only the beginning of what
it holds of a run, the run is split there.

Memory: 8 bytes a block, once however many slots hold it, and about 60 bytes a run. Numbers that do not fit raise.
"""

from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsDouble, PyLong_AsUnsignedLongLong, PyLong_Check
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from libc.math cimport floor
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove

import numpy as np

cdef extern from *:
    """
    #define NONE UINT32_MAX          /* no run */
    #define MOST_RUNS INT32_MAX
    #define MOST_SLOTS (1 << 20)
    #define UNITS 64.0               /* of a token: sizes are whole numbers of them, so that sums are exact */
    #define MOST_TOKENS 33554432.0   /* of a block */
    #define CHUNK 16                 /* bytes that the allocator adds to a piece, about */
    """
    const uint32_t NONE
    const uint32_t MOST_RUNS
    const Py_ssize_t MOST_SLOTS
    const double UNITS
    const double MOST_TOKENS
    const size_t CHUNK


cdef struct Holder:
    uint32_t slot
    uint32_t held       # blocks, 1..length of the run
    uint32_t newer      # runs, in the slot's LRU order
    uint32_t older


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


cdef class PrefixIndex:
    """Approximate index of resident prefix blocks. Capacities and matches in tokens."""

    cdef Run* _runs
    cdef uint32_t _run_room, _run_count, _run_free, _live
    cdef uint32_t* _table       # run numbers by hash of their first block; linear probing
    cdef uint32_t _table_mask
    cdef uint64_t _mix
    cdef Slot* _slots
    cdef uint32_t _slot_count
    cdef uint64_t* _hashes      # of the chain at hand
    cdef double* _ends
    cdef Py_ssize_t _chain_room
    cdef int64_t _blocks, _entries
    cdef size_t _heap
    cdef double _assumed
    cdef object _tokens
    cdef double[::1] _live_tokens

    def __cinit__(self, double assumed_tokens=300_000.0):
        self._assumed = assumed_tokens
        self._run_free = NONE
        self._table_mask = 1023
        self._table = <uint32_t*> calloc(1024, sizeof(uint32_t))
        if self._table == NULL:
            raise MemoryError
        # The table's order is nobody's to choose: who could, could make it slow.
        self._mix = (<uint64_t> (hash("prefix index") & 0x7FFFFFFFFFFFFFFF)) * 2 + 1
        self._set_tokens(np.zeros(0))

    def __dealloc__(self):
        cdef uint32_t run
        for run in range(self._run_count):
            if self._runs[run].hashes != NULL:
                free(self._runs[run].hashes)
                if self._runs[run].count > 1:
                    free(self._runs[run].holders.many)
        free(self._runs)
        free(self._table)
        free(self._slots)
        free(self._hashes)
        free(self._ends)

    cdef _set_tokens(self, array):
        self._tokens = array
        self._live_tokens = array

    # ── what it knows ────────────────────────────────────────────────────────

    def __len__(self):
        """Distinct blocks known."""
        return self._blocks

    @property
    def entries(self):
        """Blocks known at slots: a block held by three slots counts three."""
        return self._entries

    @property
    def memory_bytes(self):
        """Bytes in use, the allocator's included."""
        return (
            self._heap
            + self._run_count * sizeof(Run)
            + (self._table_mask + 1) * sizeof(uint32_t)
            + self._slot_count * sizeof(Slot)
        )

    def tokens(self):
        """Indexed tokens per slot, live."""
        return self._tokens

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
        cdef uint32_t run, before = NONE
        cdef uint32_t step, held
        cdef Py_ssize_t length, stop, at = 0
        cdef Holder* holder
        cdef bint whole = False
        if not chain.hashes or self._slots[here].capacity <= 0:
            return
        cdef object ends = PySequence_Fast(chain.ends, "ends must be a sequence")
        length = self._read(chain.hashes, ends)
        self._read_ends(ends, length)
        while at < length:
            run = self._find(self._hashes[at])
            if run == NONE:
                break
            step = self._common(run, at, length)
            holder = self._holder(run, here)
            held = holder.held if holder != NULL else 0
            if held > step:
                self._split(run, step)
            elif held < step:
                self._hold(run, here, step)
            self._touch(run, here, before)
            before = run
            whole = step == self._runs[run].length
            at += step
        while at < length:
            stop = self._same_size(at, length)
            if whole and self._runs[before].count == 1 and self._runs[before].units == self._units(at):
                self._extend(before, at, stop)
            else:
                before = self._begin(here, at, stop, before)
            whole = True
            at = stop
        self._shrink(here, self._slots[here].capacity)

    def set_capacity(self, slot, double tokens):
        """The engine's cache size became known; 0: it caches no prefixes."""
        cdef uint32_t here = self._checked(slot)
        self._slots[here].capacity = tokens
        self._shrink(here, tokens)

    def forget(self, slot):
        """The engine restarted: nothing is resident."""
        self._shrink(self._checked(slot), 0.0)

    def clear(self, slot):
        """The slot changed hands: nothing is resident, and the size is not known."""
        self.forget(slot)
        self._slots[self._checked(slot)].capacity = self._assumed

    def resize(self, Py_ssize_t slots):
        """Follows the number of slots; a slot that goes must have been cleared."""
        cdef uint32_t slot
        if not 0 <= slots <= MOST_SLOTS:
            raise ValueError(f"slots must be 0 to {MOST_SLOTS}, not {slots}")
        if slots == self._slot_count:
            return
        for slot in range(<uint32_t> slots, self._slot_count):
            self._shrink(slot, 0.0)
        array = np.zeros(slots)
        kept = min(slots, <Py_ssize_t> self._slot_count)
        array[:kept] = self._tokens[:kept]
        cdef Slot* room = <Slot*> realloc(self._slots, (slots if slots else 1) * sizeof(Slot))
        if room == NULL:
            raise MemoryError
        self._slots = room
        for slot in range(self._slot_count, <uint32_t> slots):
            self._slots[slot] = Slot(NONE, NONE, 0, self._assumed)
        self._slot_count = <uint32_t> slots
        self._set_tokens(array)

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
        if length > self._chain_room:
            self._make_room(length)
        for at in range(length):
            self._hashes[at] = block_hash(<object> PySequence_Fast_GET_ITEM(hashes, at))
        return length

    cdef int _read_ends(self, ends, Py_ssize_t length) except -1:
        cdef Py_ssize_t at
        for at in range(length):
            self._ends[at] = number(ends, at)
        return 0

    cdef int _make_room(self, Py_ssize_t length) except -1:
        cdef void* room
        if length > MOST_RUNS:
            raise ValueError(f"a chain may have {MOST_RUNS} blocks, not {length}")
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

    cdef uint32_t _new_run(self, uint32_t length, uint32_t units, uint32_t count) except? 0xFFFFFFFF:
        """A free number with room for blocks and holders; raises before anything is changed."""
        cdef uint32_t run, room
        cdef void* memory
        cdef uint64_t* hashes
        cdef Holder* many = NULL
        if 4 * (self._live + 1) > 3 * (<uint64_t> self._table_mask + 1):
            self._grow_table()
        if self._run_free == NONE and self._run_count == self._run_room:
            if self._run_room >= MOST_RUNS // 2:
                raise MemoryError("too many runs")
            room = 2 * self._run_room if self._run_room else 256
            memory = realloc(self._runs, room * sizeof(Run))
            if memory == NULL:
                raise MemoryError
            self._runs = <Run*> memory
            self._run_room = room
        hashes = <uint64_t*> realloc(NULL, length * sizeof(uint64_t))
        if hashes == NULL:
            raise MemoryError
        if count > 1:
            many = <Holder*> realloc(NULL, room_for(count) * sizeof(Holder))
            if many == NULL:
                free(hashes)
                raise MemoryError
            self._heap += room_for(count) * sizeof(Holder) + CHUNK
        self._heap += length * sizeof(uint64_t) + CHUNK
        run = self._run_free
        if run == NONE:
            run = self._run_count
            self._run_count += 1
        else:
            self._run_free = self._runs[run].length
        self._runs[run].hashes = hashes
        self._runs[run].units = units
        self._runs[run].length = length
        self._runs[run].count = count
        if count > 1:
            self._runs[run].holders.many = many
        self._live += 1
        self._blocks += length
        return run

    cdef void _free_run(self, uint32_t run) noexcept:
        """Gives a run back of which no holder is left; its first block must be there still."""
        self._take_out(run)
        self._heap -= self._runs[run].length * sizeof(uint64_t) + CHUNK
        self._blocks -= self._runs[run].length
        free(self._runs[run].hashes)
        self._runs[run].hashes = NULL
        self._runs[run].count = 0
        self._runs[run].length = self._run_free
        self._run_free = run
        self._live -= 1

    cdef int _resize_run(self, uint32_t run, uint32_t length) except -1:
        cdef Run* its = &self._runs[run]
        cdef void* memory = realloc(its.hashes, length * sizeof(uint64_t))
        if memory == NULL:
            raise MemoryError
        self._heap += length * sizeof(uint64_t)
        self._heap -= its.length * sizeof(uint64_t)
        self._blocks += <int64_t> length - <int64_t> its.length
        its.hashes = <uint64_t*> memory
        its.length = length
        return 0

    cdef uint32_t _begin(self, uint32_t slot, Py_ssize_t at, Py_ssize_t stop, uint32_t before) except? 0xFFFFFFFF:
        """Makes a run of a new part of the chain, held by the slot, next older than `before`; returns it."""
        cdef uint32_t length = <uint32_t> (stop - at)
        cdef uint32_t run = self._new_run(length, self._units(at), 1)
        memcpy(self._runs[run].hashes, self._hashes + at, length * sizeof(uint64_t))
        self._put_in(run)
        self._runs[run].holders.one = Holder(slot, 0, NONE, NONE)
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

    cdef int _split(self, uint32_t run, uint32_t at) except -1:
        """Makes the blocks from `at` on a run of its own. In the LRU order of who holds them it is the next older."""
        cdef Holder* holders = self._holders(run)
        cdef uint32_t index, count = 0, length = self._runs[run].length
        cdef uint32_t rest, place = 0
        cdef Holder* theirs
        cdef Holder* older
        for index in range(self._runs[run].count):
            if holders[index].held > at:
                count += 1
        rest = self._new_run(length - at, self._runs[run].units, count)
        holders = self._holders(run)
        memcpy(self._runs[rest].hashes, self._runs[run].hashes + at, (length - at) * sizeof(uint64_t))
        self._put_in(rest)
        theirs = self._holders(rest)
        for index in range(self._runs[run].count):
            if holders[index].held <= at:
                continue
            theirs[place] = Holder(holders[index].slot, holders[index].held - at, run, holders[index].older)
            if holders[index].older == NONE:
                self._slots[holders[index].slot].oldest = rest
            else:
                older = self._holder(holders[index].older, holders[index].slot)
                older.newer = rest
            holders[index].older = rest
            holders[index].held = at
            place += 1
        self._resize_run(run, at)
        return 0

    # ── holders ──────────────────────────────────────────────────────────────

    cdef Holder* _holders(self, uint32_t run) noexcept:
        return self._runs[run].holders.many if self._runs[run].count > 1 else &self._runs[run].holders.one

    cdef uint32_t _place(self, uint32_t run, uint32_t slot) noexcept:
        """Where the slot is among the holders, or belongs."""
        cdef Holder* holders = self._holders(run)
        cdef uint32_t low = 0, high = self._runs[run].count, middle
        while low < high:
            middle = (low + high) // 2
            if holders[middle].slot < slot:
                low = middle + 1
            else:
                high = middle
        return low

    cdef Holder* _holder(self, uint32_t run, uint32_t slot) noexcept:
        """The slot's holding of the run, NULL if it holds nothing of it."""
        cdef uint32_t place = self._place(run, slot)
        cdef Holder* holders = self._holders(run)
        if place < self._runs[run].count and holders[place].slot == slot:
            return &holders[place]
        return NULL

    cdef void _count(self, uint32_t run, Holder* holder, uint32_t held) noexcept:
        """The holder holds so many blocks from now on."""
        cdef int64_t more = <int64_t> held - <int64_t> holder.held
        self._slots[holder.slot].units += more * self._runs[run].units
        self._entries += more
        holder.held = held

    cdef int _hold(self, uint32_t run, uint32_t slot, uint32_t held) except -1:
        """The slot holds so many blocks of the run, more than before; a new holder is linked nowhere yet."""
        cdef uint32_t place = self._place(run, slot), count = self._runs[run].count, room
        cdef Holder* holders = self._holders(run)
        cdef Holder only
        cdef void* memory
        if place < count and holders[place].slot == slot:
            self._count(run, &holders[place], held)
            return 0
        if count == 1:
            only = self._runs[run].holders.one
            holders = <Holder*> realloc(NULL, 2 * sizeof(Holder))
            if holders == NULL:
                raise MemoryError
            self._heap += 2 * sizeof(Holder) + CHUNK
            holders[0] = only
            self._runs[run].holders.many = holders
        elif count == room_for(count):
            room = 2 * count
            memory = realloc(holders, room * sizeof(Holder))
            if memory == NULL:
                raise MemoryError
            self._heap += count * sizeof(Holder)
            holders = <Holder*> memory
            self._runs[run].holders.many = holders
        memmove(holders + place + 1, holders + place, (count - place) * sizeof(Holder))
        self._runs[run].count = count + 1
        holders[place] = Holder(slot, 0, NONE, NONE)
        # Not linked yet: it is its own neighbour, which `_touch` knows.
        holders[place].newer = holders[place].older = run
        self._count(run, &holders[place], held)
        return 0

    cdef void _let_go(self, uint32_t run, uint32_t slot) noexcept:
        """The slot holds nothing of the run any more: its holder goes, and with the last of them the run."""
        cdef uint32_t place = self._place(run, slot), count = self._runs[run].count, room
        cdef Holder* holders = self._holders(run)
        cdef Holder only
        cdef void* memory
        self._unlink(&holders[place])
        if count == 1:
            self._free_run(run)
            return
        memmove(holders + place, holders + place + 1, (count - place - 1) * sizeof(Holder))
        self._runs[run].count = count - 1
        if count == 2:
            only = holders[0]
            free(holders)
            self._heap -= 2 * sizeof(Holder) + CHUNK
            self._runs[run].holders.one = only
        elif room_for(count - 1) < room_for(count):
            room = room_for(count - 1)
            self._heap -= (room_for(count) - room) * sizeof(Holder)
            memory = realloc(holders, room * sizeof(Holder))
            if memory != NULL:
                self._runs[run].holders.many = <Holder*> memory

    # ── LRU ──────────────────────────────────────────────────────────────────

    cdef void _unlink(self, Holder* holder) noexcept:
        cdef Slot* slot = &self._slots[holder.slot]
        cdef Holder* neighbour
        if holder.newer == NONE:
            slot.newest = holder.older
        else:
            neighbour = self._holder(holder.newer, holder.slot)
            neighbour.older = holder.older
        if holder.older == NONE:
            slot.oldest = holder.newer
        else:
            neighbour = self._holder(holder.older, holder.slot)
            neighbour.newer = holder.newer

    cdef void _link(self, uint32_t run, uint32_t slot, uint32_t before) noexcept:
        """Puts a holder that is not linked next older than `before`, or first."""
        cdef Holder* holder = self._holder(run, slot)
        cdef Holder* neighbour
        holder.newer = before
        if before == NONE:
            holder.older = self._slots[slot].newest
            self._slots[slot].newest = run
        else:
            neighbour = self._holder(before, slot)
            holder.older = neighbour.older
            neighbour.older = run
        if holder.older == NONE:
            self._slots[slot].oldest = run
        else:
            neighbour = self._holder(holder.older, slot)
            neighbour.newer = run

    cdef void _touch(self, uint32_t run, uint32_t slot, uint32_t before) noexcept:
        """Moves the slot's holding of a run next older than `before`, or first."""
        cdef Holder* holder = self._holder(run, slot)
        if run == before or (before == NONE and self._slots[slot].newest == run):
            return
        if holder.newer != run:
            self._unlink(holder)
        self._link(run, slot, before)

    cdef void _shrink(self, uint32_t slot, double capacity) noexcept:
        """Drops the least recently used blocks of a slot until the rest fits."""
        cdef Slot* its = &self._slots[slot]
        cdef uint32_t run, held, longest, index
        cdef Holder* holder
        cdef Holder* holders
        cdef int64_t units
        cdef bint last
        while its.oldest != NONE and <double> its.units / UNITS > capacity:
            run = its.oldest
            holder = self._holder(run, slot)
            held, units = holder.held, its.units
            while held and <double> units / UNITS > capacity:
                held -= 1
                units -= self._runs[run].units
            self._count(run, holder, held)
            if not held:
                last = self._runs[run].count == 1
                self._let_go(run, slot)
                if last:
                    continue
            longest = 0
            holders = self._holders(run)
            for index in range(self._runs[run].count):
                if holders[index].held > longest:
                    longest = holders[index].held
            if longest < self._runs[run].length:
                self._shorten(run, longest)
        self._slots_tokens(slot)

    cdef void _shorten(self, uint32_t run, uint32_t length) noexcept:
        """Forgets the blocks of a run that nobody holds any more."""
        try:
            self._resize_run(run, length)
        except MemoryError:
            pass

    cdef void _slots_tokens(self, uint32_t slot) noexcept:
        if slot < self._live_tokens.shape[0]:
            self._live_tokens[slot] = <double> self._slots[slot].units / UNITS

    # ── the table ────────────────────────────────────────────────────────────

    cdef uint32_t _home(self, uint64_t block) noexcept:
        return <uint32_t> ((block * self._mix) >> 32) & self._table_mask

    cdef uint32_t _find(self, uint64_t block) noexcept:
        """The run that begins with the block."""
        cdef uint32_t place = self._home(block), entry
        while True:
            entry = self._table[place]
            if entry == 0:
                return NONE
            if self._runs[entry - 1].hashes[0] == block:
                return entry - 1
            place = (place + 1) & self._table_mask

    cdef void _put_in(self, uint32_t run) noexcept:
        cdef uint32_t place = self._home(self._runs[run].hashes[0])
        while self._table[place] != 0:
            place = (place + 1) & self._table_mask
        self._table[place] = run + 1

    cdef void _take_out(self, uint32_t run) noexcept:
        """Removes a run; what was put behind it because of it moves up."""
        cdef uint32_t place = self._home(self._runs[run].hashes[0]), gap, entry, home
        while self._table[place] != run + 1:
            place = (place + 1) & self._table_mask
        gap = place
        while True:
            place = (place + 1) & self._table_mask
            entry = self._table[place]
            if entry == 0:
                break
            home = self._home(self._runs[entry - 1].hashes[0])
            if ((place - home) & self._table_mask) >= ((place - gap) & self._table_mask):
                self._table[gap] = entry
                gap = place
        self._table[gap] = 0

    cdef int _grow_table(self) except -1:
        cdef uint64_t room = 2 * (<uint64_t> self._table_mask + 1)
        cdef uint32_t run
        cdef uint32_t* table = <uint32_t*> calloc(room, sizeof(uint32_t))
        if table == NULL:
            raise MemoryError
        free(self._table)
        self._table = table
        self._table_mask = <uint32_t> (room - 1)
        for run in range(self._run_count):
            if self._runs[run].hashes != NULL:
                self._put_in(run)
        return 0


cdef uint64_t block_hash(value) except? 0xFFFFFFFFFFFFFFFF:
    if not PyLong_Check(value):
        raise TypeError(f"a hash must be an int, not {type(value).__name__}")
    return PyLong_AsUnsignedLongLong(value)


cdef double number(sequence, Py_ssize_t at) except? -1.0:
    """The number at a place of a list or tuple that is so long."""
    cdef object value = <object> PySequence_Fast_GET_ITEM(sequence, at)
    if PyFloat_Check(value):
        return PyFloat_AS_DOUBLE(value)
    if PyLong_Check(value):
        return PyLong_AsDouble(value)
    raise TypeError(f"an end must be a number, not {type(value).__name__}")


cdef uint32_t room_for(uint32_t count) noexcept:
    """The next power of two."""
    cdef uint32_t room = 1
    while room < count:
        room *= 2
    return room
