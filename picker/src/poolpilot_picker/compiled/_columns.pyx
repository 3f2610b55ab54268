# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The arithmetic on a pool's numbers: the account, and what a request costs at every endpoint. Read by every decision.

Does what `Columns` in `state/columns.py` and `CostModel` in `routing/cost_model.py` do, operation by operation; there
are the reasons. Pointers are taken only to rows of arrays whose shapes were checked, for loops over the slots in use.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint8_t


cdef enum:
    INFLIGHT, REQUESTS, PROMPT_TOKENS, EXPECTED_TOKENS, UNCACHED_TOKENS, NEW_KV_TOKENS, STARTED_SUM_MS, FREE_AT_MS
    SAMPLE_MS, LOAD_MS, RUNNING, WAITING, QUEUED, KV_USAGE, KV_CAPACITY, FOREIGN, OTHER_KV_TOKENS, PREEMPTING_UNTIL_MS
    KV_TOKENS, MAX_SEQUENCES
    TOKEN_BUDGET, STEP_MS, SEQUENCE_MS, CONTEXT_MS, TOKEN_MS, TOKEN2_MS, HALF_CHUNK_MS
    PREFILL_SPEED, DECODE_SPEED, PREFILL_SHARE, INTERFERENCE, FAILURE_MS, CACHE_TRUST
    MEAN_WEIGHT
    ROW_COUNT

ROWS = (
    "inflight", "requests", "prompt_tokens", "expected_tokens", "uncached_tokens", "new_kv_tokens", "started_sum_ms",
    "free_at_ms",
    "sample_ms", "load_ms", "running", "waiting", "queued", "kv_usage", "kv_capacity", "foreign", "other_kv_tokens",
    "preempting_until_ms",
    "kv_tokens", "max_sequences",
    "token_budget", "step_ms", "sequence_ms", "context_ms", "token_ms", "token2_ms", "half_chunk_ms",
    "prefill_speed", "decode_speed", "prefill_share", "interference", "failure_ms", "cache_trust",
    "mean_weight",
)
"""What the rows of a block must be."""

cdef enum:
    WAIT, PREFILL, DECODE, DELAY_PREFILL, DELAY_DECODE, KV_PEAK, ADMISSION, EVICTION, ADAPTER, SLOW_START, PREEMPTING
    FAILURES
    TERM_COUNT
    TOTAL = TERM_COUNT
    FIRST_WAIT, ADAPTER_MS, STEP, UNCACHED
    OUT_COUNT

TERMS = (
    "wait", "prefill", "decode", "delay_prefill", "delay_decode", "kv_peak", "admission", "eviction", "adapter",
    "slow_start", "preempting", "failures",
)
"""Names of the first rows of what `Columns.cost` fills; the row after them is their sum."""
OUT_ROWS = int(OUT_COUNT)
TOTAL_ROW = int(TOTAL)

cdef double LEAST_CHUNK = 256.0
cdef double KV_ROOM = 0.9
cdef double CACHE_ROOM = 0.95


cdef inline double larger(double one, double other) noexcept nogil:
    return one if one > other else other


cdef inline double smaller(double one, double other) noexcept nogil:
    return one if one < other else other


cdef inline double generated_tokens(
    double inflight,
    double prompt_tokens,
    double expected_tokens,
    double started_sum_ms,
    double step_ms,
    double sequence_ms,
    double context_ms,
    double now,
) noexcept nogil:
    """Output tokens that the bookings of a slot have probably generated."""
    cdef double step = step_ms + sequence_ms * inflight + context_ms * prompt_tokens
    cdef double elapsed = inflight * now - started_sum_ms
    return smaller(larger(elapsed / step, 0.0), 2.0 * expected_tokens)


cdef class Constants:
    """The constants of a cost, by the names of `CostParameters`."""

    cdef double own_decode_weight, others_weight, fleet_share, others_decode_weight, slow_start_weight, slow_start_ms
    cdef double eviction_weight, adapter_load_ms, adapter_eviction_weight, kv_barrier_ms, kv_barrier_most_ms
    cdef double preempting_ms
    cdef bint use_wait, use_cache

    def __init__(self, parameters):
        self.own_decode_weight = parameters.own_decode_weight
        self.others_weight = parameters.others_weight
        self.fleet_share = parameters.fleet_share
        self.others_decode_weight = parameters.others_decode_weight
        self.slow_start_weight = parameters.slow_start_weight
        self.slow_start_ms = parameters.slow_start_ms
        self.eviction_weight = parameters.eviction_weight
        self.adapter_load_ms = parameters.adapter_load_ms
        self.adapter_eviction_weight = parameters.adapter_eviction_weight
        self.kv_barrier_ms = parameters.kv_barrier_ms
        self.kv_barrier_most_ms = parameters.kv_barrier_most_ms
        self.preempting_ms = parameters.preempting_ms
        self.use_wait = parameters.use_wait
        self.use_cache = parameters.use_cache


cdef class Columns:
    """A block and how many of its slots are in use."""

    cdef double[:, ::1] _block
    cdef Py_ssize_t _slots

    def __init__(self, double[:, ::1] block, Py_ssize_t slots):
        if block.shape[0] != ROW_COUNT or not 0 <= slots <= block.shape[1]:
            raise ValueError(
                f"a block has {int(ROW_COUNT)} rows and at least {slots} slots, "
                f"not ({block.shape[0]}, {block.shape[1]})"
            )
        self._block = block
        self._slots = slots

    cdef Py_ssize_t _checked(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < self._slots:
            raise IndexError(f"slot {slot} of {self._slots}")
        return slot

    # ── the account ──────────────────────────────────────────────────────────

    def enter(
        self,
        Py_ssize_t slot,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double prefill_ms,
        double now,
    ):
        """Books a request whose prefill is still to come; returns when its first token is predicted, ms."""
        self._checked(slot)
        cdef double first = larger(now, self._block[FREE_AT_MS, slot]) + prefill_ms
        self._block[FREE_AT_MS, slot] = first
        self._block[UNCACHED_TOKENS, slot] += uncached
        self._add(slot, 1.0, sequences, prompt, expected, uncached, first)
        return first

    def enter_decoding(
        self, Py_ssize_t slot, double sequences, double prompt, double expected, double uncached, double first_ms
    ):
        """Books a request whose first token was seen at `first_ms`."""
        self._add(self._checked(slot), 1.0, sequences, prompt, expected, uncached, first_ms)

    def leave(
        self,
        Py_ssize_t slot,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double first_ms,
        bint prefilling,
    ):
        """Takes a booking out, one of several."""
        self._checked(slot)
        if prefilling:
            self._block[UNCACHED_TOKENS, slot] -= uncached
        self._add(slot, -1.0, sequences, prompt, expected, uncached, first_ms)

    cdef void _add(
        self,
        Py_ssize_t slot,
        double sign,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double first_ms,
    ):
        self._block[REQUESTS, slot] += sign
        self._block[INFLIGHT, slot] += sign * sequences
        self._block[PROMPT_TOKENS, slot] += sign * (prompt * sequences)
        self._block[EXPECTED_TOKENS, slot] += sign * (expected * sequences)
        self._block[NEW_KV_TOKENS, slot] += sign * uncached
        self._block[STARTED_SUM_MS, slot] += sign * (first_ms * sequences)

    def leave_idle(self, Py_ssize_t slot, double now):
        """The last booking goes."""
        cdef Py_ssize_t row
        self._checked(slot)
        for row in range(FREE_AT_MS):
            self._block[row, slot] = 0.0
        self._block[FREE_AT_MS, slot] = smaller(self._block[FREE_AT_MS, slot], now)

    def batch(self, Py_ssize_t slot, double now):
        """(sequences, their context tokens) that run at an endpoint now, others' taken to be like ours."""
        self._checked(slot)
        cdef double own = self._block[INFLIGHT, slot], context = self._block[PROMPT_TOKENS, slot]
        cdef double sequences = own + self._block[FOREIGN, slot]
        if own > 0.0:
            context += generated_tokens(
                own, context, self._block[EXPECTED_TOKENS, slot], self._block[STARTED_SUM_MS, slot],
                self._block[STEP_MS, slot], self._block[SEQUENCE_MS, slot], self._block[CONTEXT_MS, slot], now,
            )
            context *= sequences / own
        return sequences, context

    def all_heard(self, double since):
        """True when every slot told its load at `since` or later."""
        cdef Py_ssize_t slot
        for slot in range(self._slots):
            if self._block[LOAD_MS, slot] < since:
                return False
        return True

    # ── the cost ─────────────────────────────────────────────────────────────

    def cost(
        self,
        Constants constants not None,
        double now,
        double prompt,
        double sequences,
        double output,
        double rest,
        target_ms,
        double hit_share,
        double pickers,
        const double[::1] cached not None,
        const double[::1] indexed not None,
        load,
        adapter,
        double[:, ::1] out not None,
    ):
        """Fills `out` (OUT_ROWS, slots) with terms, their sum and what is predicted; returns which terms matter, as
        bits.

        `load`: (foreign, other_kv) where some of it is old, else None. `adapter`: (resident mask, busy, loaded and
        all GPU slots), None without one. `target_ms`: of the request's own TTFT objective, None without one.
        """
        cdef Py_ssize_t slots = self._slots
        cdef const double[::1] foreign = None, other_kv = None, busy = None, loaded = None, limits = None
        cdef Py_buffer resident
        cdef double late_ms = constants.slow_start_ms if target_ms is None else 0.25 * <double> target_ms
        if cached.shape[0] != slots or indexed.shape[0] != slots:
            raise ValueError(f"arrays must have {slots} slots")
        if out.shape[0] != OUT_COUNT or out.shape[1] != slots:
            raise ValueError(f"out must have shape ({int(OUT_COUNT)}, {slots})")
        if load is not None:
            foreign, other_kv = load
            if foreign is None or other_kv is None or foreign.shape[0] != slots or other_kv.shape[0] != slots:
                raise ValueError(f"the load must have {slots} slots")
        if not slots:
            return 0
        if adapter is None:
            return self._cost(
                constants, now, prompt, sequences, output, rest, late_ms, hit_share, pickers, cached, indexed,
                foreign, other_kv, NULL, None, None, None, out,
            )
        mask, busy, loaded, limits = adapter
        if busy is None or loaded is None or limits is None or (
            busy.shape[0] != slots or loaded.shape[0] != slots or limits.shape[0] != slots
        ):
            raise ValueError(f"the adapter's arrays must have {slots} slots")
        borrow(mask, &resident, slots)
        try:
            return self._cost(
                constants, now, prompt, sequences, output, rest, late_ms, hit_share, pickers, cached, indexed,
                foreign, other_kv, <const uint8_t*> resident.buf, busy, loaded, limits, out,
            )
        finally:
            PyBuffer_Release(&resident)

    cdef int _cost(
        self,
        Constants c,
        double now,
        double prompt,
        double sequences,
        double output,
        double rest,
        double late_ms,
        double hit_share,
        double pickers,
        const double[::1] cached,
        const double[::1] indexed,
        const double[::1] foreign,
        const double[::1] other_kv,
        const uint8_t* resident,
        const double[::1] busy,
        const double[::1] loaded,
        const double[::1] limits,
        double[:, ::1] out,
    ) except -1:
        cdef Py_ssize_t slots = self._slots, s
        cdef const double* inflight = &self._block[INFLIGHT, 0]
        cdef const double* mean_weight = &self._block[MEAN_WEIGHT, 0]
        cdef const double* sequence_ms = &self._block[SEQUENCE_MS, 0]
        cdef const double* context_ms = &self._block[CONTEXT_MS, 0]
        cdef const double* prompt_tokens = &self._block[PROMPT_TOKENS, 0]
        cdef const double* max_sequences = &self._block[MAX_SEQUENCES, 0]
        cdef const double* step_ms = &self._block[STEP_MS, 0]
        cdef const double* interference = &self._block[INTERFERENCE, 0]
        cdef const double* cache_trust = &self._block[CACHE_TRUST, 0]
        cdef const double* token_ms = &self._block[TOKEN_MS, 0]
        cdef const double* token2_ms = &self._block[TOKEN2_MS, 0]
        cdef const double* token_budget = &self._block[TOKEN_BUDGET, 0]
        cdef const double* free_at_ms = &self._block[FREE_AT_MS, 0]
        cdef const double* half_chunk_ms = &self._block[HALF_CHUNK_MS, 0]
        cdef const double* kv_tokens = &self._block[KV_TOKENS, 0]
        cdef const double* new_kv_tokens = &self._block[NEW_KV_TOKENS, 0]
        cdef const double* queued = &self._block[QUEUED, 0]
        cdef const double* preempting_until_ms = &self._block[PREEMPTING_UNTIL_MS, 0]
        cdef const double* failure_ms = &self._block[FAILURE_MS, 0]
        cdef const double* started_sum_ms = &self._block[STARTED_SUM_MS, 0]
        cdef const double* expected_tokens = &self._block[EXPECTED_TOKENS, 0]
        cdef double* to_wait = &out[WAIT, 0]
        cdef double* to_prefill = &out[PREFILL, 0]
        cdef double* to_decode = &out[DECODE, 0]
        cdef double* to_delay_prefill = &out[DELAY_PREFILL, 0]
        cdef double* to_delay_decode = &out[DELAY_DECODE, 0]
        cdef double* to_step = &out[STEP, 0]
        cdef double* to_uncached = &out[UNCACHED, 0]
        cdef double* to_kv_peak = &out[KV_PEAK, 0]
        cdef double* to_admission = &out[ADMISSION, 0]
        cdef double* to_eviction = &out[EVICTION, 0]
        cdef double* to_adapter = &out[ADAPTER, 0]
        cdef double* to_slow_start = &out[SLOW_START, 0]
        cdef double* to_preempting = &out[PREEMPTING, 0]
        cdef double* to_failures = &out[FAILURES, 0]
        cdef double* to_first_wait = &out[FIRST_WAIT, 0]
        cdef double* to_adapter_ms = &out[ADAPTER_MS, 0]
        cdef double* to_total = &out[TOTAL, 0]
        cdef const double* others = &foreign[0] if foreign is not None else &self._block[FOREIGN, 0]
        cdef const double* held = &other_kv[0] if other_kv is not None else &self._block[OTHER_KV_TOKENS, 0]
        # Half of what others have is taken to be like our own, times the other pickers: already in `foreign` if given.
        cdef double like_ours = 0.5 * (pickers - 1.0) if pickers > 1.0 and foreign is None else 0.0
        cdef double theirs = 0.5 if like_ours > 0.0 else 1.0
        cdef double midway = prompt + 0.5 * output
        cdef double fleet = 0.0, slowed = c.others_decode_weight * sequences * smaller(output, rest)
        cdef double own_decode = c.own_decode_weight * output
        cdef double added_kv = sequences * output, evicted = c.eviction_weight * hit_share
        cdef double batch, strangers, each, generated, context, decoding, step_now, step, uncached, work, prefill, wait
        cdef double queue, in_use, capacity, peak, over, waits, fill, adapter_ms, late
        cdef int matter = 1 << WAIT | 1 << PREFILL | 1 << DECODE | 1 << DELAY_PREFILL | 1 << DELAY_DECODE

        for s in range(slots):
            strangers = theirs * others[s] + like_ours * inflight[s]
            fleet += (inflight[s] + strangers) * mean_weight[s]
        fleet *= c.fleet_share
        if resident != NULL:
            matter |= 1 << ADAPTER

        for s in range(slots):
            strangers = theirs * others[s] + like_ours * inflight[s]
            batch = inflight[s] + strangers
            each = sequence_ms[s] + context_ms[s] * midway
            generated = generated_tokens(
                inflight[s], prompt_tokens[s], expected_tokens[s], started_sum_ms[s],
                step_ms[s], sequence_ms[s], context_ms[s], now,
            )
            context = prompt_tokens[s] + generated + strangers * midway
            decoding = smaller(batch, max_sequences[s])
            step_now = step_ms[s] + sequence_ms[s] * decoding
            step_now += context_ms[s] * context
            step = (step_now + sequences * each) * interference[s]

            uncached = larger(prompt - (cached[s] * cache_trust[s] if c.use_cache else 0.0), 1.0)
            work = uncached * (token_ms[s] + token2_ms[s] * (2.0 * prompt - uncached))
            prefill = work + ceil(uncached / larger(token_budget[s] - batch, LEAST_CHUNK)) * step_now
            wait = smaller(0.5 * batch, 0.5) * step_now
            if c.use_wait:
                queue = larger(free_at_ms[s] - now, 0.0)
                wait += queue + smaller(queue, half_chunk_ms[s])
            to_wait[s] = wait
            to_prefill[s] = prefill
            to_decode[s] = own_decode * step
            to_delay_prefill[s] = c.others_weight * (fleet + (1.0 - c.fleet_share) * batch) * work
            to_delay_decode[s] = slowed * batch * each
            to_step[s] = step
            to_uncached[s] = uncached

            capacity = kv_tokens[s]
            in_use = new_kv_tokens[s] + larger(held[s], generated) + uncached
            peak = (in_use + (added_kv + (0.5 * rest) * batch)) / capacity
            over = batch + sequences - max_sequences[s]
            to_kv_peak[s] = to_admission[s] = to_eviction[s] = 0.0
            if peak > KV_ROOM:
                matter |= 1 << KV_PEAK
                to_kv_peak[s] = smaller(
                    c.kv_barrier_ms * (peak - KV_ROOM) / larger(1.05 - peak, 0.02), c.kv_barrier_most_ms
                )
                if in_use > 0.98 * capacity:
                    over = larger(over, queued[s] + 1.0)
            if over > 0.0:
                matter |= 1 << ADMISSION
                if batch > 0.0:
                    waits = over * rest * step / larger(decoding, 1.0)
                    wait += waits
                    to_admission[s] = 2.0 * waits
            fill = (indexed[s] + generated + uncached + output) / capacity
            if fill > CACHE_ROOM:
                matter |= 1 << EVICTION
                to_eviction[s] = (
                    smaller(10.0 * (fill - CACHE_ROOM), 1.0)
                    * (token_ms[s] * (evicted * uncached))
                    * (1.0 + c.others_weight * batch)
                )

            adapter_ms = 0.0
            to_adapter[s] = 0.0
            if resident != NULL and not resident[s]:
                adapter_ms = c.adapter_load_ms
                to_adapter[s] = adapter_ms * (
                    1.0 + (c.adapter_eviction_weight if loaded[s] >= limits[s] else 0.0) + batch
                )
                if busy[s] >= limits[s]:
                    to_adapter[s] += (busy[s] - limits[s] + 1.0) * output * step / larger(busy[s], 1.0)
            late = wait + prefill + adapter_ms - late_ms
            to_slow_start[s] = to_preempting[s] = 0.0
            if late > 0.0:
                matter |= 1 << SLOW_START
                to_slow_start[s] = c.slow_start_weight * late
            if preempting_until_ms[s] > now:
                matter |= 1 << PREEMPTING
                to_preempting[s] = c.preempting_ms
            to_failures[s] = failure_ms[s]
            if to_failures[s] > 0.0:
                matter |= 1 << FAILURES
            to_first_wait[s] = wait
            to_adapter_ms[s] = adapter_ms
            to_total[s] = (
                to_wait[s] + to_prefill[s] + to_decode[s] + to_delay_prefill[s] + to_delay_decode[s]
                + to_kv_peak[s] + to_admission[s] + to_eviction[s]
                + to_adapter[s] + to_slow_start[s] + to_preempting[s] + to_failures[s]
            )
        return matter

    def predicted(self, const double[:, ::1] out not None, Py_ssize_t slot):
        """(wait, prefill, adapter load, step, uncached tokens) of one slot, from what `cost` filled."""
        self._checked(slot)
        if out.shape[0] != OUT_COUNT:
            raise ValueError(f"out must have {int(OUT_COUNT)} rows")
        return out[FIRST_WAIT, slot], out[PREFILL, slot], out[ADAPTER_MS, slot], out[STEP, slot], out[UNCACHED, slot]

    def cheapest(self, const double[:, ::1] out not None, mask, double tie_ms):
        """(slot, ties): the candidate with the smallest sum, the first of `ties` that are at most `tie_ms` dearer.

        (-1, 0) where the mask has no candidate with a sum that is a number.
        """
        cdef Py_ssize_t s, best = -1, ties = 0
        cdef double least = INFINITY
        cdef Py_buffer candidates
        self._comparable(out)
        borrow(mask, &candidates, self._slots)
        cdef const uint8_t* wanted = <const uint8_t*> candidates.buf
        try:
            for s in range(self._slots):
                if wanted[s] and (out[TOTAL, s] < least or (best < 0 and out[TOTAL, s] <= least)):
                    best, least = s, out[TOTAL, s]
            if best < 0:
                return -1, 0
            for s in range(self._slots):
                if wanted[s] and out[TOTAL, s] <= least + tie_ms:
                    ties += 1
            return best, ties
        finally:
            PyBuffer_Release(&candidates)

    def tied(self, const double[:, ::1] out not None, mask, double tie_ms, Py_ssize_t best, Py_ssize_t number):
        """The slot of the tie with this number, from 0, of those that `cheapest` counted."""
        cdef Py_ssize_t s
        cdef Py_buffer candidates
        self._comparable(out)
        self._checked(best)
        cdef double most = out[TOTAL, best] + tie_ms
        borrow(mask, &candidates, self._slots)
        cdef const uint8_t* wanted = <const uint8_t*> candidates.buf
        try:
            for s in range(self._slots):
                if wanted[s] and out[TOTAL, s] <= most:
                    if number == 0:
                        return s
                    number -= 1
        finally:
            PyBuffer_Release(&candidates)
        raise IndexError("there are not so many ties")

    cdef int _comparable(self, const double[:, ::1] out) except -1:
        if out.shape[0] != OUT_COUNT or out.shape[1] != self._slots:
            raise ValueError(f"out must have shape ({int(OUT_COUNT)}, {self._slots})")
        return 0


cdef int borrow(mask, Py_buffer* buffer, Py_ssize_t slots) except -1:
    """The bytes of a mask, to be released."""
    PyObject_GetBuffer(mask, buffer, PyBUF_SIMPLE)
    if buffer.itemsize != 1 or buffer.len != slots:
        PyBuffer_Release(buffer)
        raise ValueError(f"a mask must have {slots} bytes")
    return 0
