"""Declarations of `_columns.pyx`: the rows of a block, for the account and for the cost."""

from libc.stdint cimport uint8_t

cdef enum:
    INFLIGHT, REQUESTS, PROMPT_TOKENS, EXPECTED_TOKENS, UNCACHED_TOKENS, NEW_KV_TOKENS, STARTED_SUM_MS, FREE_AT_MS
    SAMPLE_MS, LOAD_MS, RUNNING, WAITING, QUEUED, KV_USAGE, KV_CAPACITY, FOREIGN, FOREIGN_MEAN, OWN_MEAN
    OTHER_KV_TOKENS, PREEMPTING_UNTIL_MS
    KV_TOKENS, MAX_SEQUENCES
    TOKEN_BUDGET, STEP_MS, SEQUENCE_MS, CONTEXT_MS, TOKEN_MS, TOKEN2_MS, HALF_CHUNK_MS
    PREFILL_SPEED, DECODE_SPEED, PREFILL_SHARE, INTERFERENCE, FAILURE_MS, CACHE_TRUST
    MEAN_WEIGHT
    ROW_COUNT


cdef class Clock:
    cdef public double since_ms, at_ms, step_sum, step_weight
    cdef double step_ms, sequence_ms, context_ms, max_sequences

    cdef void _advance(self, double now, double sequences, double context) noexcept


cdef class Columns:
    cdef double[:, ::1] _block
    cdef Py_ssize_t _slots

    cdef Py_ssize_t _checked(self, Py_ssize_t slot) except -1
    cdef int _sum_up(self, list accounts) except -1
    cdef int _sum_up_slot(self, list accounts, Py_ssize_t slot) except -1
    cdef double _batch(self, Py_ssize_t slot, double now, double* of_context) noexcept
    cdef bint _alone(self, double since) noexcept
    cdef int _estimate(
        self, double now, double stale_after_ms, bint expected, double* foreign, double* other_kv, uint8_t* unknown
    ) except -1
    cdef void _tell_foreign(self, Py_ssize_t slot, double foreign, double own, double taken) noexcept
    cdef void _tell_usage(self, Py_ssize_t slot, double usage) noexcept
    cdef void _add(
        self,
        Py_ssize_t slot,
        double sign,
        double sequences,
        double prompt,
        double expected,
        double uncached,
        double first_ms,
    )


cdef inline double larger(double one, double other) noexcept nogil:
    return one if one > other else other


cdef inline double smaller(double one, double other) noexcept nogil:
    return one if one < other else other


cdef inline double selected(double* numbers, Py_ssize_t count, Py_ssize_t wanted) noexcept nogil:
    """The one that would stand at `wanted` if they were sorted; none is NaN. Leaves none larger before it. Hoare's
    selection."""
    cdef Py_ssize_t low = 0, high = count - 1, left, right
    cdef double pivot
    while low < high:
        pivot = numbers[low + (high - low) // 2]
        left, right = low, high
        while left <= right:
            while numbers[left] < pivot:
                left += 1
            while numbers[right] > pivot:
                right -= 1
            if left <= right:
                numbers[left], numbers[right] = numbers[right], numbers[left]
                left += 1
                right -= 1
        if wanted <= right:
            high = right
        elif wanted >= left:
            low = left
        else:
            break
    return numbers[wanted]


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
