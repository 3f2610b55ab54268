# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""Step times and their noise in C: the same numbers, to the last bit, as the reference in `engine/model/accelerator`.

Asked once or twice for every step of every engine: after the batch itself, most of what a simulated step costs.
"""

from libc.math cimport INFINITY, ceil, cos, exp, log, log2, sin, sqrt
from libc.stdlib cimport free, malloc

from math import tau
from random import Random

from poolpilot_lab.engine.model.accelerator import CLIP, Variation

cdef double _TAU = tau
cdef double _CLIP = CLIP
cdef dict _grids = {}


cdef double* _copied(values) except NULL:
    cdef Py_ssize_t position
    cdef double* made = <double*>malloc(max(1, len(values)) * sizeof(double))
    if made == NULL:
        raise MemoryError
    for position in range(len(values)):
        made[position] = values[position]
    return made


cdef Py_ssize_t _between(const double* grid, Py_ssize_t count, double value, double* share) noexcept:
    """As `step_tables._between`."""
    cdef Py_ssize_t low = 0, high = count, middle
    share[0] = 0.0
    if value <= grid[0]:
        return 0
    if value >= grid[count - 1]:
        share[0] = 1.0
        return count - 2
    while low < high:
        middle = (low + high) >> 1
        if value < grid[middle]:
            high = middle
        else:
            low = middle + 1
    low -= 1
    share[0] = (value - grid[low]) / (grid[low + 1] - grid[low])
    return low


cdef class Grid:
    """As `step_tables.StepTable`."""

    def __cinit__(self, table):
        decode = table.decode_ratios
        self.batches, self.contexts, self.tokens = len(table.batches), len(table.contexts), len(table.log_tokens)
        if min(self.batches, self.contexts, self.tokens) < 2:
            raise ValueError("a step table needs two points in every direction")
        self.batch_marks = _copied(table.batches)
        self.context_marks = _copied(table.contexts)
        self.decode_ratios = _copied([ratio for row in decode for ratio in row])
        self.token_marks = _copied(table.log_tokens)
        self.prefill_ratios = _copied(table.prefill_ratios)

    def __dealloc__(self):
        free(self.batch_marks)
        free(self.context_marks)
        free(self.decode_ratios)
        free(self.token_marks)
        free(self.prefill_ratios)

    cdef double decode(self, long sequences, long context_tokens) noexcept:
        cdef double share_b, share_c, each
        cdef long batch = max(1, sequences)
        cdef Py_ssize_t b, c
        cdef const double* low
        cdef const double* high
        b = _between(self.batch_marks, self.batches, log2(<double>batch), &share_b)
        each = <double>context_tokens / <double>batch
        c = _between(self.context_marks, self.contexts, log2(each if each > 1.0 else 1.0), &share_c)
        low = self.decode_ratios + b * self.contexts + c
        high = low + self.contexts
        return (1.0 - share_b) * (low[0] + share_c * (low[1] - low[0])) + share_b * (
            high[0] + share_c * (high[1] - high[0])
        )

    cdef double prefill(self, long tokens) noexcept:
        cdef double share
        cdef Py_ssize_t n = _between(self.token_marks, self.tokens, log2(<double>max(1, tokens)), &share)
        return self.prefill_ratios[n] + share * (self.prefill_ratios[n + 1] - self.prefill_ratios[n])


cdef Grid _grid_of(table):
    """One copy of each table in a process."""
    if table is None:
        return None
    grid = _grids.get(table)
    if grid is None:
        grid = _grids[table] = Grid(table)
    return grid


cdef class Accelerator:
    """As `model.accelerator.Accelerator`."""

    def __init__(self, profile, variation=None, seed=0, table=None):
        self.profile, self.table = profile, table
        self._grid = _grid_of(table)
        self.ranks = 1
        self.slow = 1.0
        self._decode_a, self._decode_b = profile.decode_a_ms, profile.decode_b_ms
        self._decode_c, self._prefill_b = profile.decode_c_ms, profile.prefill_b_ms
        self._prefill_c = profile.prefill_c_ms
        self._step_overhead, self._sequence_overhead = profile.step_overhead_ms, profile.sequence_overhead_ms
        self._variation = Variation() if variation is None else variation
        self._step_noise = self._variation.step_noise
        self._random = Random(seed)
        self._draw = self._random.random
        self.prefill_factor = self._draw_factor()
        self.decode_factor = self._draw_factor()
        self._next_stall = self._draw_gap(0.0)

    def calm(self):
        """The same without noise and stalls."""
        cdef Accelerator other = Accelerator(self.profile, table=self.table)
        other.prefill_factor, other.decode_factor = self.prefill_factor, self.decode_factor
        other.slow, other.ranks = self.slow, self.ranks
        return other

    cdef double gauss(self) except? -1.0:
        """`Random.gauss(0, 1)`, from the same draws."""
        cdef double angle, radius
        if self._gauss_held:
            self._gauss_held = False
            return self._gauss_next
        angle = <double>self._draw() * _TAU
        radius = sqrt(-2.0 * log(1.0 - <double>self._draw()))
        self._gauss_next = sin(angle) * radius
        self._gauss_held = True
        return cos(angle) * radius

    def _draw_factor(self):
        cdef double normal = self.gauss()
        return exp(<double>self._variation.sigma * max(-_CLIP, min(_CLIP, normal)))

    def _draw_gap(self, double now):
        if self._variation.stall_every_ms <= 0:
            return INFINITY
        return now + self._random.expovariate(1.0 / self._variation.stall_every_ms)

    def noise(self, long steps):
        """Factor of one step, or of the sum of `steps` steps, mean one."""
        return self.noise_of(steps)

    cdef double noise_of(self, long steps) except? -1.0:
        cdef double sigma = self._step_noise
        if sigma <= 0.0:
            return self.slow
        sigma /= sqrt(<double>steps)
        return self.slow * exp(0.0 + self.gauss() * sigma - sigma * sigma / 2)

    def stall(self, double now):
        """Milliseconds by which a step that begins at `now` is held up; draws the next stall when one is due."""
        return self.stall_of(now)

    cdef double stall_of(self, double now) except? -1.0:
        if now < self._next_stall:
            return 0.0
        self._next_stall = self._draw_gap(now)
        stall_ms = self._variation.stall_ms
        return self._random.expovariate(1.0 / stall_ms) if stall_ms > 0 else 0.0

    def step_ms(self, long sequences, long context_tokens, long chunks, long tokens, long attention):
        """Duration of a step without noise: arguments as in `step_time`."""
        return self.step_of(sequences, context_tokens, chunks, tokens, attention)

    cdef double step_of(self, long sequences, long context, long chunks, long tokens, long attention) noexcept:
        cdef double duration = self.decode_of(sequences, context, chunks)
        return duration + self.prefill_of(tokens, attention) if tokens else duration

    def decode_ms(self, long sequences, long context_tokens, long chunks):
        """Of a step, without noise: all but its prefill tokens."""
        return self.decode_of(sequences, context_tokens, chunks)

    cdef double decode_of(self, long sequences, long context, long chunks) noexcept:
        cdef double mean, alone
        cdef long most
        if self.ranks > 1 and sequences:
            mean = <double>sequences / <double>self.ranks
            most = min(sequences, <long>ceil(mean + sqrt(mean)))
            context = context * most // sequences
            sequences = most
        alone = self._decode_a + self._decode_b * sequences + self._decode_c * context
        if self._grid is not None:
            alone *= self._grid.decode(sequences, context)
        return self.decode_factor * (alone + (self._step_overhead + self._sequence_overhead * (sequences + chunks)))

    def prefill_ms(self, long tokens, long attention):
        """Of a step, without noise: what its prefill tokens add."""
        return self.prefill_of(tokens, attention)

    cdef double prefill_of(self, long tokens, long attention) noexcept:
        cdef double part = self.prefill_factor * (self._prefill_b * tokens + self._prefill_c * attention)
        return part if self._grid is None else part * self._grid.prefill(tokens)

    def growth_ms(self, long sequences, long context_tokens, long steps):
        """By how much each step of a pure decode run of `steps` steps is longer than the one before it, in the mean."""
        return self.growth_of(sequences, context_tokens, steps)

    cdef double growth_of(self, long sequences, long context, long steps) noexcept:
        cdef double later
        if self._grid is None:
            return self.decode_factor * self._decode_c * sequences
        later = self.decode_of(sequences, context + (steps - 1) * sequences, 0)
        return (later - self.decode_of(sequences, context, 0)) / (steps - 1)
