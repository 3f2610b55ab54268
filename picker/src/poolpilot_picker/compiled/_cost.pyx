# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""What a request costs at every endpoint of a pool, and where it is least. Read by every decision.

Does what `CostModel` in `routing/cost_model.py` does, operation by operation; there are the reasons. Pointers are taken
only to rows of arrays whose shapes were checked, for loops over the slots in use.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint8_t

from poolpilot_picker.compiled._columns cimport *

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
"""Names of the first rows of what `Cost.fill` writes; the row after them is their sum."""
OUT_ROWS = int(OUT_COUNT)
TOTAL_ROW = int(TOTAL)

cdef double LEAST_CHUNK = 256.0
cdef double KV_ROOM = 0.9
cdef double CACHE_ROOM = 0.95


cdef class Cost:
    """A formula's constants, by the names of `CostParameters`, and the formula."""

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

    def fill(
        self,
        Columns columns not None,
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
        cdef Py_ssize_t slots = columns._slots
        cdef const double[::1] foreign = None, other_kv = None, busy = None, loaded = None, limits = None
        cdef Py_buffer resident
        cdef double late_ms = self.slow_start_ms if target_ms is None else 0.25 * <double> target_ms
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
            return self._fill(
                columns, now, prompt, sequences, output, rest, late_ms, hit_share, pickers, cached, indexed,
                foreign, other_kv, NULL, None, None, None, out,
            )
        mask, busy, loaded, limits = adapter
        if busy is None or loaded is None or limits is None or (
            busy.shape[0] != slots or loaded.shape[0] != slots or limits.shape[0] != slots
        ):
            raise ValueError(f"the adapter's arrays must have {slots} slots")
        borrow(mask, &resident, slots)
        try:
            return self._fill(
                columns, now, prompt, sequences, output, rest, late_ms, hit_share, pickers, cached, indexed,
                foreign, other_kv, <const uint8_t*> resident.buf, busy, loaded, limits, out,
            )
        finally:
            PyBuffer_Release(&resident)

    cdef int _fill(
        self,
        Columns columns,
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
        cdef Py_ssize_t slots = columns._slots, s
        cdef const double* inflight = &columns._block[INFLIGHT, 0]
        cdef const double* mean_weight = &columns._block[MEAN_WEIGHT, 0]
        cdef const double* sequence_ms = &columns._block[SEQUENCE_MS, 0]
        cdef const double* context_ms = &columns._block[CONTEXT_MS, 0]
        cdef const double* prompt_tokens = &columns._block[PROMPT_TOKENS, 0]
        cdef const double* max_sequences = &columns._block[MAX_SEQUENCES, 0]
        cdef const double* step_ms = &columns._block[STEP_MS, 0]
        cdef const double* interference = &columns._block[INTERFERENCE, 0]
        cdef const double* cache_trust = &columns._block[CACHE_TRUST, 0]
        cdef const double* token_ms = &columns._block[TOKEN_MS, 0]
        cdef const double* token2_ms = &columns._block[TOKEN2_MS, 0]
        cdef const double* token_budget = &columns._block[TOKEN_BUDGET, 0]
        cdef const double* free_at_ms = &columns._block[FREE_AT_MS, 0]
        cdef const double* half_chunk_ms = &columns._block[HALF_CHUNK_MS, 0]
        cdef const double* kv_tokens = &columns._block[KV_TOKENS, 0]
        cdef const double* new_kv_tokens = &columns._block[NEW_KV_TOKENS, 0]
        cdef const double* queued = &columns._block[QUEUED, 0]
        cdef const double* preempting_until_ms = &columns._block[PREEMPTING_UNTIL_MS, 0]
        cdef const double* failure_ms = &columns._block[FAILURE_MS, 0]
        cdef const double* started_sum_ms = &columns._block[STARTED_SUM_MS, 0]
        cdef const double* expected_tokens = &columns._block[EXPECTED_TOKENS, 0]
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
        cdef const double* others = &foreign[0] if foreign is not None else &columns._block[FOREIGN, 0]
        cdef const double* held = &other_kv[0] if other_kv is not None else &columns._block[OTHER_KV_TOKENS, 0]
        # Half of what others have is taken to be like our own, times the other pickers: already in `foreign` if given.
        cdef double like_ours = 0.5 * (pickers - 1.0) if pickers > 1.0 and foreign is None else 0.0
        cdef double theirs = 0.5 if like_ours > 0.0 else 1.0
        cdef double midway = prompt + 0.5 * output
        cdef double fleet = 0.0, slowed = self.others_decode_weight * sequences * smaller(output, rest)
        cdef double own_decode = self.own_decode_weight * output
        cdef double added_kv = sequences * output, evicted = self.eviction_weight * hit_share
        cdef double batch, strangers, each, generated, context, decoding, step_now, step, uncached, work, prefill, wait
        cdef double queue, in_use, capacity, peak, over, waits, fill, adapter_ms, late
        cdef int matter = 1 << WAIT | 1 << PREFILL | 1 << DECODE | 1 << DELAY_PREFILL | 1 << DELAY_DECODE

        for s in range(slots):
            strangers = theirs * others[s] + like_ours * inflight[s]
            fleet += (inflight[s] + strangers) * mean_weight[s]
        fleet *= self.fleet_share
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

            uncached = larger(prompt - (cached[s] * cache_trust[s] if self.use_cache else 0.0), 1.0)
            work = uncached * (token_ms[s] + token2_ms[s] * (2.0 * prompt - uncached))
            prefill = work + ceil(uncached / larger(token_budget[s] - batch, LEAST_CHUNK)) * step_now
            wait = smaller(0.5 * batch, 0.5) * step_now
            if self.use_wait:
                queue = larger(free_at_ms[s] - now, 0.0)
                wait += queue + smaller(queue, half_chunk_ms[s])
            to_wait[s] = wait
            to_prefill[s] = prefill
            to_decode[s] = own_decode * step
            to_delay_prefill[s] = self.others_weight * (fleet + (1.0 - self.fleet_share) * batch) * work
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
                    self.kv_barrier_ms * (peak - KV_ROOM) / larger(1.05 - peak, 0.02), self.kv_barrier_most_ms
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
                    * (1.0 + self.others_weight * batch)
                )

            adapter_ms = 0.0
            to_adapter[s] = 0.0
            if resident != NULL and not resident[s]:
                adapter_ms = self.adapter_load_ms
                to_adapter[s] = adapter_ms * (
                    1.0 + (self.adapter_eviction_weight if loaded[s] >= limits[s] else 0.0) + batch
                )
                if busy[s] >= limits[s]:
                    to_adapter[s] += (busy[s] - limits[s] + 1.0) * output * step / larger(busy[s], 1.0)
            late = wait + prefill + adapter_ms - late_ms
            to_slow_start[s] = to_preempting[s] = 0.0
            if late > 0.0:
                matter |= 1 << SLOW_START
                to_slow_start[s] = self.slow_start_weight * late
            if preempting_until_ms[s] > now:
                matter |= 1 << PREEMPTING
                to_preempting[s] = self.preempting_ms
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
        """(wait, prefill, adapter load, step, uncached tokens) of one slot, from what `fill` wrote."""
        checked(out)
        if not 0 <= slot < out.shape[1]:
            raise IndexError(f"slot {slot} of {out.shape[1]}")
        return out[FIRST_WAIT, slot], out[PREFILL, slot], out[ADAPTER_MS, slot], out[STEP, slot], out[UNCACHED, slot]

    def cheapest(self, const double[:, ::1] out not None, mask, double tie_ms):
        """(slot, ties): the candidate with the smallest sum, the first of `ties` that are at most `tie_ms` dearer.

        (-1, 0) where the mask has no candidate with a sum that is a number.
        """
        cdef Py_ssize_t s, best = -1, ties = 0
        cdef double least = INFINITY
        cdef Py_buffer candidates
        checked(out)
        borrow(mask, &candidates, out.shape[1])
        cdef const uint8_t* wanted = <const uint8_t*> candidates.buf
        try:
            for s in range(out.shape[1]):
                if wanted[s] and (out[TOTAL, s] < least or (best < 0 and out[TOTAL, s] <= least)):
                    best, least = s, out[TOTAL, s]
            if best < 0:
                return -1, 0
            for s in range(out.shape[1]):
                if wanted[s] and out[TOTAL, s] <= least + tie_ms:
                    ties += 1
            return best, ties
        finally:
            PyBuffer_Release(&candidates)

    def tied(self, const double[:, ::1] out not None, mask, double tie_ms, Py_ssize_t best, Py_ssize_t number):
        """The slot of the tie with this number, from 0, of those that `cheapest` counted."""
        cdef Py_ssize_t s
        cdef Py_buffer candidates
        checked(out)
        if not 0 <= best < out.shape[1]:
            raise IndexError(f"slot {best} of {out.shape[1]}")
        cdef double most = out[TOTAL, best] + tie_ms
        borrow(mask, &candidates, out.shape[1])
        cdef const uint8_t* wanted = <const uint8_t*> candidates.buf
        try:
            for s in range(out.shape[1]):
                if wanted[s] and out[TOTAL, s] <= most:
                    if number == 0:
                        return s
                    number -= 1
        finally:
            PyBuffer_Release(&candidates)
        raise IndexError("there are not so many ties")


cdef int checked(const double[:, ::1] out) except -1:
    if out.shape[0] != OUT_COUNT:
        raise ValueError(f"out must have {int(OUT_COUNT)} rows")
    return 0


cdef int borrow(mask, Py_buffer* buffer, Py_ssize_t slots) except -1:
    """The bytes of a mask, to be released."""
    PyObject_GetBuffer(mask, buffer, PyBUF_SIMPLE)
    if buffer.itemsize != 1 or buffer.len != slots:
        PyBuffer_Release(buffer)
        raise ValueError(f"a mask must have {slots} bytes")
    return 0
