# cython: language_level=3, boundscheck=True, nonecheck=True, wraparound=False, cdivision=True, embedsignature=True
"""What a request costs at every endpoint of a pool, and where it is least. Read by every decision.

Does what `CostModel` in `routing/cost_model.py` does, operation by operation; there are the reasons. Pointers are taken
only to arrays whose types and lengths were checked, for loops over the slots in use.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

import numpy as np

from poolpilot_picker.compiled._columns cimport *

cdef enum:
    WAIT, PREFILL, DECODE, DELAY_PREFILL, KV_PEAK, ADMISSION, EVICTION, ADAPTER, ADAPTER_SLOT, SLOW_START
    FAILURES
    TERM_COUNT
    TOTAL = TERM_COUNT
    FIRST_WAIT, ADAPTER_MS, SLOT_MS, STEP, UNCACHED
    OTHERS, HELD
    OUT_COUNT
    MOST_ARRAYS = 11

TERMS = (
    "wait", "prefill", "decode", "delay_prefill", "kv_peak", "admission", "eviction", "adapter", "adapter_slot",
    "slow_start", "failures",
)
"""Names of the first rows of `Priced`; the row after them is their sum."""

cdef double LEAST_CHUNK = 256.0
cdef double KV_ROOM = 0.9
cdef double MOST_BACKLOG = 20.0
cdef double CACHE_ROOM = 0.95
cdef double TIE_MS = 1e-9


cdef struct Arrays:
    Py_buffer held[MOST_ARRAYS]
    int count


cdef class Priced:
    """What one request costs at every slot. Its rows lie in memory of its own, shape (OUT_COUNT, slots)."""

    cdef double* _rows
    cdef Py_ssize_t _slots
    cdef int _matter
    cdef double _output
    cdef object _forecast

    def __init__(self):
        raise TypeError("made by Cost.price")

    def __dealloc__(self):
        free(self._rows)

    cdef int _make(self, Py_ssize_t slots, forecast, double output) except -1:
        self._rows = <double*> malloc(OUT_COUNT * (slots + 1) * sizeof(double))
        if self._rows == NULL:
            raise MemoryError
        self._slots, self._forecast, self._output = slots, forecast, output
        return 0

    cdef inline double* _row(self, Py_ssize_t row) noexcept:
        return self._rows + row * self._slots

    cdef Py_ssize_t _checked(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < self._slots:
            raise IndexError(f"slot {slot} of {self._slots}")
        return slot

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._rows, (TERM_COUNT + 1) * self._slots * sizeof(double), 1, flags)

    @property
    def terms(self):
        """Name → ms, one element per slot; a term that is not listed is 0 everywhere."""
        rows = self._array()
        return {name: rows[row] for row, name in enumerate(TERMS) if self._matter >> row & 1}

    @property
    def total(self):
        """The sum of the terms, one element per slot."""
        return self._array()[TOTAL]

    cdef _array(self):
        return np.frombuffer(self).reshape(TERM_COUNT + 1, self._slots) if self._slots else np.zeros((TERM_COUNT + 1, 0))

    def forecast(self, Py_ssize_t slot):
        """What is predicted for the request on one endpoint."""
        self._checked(slot)
        return self._forecast(
            self._row(FIRST_WAIT)[slot], self._row(PREFILL)[slot], self._row(ADAPTER_MS)[slot], self._row(STEP)[slot],
            self._output, self._row(UNCACHED)[slot], self._row(SLOT_MS)[slot],
        )

    def cheapest(self, mask, rng):
        """The slot of the smallest cost among the candidates, ties at random; -1 where the mask has no candidate whose
        cost is a number."""
        cdef Py_ssize_t s, best = -1, ties = 0, number
        cdef double least = INFINITY
        cdef const double* total = self._row(TOTAL)
        cdef Arrays arrays
        cdef const uint8_t* wanted
        arrays.count = 0
        try:
            wanted = flags(&arrays, mask, self._slots)
            for s in range(self._slots):
                if wanted[s] and (total[s] < least or (best < 0 and total[s] <= least)):
                    best, least = s, total[s]
            if best < 0:
                return -1
            least += TIE_MS
            for s in range(self._slots):
                if wanted[s] and total[s] <= least:
                    ties += 1
            if ties > 1:
                number = rng.randrange(ties)
                for s in range(self._slots):
                    if wanted[s] and total[s] <= least:
                        if number == 0:
                            return s
                        number -= 1
            return best
        finally:
            give_back(&arrays)


cdef class Cost:
    """A formula's constants, by the names of `CostParameters`, and the formula."""

    cdef double own_decode_weight, decode_horizon, others_weight, fleet_share, slow_start_weight, slow_start_ms
    cdef double eviction_weight, adapter_load_ms, adapter_eviction_weight, kv_barrier_ms, kv_barrier_most_ms
    cdef double wait_weight, hit_wait_weight, adapter_slot_weight, backlog_ms
    cdef bint use_wait, use_cache
    cdef object forecast

    def __init__(self, parameters):
        # Not above: who imports this module is imported by that one.
        from poolpilot_picker.routing.decision import Forecast

        self.forecast = Forecast
        self.own_decode_weight = parameters.own_decode_weight
        self.decode_horizon = parameters.decode_horizon
        self.others_weight = parameters.others_weight
        self.backlog_ms = parameters.backlog_ms
        self.fleet_share = parameters.fleet_share
        self.slow_start_weight = parameters.slow_start_weight
        self.slow_start_ms = parameters.slow_start_ms
        self.eviction_weight = parameters.eviction_weight
        self.adapter_load_ms = parameters.adapter_load_ms
        self.adapter_eviction_weight = parameters.adapter_eviction_weight
        self.kv_barrier_ms = parameters.kv_barrier_ms
        self.kv_barrier_most_ms = parameters.kv_barrier_most_ms
        self.wait_weight = parameters.wait_weight
        self.hit_wait_weight = smaller(parameters.hit_wait_weight, parameters.wait_weight)
        self.adapter_slot_weight = parameters.adapter_slot_weight
        self.use_wait = parameters.use_wait
        self.use_cache = parameters.use_cache

    def price(
        self,
        Columns columns not None,
        double now,
        double prompt,
        double sequences,
        double output,
        double rest,
        target_ms,
        double hit_share,
        double stale_after_ms,
        mask,
        cached,
        indexed,
        adapter,
        lent,
        reuse,
    ):
        """The terms, their sum and what is predicted, for every slot: a `Priced`.

        `mask`: the candidates. `adapter`: (resident mask, answers
        until a GPU slot is free, requests that wait for each slot where it takes one more, loaded and all GPU slots, its home and how likely it is warm there), None without one. `target_ms`: of the request's own TTFT objective, None without one.
        """
        cdef Py_ssize_t slots = columns._slots
        cdef Priced priced = Priced.__new__(Priced)
        cdef double late_ms = self.slow_start_ms if target_ms is None else 0.25 * <double> target_ms
        cdef Arrays arrays
        cdef const double* foreign = NULL
        cdef const double* other_kv = NULL
        cdef const double* of_cached
        cdef const double* of_indexed
        cdef const double* until_slot = NULL
        cdef const double* taken_slot = NULL
        cdef const double* of_lent = NULL
        cdef const double* of_reuse = NULL
        cdef const double* loaded = NULL
        cdef const double* limits = NULL
        cdef const uint8_t* candidates
        cdef const uint8_t* resident = NULL
        cdef Py_ssize_t home = -1
        cdef double hope = 0.0
        priced._make(slots, self.forecast, output)
        arrays.count = 0
        try:
            of_cached, of_indexed = floats(&arrays, cached, slots), floats(&arrays, indexed, slots)
            candidates = flags(&arrays, mask, slots)
            if adapter is not None:
                there, one, two, other, all_slots, home, hope = adapter
                until_slot, loaded = floats(&arrays, one, slots), floats(&arrays, other, slots)
                taken_slot = floats(&arrays, two, slots)
                limits, resident = floats(&arrays, all_slots, slots), flags(&arrays, there, slots)
            if lent is not None:
                of_lent = floats(&arrays, lent, slots)
            if reuse is not None:
                of_reuse = floats(&arrays, reuse, slots)
            if not slots:
                return priced
            if not columns._alone(now - 0.5 * stale_after_ms):
                columns._estimate(now, stale_after_ms, True, priced._row(OTHERS), priced._row(HELD), NULL)
                foreign, other_kv = priced._row(OTHERS), priced._row(HELD)
            priced._matter = self._fill(
                columns, now, prompt, sequences, output, rest, late_ms, hit_share, candidates, of_cached, of_indexed,
                foreign, other_kv, resident, until_slot, taken_slot, loaded, limits, home, hope, of_lent, of_reuse, priced,
            )
            return priced
        finally:
            give_back(&arrays)

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
        const uint8_t* candidates,
        const double* cached,
        const double* indexed,
        const double* foreign,
        const double* other_kv,
        const uint8_t* resident,
        const double* until_slot,
        const double* taken_slot,
        const double* loaded,
        const double* limits,
        Py_ssize_t home,
        double hope,
        const double* lent,
        const double* reuse,
        Priced out,
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
        cdef const double* failure_ms = &columns._block[FAILURE_MS, 0]
        cdef const double* started_sum_ms = &columns._block[STARTED_SUM_MS, 0]
        cdef const double* expected_tokens = &columns._block[EXPECTED_TOKENS, 0]
        cdef double* to_wait = out._row(WAIT)
        cdef double* to_prefill = out._row(PREFILL)
        cdef double* to_decode = out._row(DECODE)
        cdef double* to_delay_prefill = out._row(DELAY_PREFILL)
        cdef double* to_step = out._row(STEP)
        cdef double* to_uncached = out._row(UNCACHED)
        cdef double* to_kv_peak = out._row(KV_PEAK)
        cdef double* to_admission = out._row(ADMISSION)
        cdef double* to_eviction = out._row(EVICTION)
        cdef double* to_adapter = out._row(ADAPTER)
        cdef double* to_slow_start = out._row(SLOW_START)
        cdef double* to_failures = out._row(FAILURES)
        cdef double* to_first_wait = out._row(FIRST_WAIT)
        cdef double* to_adapter_ms = out._row(ADAPTER_MS)
        cdef double* to_slot_ms = out._row(SLOT_MS)
        cdef double* to_adapter_slot = out._row(ADAPTER_SLOT)
        cdef double* to_total = out._row(TOTAL)
        cdef const double* others = foreign if foreign != NULL else &columns._block[FOREIGN, 0]
        cdef const double* held = other_kv if other_kv != NULL else &columns._block[OTHER_KV_TOKENS, 0]
        cdef double midway = prompt + 0.5 * output
        cdef double mean, soon, fleet = 0.0, taken = self.adapter_slot_weight * output
        cdef double token_mean = 0.0, token2_mean = 0.0, again
        cdef double least = MOST_BACKLOG * self.backlog_ms, others_weight
        cdef double counted = output * (self.decode_horizon / (self.decode_horizon + output))
        cdef double own_decode = self.own_decode_weight * counted
        cdef double added_kv = sequences * output, evicted = self.eviction_weight * hit_share
        cdef double batch, strangers, each, generated, context, decoding, step_now, step, uncached, work, prefill, wait
        cdef double most = 1.0, made_up, queue, in_use, capacity, peak, over, waits, fill, adapter_ms, slot_ms, late
        cdef int matter = 1 << WAIT | 1 << PREFILL | 1 << DECODE | 1 << DELAY_PREFILL

        for s in range(slots):
            strangers = others[s]
            fleet += (inflight[s] + strangers) * mean_weight[s]
            token_mean += token_ms[s] * mean_weight[s]
            token2_mean += token2_ms[s] * mean_weight[s]
            if mean_weight[s] > 0.0:
                most = larger(most, prompt - (cached[s] * cache_trust[s] if self.use_cache else 0.0))
            if candidates[s]:
                least = smaller(least, larger(free_at_ms[s] - now, 0.0))
        others_weight = self.others_weight * (1.0 + least / self.backlog_ms)
        mean = fleet
        fleet *= self.fleet_share
        if resident != NULL:
            matter |= 1 << ADAPTER | 1 << ADAPTER_SLOT

        for s in range(slots):
            strangers = others[s]
            batch = inflight[s] + strangers
            each = sequence_ms[s] + context_ms[s] * midway
            generated = generated_tokens(
                inflight[s], prompt_tokens[s], expected_tokens[s], started_sum_ms[s],
                step_ms[s], sequence_ms[s], context_ms[s], now,
            )
            context = prompt_tokens[s] + generated + strangers * midway
            soon = batch if lent == NULL else larger(batch, lent[s] * mean)
            decoding = smaller(batch, max_sequences[s])
            step_now = step_ms[s] + sequence_ms[s] * decoding
            step_now += context_ms[s] * context
            step = (step_now + (sequences + (soon - batch)) * each) * interference[s]

            uncached = larger(prompt - (cached[s] * cache_trust[s] if self.use_cache else 0.0), 1.0)
            work = uncached * (token_ms[s] + token2_ms[s] * (2.0 * prompt - uncached))
            prefill = work + ceil(uncached / larger(token_budget[s] - batch, LEAST_CHUNK)) * step_now
            wait = smaller(0.5 * batch, 0.5) * step_now
            if self.use_wait:
                queue = larger(free_at_ms[s] - now, 0.0)
                wait += queue + smaller(queue, half_chunk_ms[s])
            made_up = (most - uncached) * (token_ms[s] + token2_ms[s] * (2.0 * prompt - most - uncached))
            made_up = smaller(wait, larger(made_up, 0.0))
            to_wait[s] = self.wait_weight * (wait - made_up) + self.hit_wait_weight * made_up
            to_prefill[s] = prefill
            to_decode[s] = own_decode * step
            to_delay_prefill[s] = others_weight * (fleet + (1.0 - self.fleet_share) * soon) * work
            to_step[s] = step
            to_uncached[s] = uncached

            capacity = kv_tokens[s]
            in_use = new_kv_tokens[s] + (held[s] if held[s] > 0.0 else generated) + uncached
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
                again = uncached * (token_mean + token2_mean * (2.0 * prompt - uncached))
                to_eviction[s] = (
                    smaller(10.0 * (fill - CACHE_ROOM), 1.0)
                    * (evicted if reuse == NULL else evicted * reuse[s])
                    * (
                        again * (1.0 + others_weight * mean)
                        + self.slow_start_weight * larger(again - self.slow_start_ms, 0.0)
                    )
                )

            adapter_ms = 0.0
            to_adapter[s] = 0.0
            if resident != NULL and not resident[s]:
                adapter_ms = self.adapter_load_ms * (1.0 - hope) if s == home else self.adapter_load_ms
                to_adapter[s] = adapter_ms * (
                    1.0 + (self.adapter_eviction_weight if loaded[s] >= limits[s] else 0.0) + batch
                )
            slot_ms = to_adapter_slot[s] = 0.0
            if resident != NULL:
                slot_ms = until_slot[s] * rest * step
                to_adapter_slot[s] = slot_ms + taken * taken_slot[s] * step
            late = wait + prefill + adapter_ms + slot_ms - late_ms
            to_slow_start[s] = 0.0
            if late > 0.0:
                matter |= 1 << SLOW_START
                to_slow_start[s] = self.slow_start_weight * late
            to_failures[s] = failure_ms[s]
            if to_failures[s] > 0.0:
                matter |= 1 << FAILURES
            to_first_wait[s] = wait
            to_adapter_ms[s] = adapter_ms
            to_slot_ms[s] = slot_ms
            to_total[s] = (
                to_wait[s] + to_prefill[s] + to_decode[s] + to_delay_prefill[s]
                + to_kv_peak[s] + to_admission[s] + to_eviction[s]
                + to_adapter[s] + to_adapter_slot[s] + to_slow_start[s] + to_failures[s]
            )
        return matter


cdef const double* floats(Arrays* arrays, array, Py_ssize_t slots) except? NULL:
    """The numbers of an array of so many, to be given back."""
    cdef Py_buffer* buffer = &arrays.held[arrays.count]
    PyObject_GetBuffer(array, buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    arrays.count += 1
    if buffer.ndim != 1 or buffer.itemsize != 8 or buffer.format == NULL or buffer.format[0] != b"d":
        raise ValueError("an array must be of float64 and have one dimension")
    if buffer.len != slots * 8:
        raise ValueError(f"arrays must have {slots} slots")
    return <const double*> buffer.buf


cdef const uint8_t* flags(Arrays* arrays, mask, Py_ssize_t slots) except? NULL:
    """The bytes of a mask of so many, to be given back."""
    cdef Py_buffer* buffer = &arrays.held[arrays.count]
    PyObject_GetBuffer(mask, buffer, PyBUF_SIMPLE)
    arrays.count += 1
    if buffer.itemsize != 1 or buffer.len != slots:
        raise ValueError(f"a mask must have {slots} bytes")
    return <const uint8_t*> buffer.buf


cdef void give_back(Arrays* arrays) noexcept:
    while arrays.count:
        arrays.count -= 1
        PyBuffer_Release(&arrays.held[arrays.count])
