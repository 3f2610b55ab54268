"""Declares the accelerator to the engine."""

cdef class Grid:
    cdef Py_ssize_t batches, contexts, tokens
    cdef double* batch_marks
    cdef double* context_marks
    cdef double* decode_ratios
    cdef double* token_marks
    cdef double* prefill_ratios

    cdef double decode(self, long sequences, long context_tokens) noexcept
    cdef double prefill(self, long tokens) noexcept


cdef class Accelerator:
    cdef readonly object profile, table
    cdef public long ranks
    cdef public double slow, prefill_factor, decode_factor
    cdef object _variation, _random, _draw
    cdef Grid _grid
    cdef double _decode_a, _decode_b, _decode_c, _prefill_b, _prefill_c, _step_overhead, _sequence_overhead
    cdef double _step_noise, _next_stall, _gauss_next
    cdef bint _gauss_held

    cdef double gauss(self) except? -1.0
    cdef double noise_of(self, long steps) except? -1.0
    cdef double stall_of(self, double now) except? -1.0
    cdef double step_of(self, long sequences, long context, long chunks, long tokens, long attention) noexcept
    cdef double decode_of(self, long sequences, long context, long chunks) noexcept
    cdef double prefill_of(self, long tokens, long attention) noexcept
    cdef double growth_of(self, long sequences, long context, long steps) noexcept
