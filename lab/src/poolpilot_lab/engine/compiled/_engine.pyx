# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, embedsignature=True
"""The engine model in C: the same steps, to the last bit, as the reference in `engine/model`. The benchmark's inner loop.

What each method does is said there (`scheduler`, `flight`, `kv_cache`, `sequence`, `telemetry`); here is how it is made
fast: sequences, flights and histograms are structs, and the loops over a batch touch nothing but numbers.
"""

from collections import OrderedDict, deque

from libc.math cimport sqrt
from libc.stdlib cimport calloc, free, malloc

from poolpilot_lab.engine.compiled._accelerator cimport Accelerator as _Accelerator

from poolpilot_lab.engine.compiled._accelerator import Accelerator as Accelerator
from poolpilot_lab.engine.model.lora import AdapterSlots, count_down
from poolpilot_lab.engine.model.sequence import State
from poolpilot_lab.engine.model.settings import SequenceTooLongError
from poolpilot_lab.engine.model.telemetry import Histogram as ReferenceHistogram
from poolpilot_lab.engine.model.telemetry import Telemetry

cdef long UNNAMED = -1
cdef object _NEW = State.NEW
cdef object _WAITING = State.WAITING
cdef object _RUNNING = State.RUNNING
cdef object _PREEMPTED = State.PREEMPTED
cdef object _FINISHED = State.FINISHED
cdef object _ABORTED = State.ABORTED


cdef class Sequence:
    """As `model.sequence.Sequence`."""

    cdef public long prompt_tokens, output_tokens, choices, cached_tokens, computed, generated, preemptions
    cdef public double arrived, admitted, first_token, last_token, finished
    cdef public bint deferred, loaded
    cdef public object block_hashes, adapter, max_tokens, stop_reason, tag, state
    cdef public long priority
    cdef public list table

    def __init__(
        self, prompt_tokens, output_tokens, block_hashes=(), adapter=None, max_tokens=None, choices=1,
        stop_reason="stop", priority=0, tag=None,
    ):
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.block_hashes = block_hashes
        self.adapter = adapter
        self.max_tokens = max_tokens
        self.choices = choices
        self.stop_reason = stop_reason
        self.priority = priority
        self.tag = tag
        self.state = _NEW
        self.arrived = self.admitted = self.first_token = self.last_token = self.finished = -1.0
        self.table = []

    def twin(self):
        """A copy that goes on for itself."""
        cdef Sequence other = Sequence.__new__(Sequence)
        other.prompt_tokens = self.prompt_tokens
        other.output_tokens = self.output_tokens
        other.choices = self.choices
        other.cached_tokens = self.cached_tokens
        other.computed = self.computed
        other.generated = self.generated
        other.preemptions = self.preemptions
        other.arrived = self.arrived
        other.admitted = self.admitted
        other.first_token = self.first_token
        other.last_token = self.last_token
        other.finished = self.finished
        other.deferred = self.deferred
        other.loaded = self.loaded
        other.block_hashes = self.block_hashes
        other.adapter = self.adapter
        other.max_tokens = self.max_tokens
        other.stop_reason = self.stop_reason
        other.priority = self.priority
        other.tag = self.tag
        other.state = self.state
        other.table = list(self.table)
        return other

    @property
    def tokens(self):
        """Tokens known so far: prompt plus generated."""
        return self.prompt_tokens + self.generated


cdef class Histogram:
    """As `model.telemetry.Histogram`."""

    cdef readonly tuple bounds
    cdef public double sum
    cdef double* _bounds
    cdef long* _counts
    cdef int _size

    def __cinit__(self, tuple bounds):
        cdef int index
        self.bounds = bounds
        self._size = <int>len(bounds)
        self._bounds = <double*>malloc((self._size + 1) * sizeof(double))
        self._counts = <long*>calloc(self._size + 1, sizeof(long))
        if self._bounds == NULL or self._counts == NULL:
            raise MemoryError
        for index in range(self._size):
            self._bounds[index] = bounds[index]

    def __dealloc__(self):
        free(self._bounds)
        free(self._counts)

    @property
    def counts(self):
        """By bucket."""
        return [self._counts[index] for index in range(self._size + 1)]

    @property
    def count(self):
        """Number of observations."""
        cdef long total = 0
        cdef int index
        for index in range(self._size + 1):
            total += self._counts[index]
        return total

    cdef void add(self, double value, long weight) noexcept:
        cdef int low = 0, high = self._size, middle
        while low < high:
            middle = (low + high) >> 1
            if self._bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        self._counts[low] += weight
        self.sum += value * weight

    def observe(self, double value, long weight=1):
        """Adds `weight` observations of `value`."""
        self.add(value, weight)


cdef class BlockCache:
    """As `model.kv_cache.BlockCache`."""

    cdef readonly long total
    cdef readonly long free
    cdef readonly long kept
    cdef readonly long evictions
    cdef dict _references
    cdef object _free
    cdef long _next_unnamed, _last_unnamed
    cdef bint _tail_is_unnamed

    def __init__(self, long total):
        self.total = self.free = total
        self._references = {}
        self._free = OrderedDict({-1: total}) if total else OrderedDict()
        self._next_unnamed = -2
        self._last_unnamed = -1
        self._tail_is_unnamed = total > 0

    def twin(self):
        """A copy that goes on for itself."""
        cdef BlockCache other = BlockCache.__new__(BlockCache)
        other.total = self.total
        other.free = self.free
        other.kept = self.kept
        other.evictions = self.evictions
        other._references = self._references.copy()
        other._free = self._free.copy()
        other._next_unnamed = self._next_unnamed
        other._last_unnamed = self._last_unnamed
        other._tail_is_unnamed = self._tail_is_unnamed
        return other

    @property
    def used(self):
        """Blocks that sequences reference."""
        return self.total - self.free

    @property
    def cached(self):
        """Blocks that can be found by key, referenced or not."""
        return len(self._references) + self.kept

    def __contains__(self, key):
        return key in self._references or key in self._free

    cpdef long match(self, keys, long limit) except -1:
        """How many of the first `limit` keys are cached, counted from the first without a gap."""
        cdef dict references = self._references, free = <dict>self._free
        cdef long position, most = min(limit, <long>len(keys))
        for position in range(most):
            key = keys[position]
            if key not in references and key not in free:
                return position
        return max(0, most)

    cpdef long unreferenced(self, keys, long count) except -1:
        """How many of the first `count` cached keys are free: acquiring them takes as many free blocks."""
        cdef dict references = self._references
        cdef long position, found = 0
        for position in range(count):
            if keys[position] not in references:
                found += 1
        return found

    cpdef list acquire(self, keys, long count):
        """References the first `count` keys, which are cached; returns the block table they make."""
        cdef dict references = self._references
        free = self._free
        cdef list table = list(keys[:count])
        for key in table:
            if key in references:
                references[key] += 1
            else:
                del free[key]
                self.free -= 1
                self.kept -= 1
                references[key] = 1
        return table

    cpdef allocate(self, long count):
        """Takes `count` free blocks, evicting the least recently freed; the caller checked `free`."""
        free = self._free
        cdef long run
        self.free -= count
        assert self.free >= 0, "allocated more blocks than there are"
        while count:
            key = next(iter(free))
            if key >= 0:
                del free[key]
                self.evictions += 1
                self.kept -= 1
                count -= 1
                continue
            run = free[key]
            if run > count:
                free[key] = run - count
                return
            del free[key]
            if key == self._last_unnamed:
                self._tail_is_unnamed = False
            count -= run

    def next_evicted(self, long count):
        """The keys that would be evicted, in this order, if `count` blocks were allocated now."""
        cdef list keys = []
        for key, run in self._free.items():
            if count <= 0:
                break
            if key >= 0:
                keys.append(key)
            count -= <long>run
        return keys

    cpdef bint name(self, key) except -1:
        """Makes one allocated block findable under `key`; False when another block already is."""
        if key in self._references or key in self._free:
            return False
        self._references[key] = 1
        return True

    cpdef release(self, list table):
        """Gives back the blocks of a sequence, last one first, and empties its table."""
        cdef dict references = self._references
        free = self._free
        cdef long position, count
        for position in range(len(table) - 1, -1, -1):
            key = table[position]
            if key == UNNAMED:
                if self._tail_is_unnamed:
                    free[self._last_unnamed] += 1
                else:
                    self._last_unnamed = self._next_unnamed
                    self._next_unnamed -= 1
                    free[self._last_unnamed] = 1
                    self._tail_is_unnamed = True
                self.free += 1
                continue
            count = references[key]
            if count > 1:
                references[key] = count - 1
            else:
                del references[key]
                free[key] = 1
                self._tail_is_unnamed = False
                self.free += 1
                self.kept += 1
        table.clear()

    def forget(self):
        """Empties the prefix cache of free blocks (a reset); referenced blocks stay."""
        self.kept = 0
        kept = self.free
        self._free = OrderedDict({self._next_unnamed: kept}) if kept else OrderedDict()
        self._last_unnamed = self._next_unnamed
        self._next_unnamed -= 1
        self._tail_is_unnamed = kept > 0


cdef class Outcome:
    """As `model.flight.Outcome`."""

    cdef public list tokens, first_tokens, finished, preempted

    def __init__(self):
        self.tokens = []
        self.first_tokens = []
        self.finished = []
        self.preempted = []


cdef class _Flight:
    cdef double start, first_ms, growth_ms
    cdef long steps, tokens
    cdef list decoding, chunks
    cdef bint planned_blocks

    cdef double offset(self, long steps) noexcept:
        return steps * self.first_ms + self.growth_ms * steps * (steps - 1) / 2

    cdef double end(self) noexcept:
        return self.start + self.offset(self.steps)

    cdef long ended_by(self, double now) noexcept:
        cdef double elapsed, half, linear
        cdef long ended
        if now >= self.end() - 1e-6:
            return self.steps
        elapsed = now - self.start
        half = self.growth_ms / 2
        linear = self.first_ms - half
        if half > 1e-12 * self.first_ms:
            ended = <long>((sqrt(linear * linear + 4 * half * elapsed) - linear) / (2 * half))
        else:
            ended = <long>(elapsed / self.first_ms)
        return max(0, min(ended, self.steps - 1))


cdef class _Completions:
    """`Telemetry.completed`: a dozen histograms for every answer."""

    cdef dict finished
    cdef Histogram e2e, queue_time, inference_time, prefill_time, decode_time, time_per_output_token, prompt_tokens
    cdef Histogram generation_tokens, max_generation_tokens, choices, preemptions, computed_tokens, max_tokens

    def __init__(self, told):
        self.finished = told.finished
        self.e2e, self.queue_time, self.inference_time = told.e2e, told.queue_time, told.inference_time
        self.prefill_time, self.decode_time = told.prefill_time, told.decode_time
        self.time_per_output_token = told.time_per_output_token
        self.prompt_tokens, self.generation_tokens = told.request_prompt_tokens, told.request_generation_tokens
        self.max_generation_tokens = told.request_max_generation_tokens
        self.choices, self.preemptions = told.request_choices, told.request_preemptions
        self.computed_tokens, self.max_tokens = told.request_computed_tokens, told.request_max_tokens

    cdef add(self, Sequence sequence):
        cdef double decode = sequence.last_token - sequence.first_token
        cdef long generated = sequence.generated
        self.finished[sequence.stop_reason] += 1
        self.e2e.add((sequence.finished - sequence.arrived) / 1000, 1)
        self.queue_time.add((sequence.admitted - sequence.arrived) / 1000, 1)
        self.inference_time.add((sequence.last_token - sequence.admitted) / 1000, 1)
        self.prefill_time.add((sequence.first_token - sequence.admitted) / 1000, 1)
        self.decode_time.add(decode / 1000, 1)
        self.time_per_output_token.add(decode / 1000 / (generated - 1) if generated > 1 else 0.0, 1)
        self.prompt_tokens.add(sequence.prompt_tokens, 1)
        self.generation_tokens.add(generated, 1)
        self.max_generation_tokens.add(generated, 1)
        self.choices.add(sequence.choices, 1)
        self.preemptions.add(sequence.preemptions, 1)
        self.computed_tokens.add(sequence.prompt_tokens - sequence.cached_tokens, 1)
        if sequence.max_tokens is not None:
            self.max_tokens.add(sequence.max_tokens, 1)


cdef class Engine:
    """As `model.scheduler.Engine`."""

    cdef public object settings, accelerator, slots, telemetry
    cdef readonly BlockCache blocks
    cdef public list running
    cdef public bint tells_tokens
    cdef readonly object waiting
    cdef readonly dict adapters_in_flight
    cdef dict _running_adapters
    cdef _Flight _flight
    cdef Outcome _outcome
    cdef long _deferred
    cdef bint _blocked
    cdef double _pending_load_ms
    cdef long _size, _budget, _max_seqs, _max_loras
    cdef bint _caching
    cdef Histogram _inter_token, _iteration_tokens
    cdef _Completions _completions
    cdef object _gauges

    def __init__(self, settings, accelerator):
        self.settings = settings
        self.accelerator = accelerator
        self.blocks = BlockCache(settings.num_gpu_blocks - 1)
        self.slots = AdapterSlots(settings.max_loras)
        self.telemetry = Telemetry(settings.max_model_len)
        for name in Telemetry.__slots__:
            kept = getattr(self.telemetry, name)
            if isinstance(kept, ReferenceHistogram):
                setattr(self.telemetry, name, Histogram(kept.bounds))
        self.tells_tokens = True
        self.running = []
        self.waiting = deque()
        self.adapters_in_flight = {}
        self._running_adapters = {}
        self._outcome = Outcome()
        self._size = settings.block_size
        self._budget = settings.max_num_batched_tokens
        self._max_seqs = settings.max_num_seqs
        self._max_loras = settings.max_loras
        self._caching = settings.enable_prefix_caching
        self._inter_token = self.telemetry.inter_token
        self._iteration_tokens = self.telemetry.iteration_tokens
        self._completions = _Completions(self.telemetry)
        self._gauges = self.telemetry.gauges

    # -- what callers ask ---------------------------------------------------------------------------------------------

    @property
    def busy_until(self):
        """When the step or run in progress ends; None between steps."""
        return self._flight.end() if self._flight is not None else None

    @property
    def in_flight(self):
        """Sequences waiting and running."""
        return len(self.running) + len(self.waiting)

    def adapters_told(self):
        """(adapters that run, adapters that only wait), each in the order of the sequences."""
        cdef dict active = {}, waiting = {}
        for entry in self.running:
            adapter = (<Sequence>entry).adapter
            if adapter:
                active[adapter] = None
        for entry in self.waiting:
            adapter = (<Sequence>entry).adapter
            if adapter and adapter not in active:
                waiting[adapter] = None
        return tuple(active), tuple(waiting)

    def steps_ended(self, double now):
        """Steps of the run in progress that have ended by `now` and are not settled yet."""
        return self._flight.ended_by(now) if self._flight is not None else 0

    def survey(self, double now, long output_tokens):
        """What runs here at `now`, as an onlooker sees it who knows all; `output_tokens`: of whom it is asked for."""
        cdef long ended = self._flight.ended_by(now) if self._flight is not None else 0
        cdef long decoding = 0, context = 0, prefilling = 0, prefilling_context = 0, rest_tokens = 0
        cdef long shared = 0, total = 0, rest, left
        cdef list prefills = []
        cdef Sequence sequence
        for entry in self.running:
            sequence = <Sequence>entry
            rest = sequence.prompt_tokens + sequence.generated - sequence.computed
            left = sequence.output_tokens
            if rest == 1 and sequence.generated:
                decoding += 1
                context += sequence.computed + ended
                left -= sequence.generated + ended
            else:
                prefilling += 1
                prefilling_context += sequence.prompt_tokens
                rest_tokens += rest
                prefills.append((rest, rest * rest + 2 * rest * sequence.computed))
            shared += min(output_tokens, left)
            total += left
        return decoding, context, prefilling, prefilling_context, rest_tokens, prefills, shared, total

    def kv_usage(self):
        """Share of the blocks that sequences reference; cached but unreferenced blocks count as free."""
        return (self.blocks.total - self.blocks.free) / <double>self.blocks.total if self.blocks.total else 0.0

    def longest(self):
        """Tokens that one sequence may have, prompt and output together."""
        return min(self.settings.max_model_len, self.blocks.total * self._size)

    # -- what callers do ----------------------------------------------------------------------------------------------

    def add(self, Sequence sequence, double now):
        """Puts a new sequence at the end of the queue; it is seen by the next `plan`.

        Raises SequenceTooLongError when it could never run, ValueError when it is malformed.
        """
        if sequence.state is not _NEW or sequence.prompt_tokens < 1 or sequence.output_tokens < 1:
            raise ValueError(
                f"a new sequence needs prompt_tokens >= 1 and output_tokens >= 1, got state {sequence.state.value}, "
                f"{sequence.prompt_tokens} and {sequence.output_tokens}"
            )
        if sequence.adapter is not None and self._max_loras < 1:
            raise ValueError(f"adapter {sequence.adapter!r}: this engine has no LoRA slots (max_loras is 0)")
        if sequence.prompt_tokens + sequence.output_tokens > self.longest():
            raise SequenceTooLongError(
                f"{sequence.prompt_tokens} prompt and {sequence.output_tokens} output tokens exceed the "
                f"{self.longest()} tokens that one sequence may have"
            )
        sequence.arrived = now
        sequence.state = _WAITING
        self._queue(sequence)
        if sequence.adapter is not None:
            self.adapters_in_flight[sequence.adapter] = self.adapters_in_flight.get(sequence.adapter, 0) + 1

    cdef _queue(self, Sequence sequence):
        cdef long position = <long>len(self.waiting)
        if self.settings.priority_scheduling:
            while position and (<Sequence>self.waiting[position - 1]).priority > sequence.priority:
                position -= 1
            self.waiting.insert(position, sequence)
        else:
            self.waiting.append(sequence)

    def abort(self, Sequence sequence, double now):
        """Drops a sequence and frees its blocks at once; False when it has already ended."""
        self._advance(now)
        if sequence.state is _RUNNING:
            self.running.remove(sequence)
            count_down(self._running_adapters, sequence.adapter)
            self.blocks.release(sequence.table)
        elif sequence.state is _WAITING or sequence.state is _PREEMPTED:
            self.waiting.remove(sequence)
        else:
            return False
        sequence.state = _ABORTED
        sequence.finished = now
        self.telemetry.finished["abort"] += 1
        count_down(self.adapters_in_flight, sequence.adapter)
        self._blocked = False
        self.interrupt(now)
        if self._flight is None:
            self._measure()
        return True

    def load_adapter(self, adapter):
        """Brings an adapter into a slot ahead of its first request; the next step waits for it."""
        in_batch = self._running_adapters
        if self._max_loras and self.slots.can_take(adapter, in_batch) and self.slots.use(adapter, in_batch):
            self._pending_load_ms += self.settings.lora_load_ms

    cpdef plan(self, double now, long steps=1):
        """Begins the next step at `now` and returns when it ends; None when there is nothing to do."""
        cdef long budget = self._budget, size = self._size, index = 0, computed, known, take
        cdef list running = self.running, decoding = [], chunks = []
        cdef bint preempted = False
        cdef Sequence sequence, victim
        cdef double load_ms
        cdef _Flight flight
        assert self._flight is None, "settle the step in progress first"
        if not running and not self.waiting:
            return None
        while index < len(running) and budget > 0:
            sequence = <Sequence>running[index]
            computed = sequence.computed
            known = sequence.prompt_tokens + sequence.generated
            if sequence.generated and computed == known - 1 and computed % size and known % size:
                # Decodes within the block it holds: most of a batch in most steps.
                decoding.append(sequence)
                budget -= 1
                index += 1
                continue
            take = min(known - computed, budget)
            while not self._grow(sequence, computed + take):
                victim = <Sequence>running.pop()
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            if sequence.state is not _RUNNING:
                break
            if sequence.generated and sequence.computed == known - 1:
                decoding.append(sequence)
            else:
                chunks.append((sequence, take))
            budget -= take
            index += 1
        load_ms = self._touch_adapters() + self._pending_load_ms
        self._pending_load_ms = 0.0
        if not preempted:
            load_ms += self._admit(now, budget, chunks)
        if not decoding and not chunks:
            return None
        flight = self._launch(now, decoding, chunks, load_ms, 1 if preempted else steps)
        self._flight = flight
        return flight.end()

    cpdef interrupt(self, double now):
        """Ends a run at the step in progress, unless an arrival would have to wait behind a stuck sequence anyway."""
        cdef _Flight flight = self._flight
        if flight is None:
            return None
        if flight.steps > 1 and not self._blocked:
            flight.steps = min(flight.steps, flight.ended_by(now) + 1)
        return flight.end()

    cpdef Outcome settle(self, double now):
        """Completes every step that has ended by `now` and returns what they brought."""
        cdef Outcome outcome
        self._advance(now)
        outcome = self._outcome
        self._outcome = Outcome()
        return outcome

    def twin(self, accelerator):
        """A copy on another accelerator that goes on for itself, the step in progress included; its counters begin at
        0."""
        cdef Engine other = Engine(self.settings, accelerator)
        cdef _Flight flight
        cdef dict known = {}
        for sequence in self.running:
            known[sequence] = sequence.twin()
        for sequence in self.waiting:
            known[sequence] = sequence.twin()
        other.blocks = self.blocks.twin()
        other.slots = self.slots.twin()
        other.running = [known[sequence] for sequence in self.running]
        other.waiting = deque([known[sequence] for sequence in self.waiting])
        other.adapters_in_flight = dict(self.adapters_in_flight)
        other._running_adapters = dict(self._running_adapters)
        other._deferred = self._deferred
        other._blocked = self._blocked
        other._pending_load_ms = self._pending_load_ms
        if self._flight is not None:
            flight = _Flight.__new__(_Flight)
            flight.start = self._flight.start
            flight.first_ms = self._flight.first_ms
            flight.growth_ms = self._flight.growth_ms
            flight.steps = self._flight.steps
            flight.tokens = self._flight.tokens
            flight.planned_blocks = self._flight.planned_blocks
            # Who was aborted meanwhile stays what it is.
            flight.decoding = [known.get(sequence, sequence) for sequence in self._flight.decoding]
            flight.chunks = [(known.get(sequence, sequence), take) for sequence, take in self._flight.chunks]
            other._flight = flight
        return other

    # -- planning -----------------------------------------------------------------------------------------------------

    cdef bint _grow(self, Sequence sequence, long tokens) except -1:
        cdef long size = self._size, missing, first, last, position, known
        cdef list table = sequence.table
        missing = (tokens + size - 1) // size - <long>len(table)
        if missing > 0:
            if missing > self.blocks.free:
                return False
            self.blocks.allocate(missing)
            for position in range(missing):
                table.append(UNNAMED)
        first = sequence.computed // size
        last = tokens // size
        if last > first and self._caching:
            hashes = sequence.block_hashes
            known = <long>len(hashes)
            for position in range(first, min(last, known)):
                if table[position] == UNNAMED and self.blocks.name(hashes[position]):
                    table[position] = hashes[position]
        return True

    cdef _preempt(self, Sequence sequence):
        count_down(self._running_adapters, sequence.adapter)
        self.blocks.release(sequence.table)
        sequence.computed = 0
        sequence.preemptions += 1
        sequence.state = _PREEMPTED
        self.waiting.appendleft(sequence)
        self.telemetry.preemptions += 1
        self._outcome.preempted.append(sequence)

    cdef double _touch_adapters(self) except? -1.0:
        if not self._running_adapters:
            return 0.0
        batch = self._running_adapters
        return self.settings.lora_load_ms * sum([self.slots.use(adapter, batch) for adapter in batch])

    cdef double _admit(self, double now, long budget, list chunks) except? -1.0:
        cdef double load_ms = 0.0
        cdef long index = 0, take, waiting = <long>len(self.waiting)
        cdef Sequence sequence
        self._deferred = 0
        self._blocked = False
        while index < waiting and budget > 0:
            if <long>len(self.running) >= self._max_seqs:
                self._blocked = True
                break
            sequence = <Sequence>self.waiting[index]
            adapter = sequence.adapter
            if (
                adapter is not None
                and adapter not in self._running_adapters
                and <long>len(self._running_adapters) >= self._max_loras
            ):
                sequence.deferred = True
                self._deferred += 1
                index += 1
                continue
            take = self._enter(sequence, budget)
            if take == 0:
                self._blocked = True
                break
            del self.waiting[index]
            waiting -= 1
            budget -= take
            chunks.append((sequence, take))
            if sequence.admitted < 0:
                sequence.admitted = max(now, sequence.arrived)
                sequence.cached_tokens = sequence.computed
                self.telemetry.looked_up(sequence)
            if adapter is not None:
                self._running_adapters[adapter] = self._running_adapters.get(adapter, 0) + 1
                if self.slots.use(adapter, self._running_adapters):
                    load_ms += self.settings.lora_load_ms
                    sequence.loaded = True
        return load_ms

    cdef long _enter(self, Sequence sequence, long budget) except -1:
        cdef long size = self._size, tokens = sequence.prompt_tokens + sequence.generated, hits = 0, room, take
        if self._caching:
            hits = self.blocks.match(sequence.block_hashes, (tokens - 1) // size)
        room = self.blocks.free - self.blocks.unreferenced(sequence.block_hashes, hits)
        if (tokens + size - 1) // size - hits > room:
            return 0
        sequence.table = self.blocks.acquire(sequence.block_hashes, hits)
        sequence.computed = hits * size
        sequence.state = _RUNNING
        take = min(tokens - sequence.computed, budget)
        self.running.append(sequence)
        self._grow(sequence, sequence.computed + take)
        return take

    cdef long _run_length(self, list decoding, long steps) noexcept:
        cdef long size = self._size, blocks
        cdef Sequence sequence
        for entry in decoding:
            sequence = <Sequence>entry
            steps = min(steps, sequence.output_tokens - sequence.generated)
        while steps > 1:
            blocks = 0
            for entry in decoding:
                sequence = <Sequence>entry
                blocks += (sequence.computed + steps + size - 1) // size - <long>len(sequence.table)
            if blocks <= self.blocks.free:
                break
            steps //= 2
        return max(1, steps)

    cdef _Flight _launch(self, double now, list decoding, list chunks, double load_ms, long steps):
        cdef long tokens = 0, attention = 0, context = <long>len(decoding), take, count = 1
        cdef Sequence sequence
        cdef _Flight flight
        cdef double stall_ms, noise, duration, growth
        cdef _Accelerator fast
        for entry, taken in chunks:
            take = taken
            tokens += take
            attention += take * take + 2 * take * (<Sequence>entry).computed
        for entry in decoding:
            context += (<Sequence>entry).computed
        if type(self.accelerator) is _Accelerator:
            fast = <_Accelerator>self.accelerator
            stall_ms = load_ms + fast.stall_of(now)
            if steps > 1 and not chunks and stall_ms == 0.0:
                count = self._run_length(decoding, steps)
            noise = fast.noise_of(count)
            duration = fast.step_of(len(decoding), context, len(chunks), tokens, attention)
            growth = fast.growth_of(len(decoding), context, count) if count > 1 else 0.0
        else:
            stall_ms = load_ms + <double>self.accelerator.stall(now)
            if steps > 1 and not chunks and stall_ms == 0.0:
                count = self._run_length(decoding, steps)
            noise = self.accelerator.noise(count)
            duration = self.accelerator.step_ms(len(decoding), context, len(chunks), tokens, attention)
            growth = self.accelerator.growth_ms(len(decoding), context, count) if count > 1 else 0.0
        flight = _Flight.__new__(_Flight)
        flight.start = now
        flight.steps = count
        flight.first_ms = noise * duration + stall_ms
        flight.growth_ms = noise * growth
        flight.tokens = tokens + <long>len(decoding)
        flight.decoding = decoding
        flight.chunks = chunks
        flight.planned_blocks = True
        return flight

    # -- completing ---------------------------------------------------------------------------------------------------

    cdef _advance(self, double now):
        cdef _Flight flight = self._flight
        cdef long ended
        cdef double end
        if flight is None:
            return
        ended = flight.ended_by(now)
        if ended == 0:
            return
        end = flight.start + flight.offset(ended)
        self._apply_decodes(flight, ended, end)
        if ended == flight.steps:
            self._apply_chunks(flight, end)
            self._flight = None
        else:
            flight.start = end
            flight.first_ms += flight.growth_ms * ended
            flight.planned_blocks = False
            flight.steps -= ended
        self.telemetry.steps += ended
        self._iteration_tokens.add(flight.tokens, ended)
        self._retire(end)
        self._measure()

    cdef _apply_decodes(self, _Flight flight, long steps, double end):
        cdef Histogram inter_token = self._inter_token
        cdef list tokens = self._outcome.tokens
        cdef double first_end = flight.start + flight.first_ms, previous = -1.0
        cdef long alike = 0, alive = 0, size = self._size, computed, within, step
        cdef bint growing = steps > 1 or not flight.planned_blocks, grown, telling = self.tells_tokens
        cdef Sequence sequence
        for entry in flight.decoding:
            sequence = <Sequence>entry
            if sequence.state is not _RUNNING:
                continue
            alive += 1
            if sequence.last_token != previous:
                if alike:
                    inter_token.add((first_end - previous) / 1000, alike)
                previous = sequence.last_token
                alike = 0
            alike += 1
            computed = sequence.computed
            if growing:
                within = computed % size
                if not 0 < within < size - steps:
                    grown = self._grow(sequence, computed + steps)
                    assert grown, "a run was planned beyond the free blocks"
            sequence.computed = computed + steps
            sequence.generated += steps
            sequence.last_token = end
            if telling:
                tokens.append((sequence, steps))
        if alike:
            inter_token.add((first_end - previous) / 1000, alike)
        for step in range(1, steps):
            inter_token.add((flight.first_ms + flight.growth_ms * step) / 1000, alive)
        self.telemetry.generation_tokens += alive * steps
        self.telemetry.busy_ms += end - flight.start

    cdef _apply_chunks(self, _Flight flight, double end):
        cdef Sequence sequence
        for entry, taken in flight.chunks:
            sequence = <Sequence>entry
            if sequence.state is not _RUNNING:
                continue
            sequence.computed += taken
            if sequence.computed < sequence.prompt_tokens + sequence.generated:
                continue
            self.telemetry.generation_tokens += 1
            if self.tells_tokens:
                self._outcome.tokens.append((sequence, 1))
            if sequence.generated == 0:
                sequence.first_token = end
                self._outcome.first_tokens.append(sequence)
                self.telemetry.answered(sequence)
            else:
                self._inter_token.add((end - sequence.last_token) / 1000, 1)
            sequence.generated += 1
            sequence.last_token = end

    cdef _retire(self, double end):
        cdef Sequence sequence
        cdef list done = None, left
        for entry in self.running:
            sequence = <Sequence>entry
            if sequence.generated >= sequence.output_tokens:
                if done is None:
                    done = []
                done.append(sequence)
        if done is None:
            return
        left = []
        for entry in self.running:
            sequence = <Sequence>entry
            if sequence.generated < sequence.output_tokens:
                left.append(sequence)
        self.running = left
        for entry in done:
            sequence = <Sequence>entry
            sequence.state = _FINISHED
            sequence.finished = end
            count_down(self._running_adapters, sequence.adapter)
            self.blocks.release(sequence.table)
            count_down(self.adapters_in_flight, sequence.adapter)
            self._completions.add(sequence)
            self._outcome.finished.append(sequence)

    cdef _measure(self):
        gauges = self._gauges
        cdef long waiting = <long>len(self.waiting), deferred = min(self._deferred, waiting)
        gauges.running = len(self.running)
        gauges.waiting_deferred = deferred
        gauges.waiting_capacity = waiting - deferred
        gauges.kv_usage = self.kv_usage()
