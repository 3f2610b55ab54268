# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The readings of a simulated fleet in C: as `sim.telemetry.Scrapes`, which says what each method does."""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc

from poolpilot_picker.state.samples import EngineSample


cdef class _Reading:
    cdef double arrives, taken, running, waiting, usage, preemptions
    cdef Py_ssize_t index
    cdef bint kept
    cdef object whole


cdef class Scrapes:
    """As `sim.telemetry.Scrapes`."""

    cdef readonly double next_ms, due_ms
    cdef list _engines, _told, _gauges, _tokens_per_step, _there, _pending
    cdef object _draw, _read_all, _adapters
    cdef Py_ssize_t _count, _endpoints, _next, _whole_pending
    cdef double* _at
    cdef double* _everything_at
    cdef double _scrape_ms, _delay_ms, _everything_ms, _idle_factor, _low, _spread
    cdef bint _latest, _loras

    def __cinit__(
        self, list engines, list tokens_per_step, list there, first, cadence, bint latest, draw, read, adapters
    ):
        cdef Py_ssize_t index
        cdef double low = 1.0 - <double>cadence.jitter
        self._engines, self._tokens_per_step, self._there, self._draw = engines, tokens_per_step, there, draw
        self._told = [engine.telemetry for engine in engines]
        self._gauges = [told.gauges for told in self._told]
        self._read_all, self._adapters, self._latest = read, adapters, latest
        self._scrape_ms, self._delay_ms = cadence.scrape_ms, cadence.delay_ms
        self._everything_ms = (1.0 - <double>cadence.jitter) * max(cadence.everything_ms, cadence.scrape_ms)
        self._idle_factor = cadence.idle_factor
        self._low, self._spread = low, 1.0 + <double>cadence.jitter - low
        self._loras = adapters is not None
        self._endpoints, self._count = len(engines), len(first)
        self._at = <double*>malloc((self._count + 1) * sizeof(double))
        self._everything_at = <double*>malloc((self._count + 1) * sizeof(double))
        if self._at == NULL or self._everything_at == NULL:
            raise MemoryError
        for index in range(self._count):
            self._at[index] = first[index]
            self._everything_at[index] = 0.0
        self._pending = []
        self.due_ms = INFINITY
        self._find_next()

    def __dealloc__(self):
        free(self._at)
        free(self._everything_at)

    @property
    def whole_pending(self):
        """As `sim.telemetry.Scrapes.whole_pending`."""
        return self._whole_pending > 0

    cdef void _find_next(self) noexcept:
        cdef Py_ssize_t index
        self._next, self.next_ms = 0, INFINITY
        for index in range(self._count):
            if self._at[index] < self.next_ms:
                self._next, self.next_ms = index, self._at[index]

    cpdef advance(self, double now):
        """Reads all that is to be read until `now`."""
        cdef Py_ssize_t index, endpoint
        cdef double pause, at
        while self.next_ms <= now:
            index, at, pause = self._next, self.next_ms, self._scrape_ms
            endpoint = index % self._endpoints
            if self._there[endpoint]:
                self._read(index, endpoint, at)
                if self._idle_factor != 1.0 and not self._engines[endpoint].in_flight:
                    pause *= self._idle_factor
            # As `Random.uniform`, operation by operation.
            self._at[index] = at + pause * (self._low + self._spread * <double>self._draw())
            self._find_next()

    cdef _read(self, Py_ssize_t index, Py_ssize_t endpoint, double at):
        cdef _Reading made = _Reading.__new__(_Reading)
        made.arrives, made.taken, made.index = at + self._delay_ms, at, index
        if at >= self._everything_at[index]:
            self._everything_at[index] = at + self._everything_ms
            made.whole = self._read_all(
                self._engines[endpoint], at, everything=True, tokens_per_step=self._tokens_per_step[endpoint]
            )
            made.kept = True
            self._whole_pending += 1
        else:
            gauges = self._gauges[endpoint]
            made.running, made.waiting, made.usage = gauges.running, gauges.waiting, gauges.kv_usage
            made.preemptions = self._told[endpoint].preemptions
            made.kept = made.running == 0.0 and made.waiting == 0.0
            if self._loras:
                made.whole = self._adapters(self._engines[endpoint])
        if not self._pending:
            self.due_ms = made.arrives
        self._pending.append(made)

    cpdef list take(self, double now):
        """What has arrived by `now`, in this order: (picker, endpoint, sample, when it arrived)."""
        cdef list taken = [], last
        cdef _Reading one
        cdef Py_ssize_t due = 0, position
        for one in self._pending:
            if one.arrives > now:
                break
            due += 1
        last = [-1] * self._count
        for position in range(due):
            last[(<_Reading>self._pending[position]).index] = position
        for position in range(due):
            one = <_Reading>self._pending[position]
            if self._latest and not one.kept and last[one.index] != position:
                continue
            endpoint = one.index % self._endpoints
            if type(one.whole) is EngineSample:
                sample = one.whole
                self._whole_pending -= 1
            else:
                sample = EngineSample(
                    taken_ms=one.taken,
                    running=one.running,
                    waiting=one.waiting,
                    kv_usage=one.usage,
                    preemptions=one.preemptions,
                )
                if one.whole is not None:
                    sample.max_adapters, sample.active_adapters, sample.waiting_adapters = one.whole
            taken.append((one.index // self._endpoints, endpoint, sample, one.arrives))
        del self._pending[:due]
        self.due_ms = (<_Reading>self._pending[0]).arrives if self._pending else INFINITY
        return taken
