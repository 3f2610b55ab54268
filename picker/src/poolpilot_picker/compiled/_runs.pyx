# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Runs of blocks and who holds them: the memory of the prefix index. Read by every decision.

A prompt's blocks follow one another wherever they are held, so they are kept as runs: stretches of blocks of one size
that no slot has touched in part. Each run lists its holders by slot, with how many of its first blocks they hold. A
slot's blocks of one run are neighbours in its LRU order, so runs, not blocks, are linked: from holder to holder, by the
run's number. A hash table finds runs by the hash of their first block.

Always: a run is as long as its longest holder's part, has a holder, and is in the table once; a slot's holders are
linked from its newest to its oldest. Pointers into a run are valid until a run or a holder is added or removed.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove


cdef class Runs:
    """Runs, their holders and the LRU order of each slot."""

    def __cinit__(self):
        self._run_free = NONE
        self._table_mask = 1023
        self._table = <uint32_t*> calloc(1024, sizeof(uint32_t))
        if self._table == NULL:
            raise MemoryError
        # The table's order is nobody's to choose: who could, could make it slow.
        self._mix = (<uint64_t> (hash("prefix index") & 0x7FFFFFFFFFFFFFFF)) * 2 + 1

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

    cdef int _resize_slots(self, uint32_t slots, double capacity) except -1:
        """Follows the number of slots; those that go are emptied, those that come have this capacity."""
        cdef uint32_t slot
        cdef Slot* room
        for slot in range(slots, self._slot_count):
            self._shrink(slot, 0.0)
        room = <Slot*> realloc(self._slots, (slots if slots else 1) * sizeof(Slot))
        if room == NULL:
            raise MemoryError
        self._slots = room
        for slot in range(self._slot_count, slots):
            self._slots[slot] = Slot(NONE, NONE, 0, capacity)
        self._slot_count = slots
        return 0

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
            theirs[place] = Holder(
                holders[index].slot, holders[index].held - at, run, holders[index].older, holders[index].used
            )
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
        holders[place] = Holder(slot, 0, NONE, NONE, 0)
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

    cdef void _shorten(self, uint32_t run, uint32_t length) noexcept:
        """Forgets the blocks of a run that nobody holds any more."""
        try:
            self._resize_run(run, length)
        except MemoryError:
            pass

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
