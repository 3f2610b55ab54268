"""The engine's loop: which sequences run in the next step, how long it takes, and what it brings.

vLLM V1's order. Running sequences first, oldest admission first, then waiting ones while the token budget and free
blocks remain; long prompts in chunks. A running sequence that finds no block preempts the youngest, which loses its
blocks and later computes prompt and output again; a step that preempted admits nobody. At most `max_loras` distinct
adapters run together, a sequence with another one is passed over (deferred). A full block can be found in the prefix
cache from the step that computes it on; at least one token of every prompt is computed.

Driven from outside: `plan` begins the next step and says when it ends, `settle` completes what has ended. A run of
`steps` pure decode steps counts as one, in closed form, for callers that do not need every token: `interrupt` ends it
at the step in progress when an arrival could be admitted earlier.
"""

from __future__ import annotations

from collections import deque
from copy import copy

from poolpilot_lab.engine.model.accelerator import Accelerator  # noqa: TC001  (part of the public signature)
from poolpilot_lab.engine.model.flight import Flight, Outcome, run_length
from poolpilot_lab.engine.model.kv_cache import BlockCache
from poolpilot_lab.engine.model.lora import AdapterSlots, count_down
from poolpilot_lab.engine.model.sequence import UNNAMED, Sequence, State
from poolpilot_lab.engine.model.settings import EngineSettings, SequenceTooLongError
from poolpilot_lab.engine.model.telemetry import Telemetry

Survey = tuple[int, int, int, int, int, list[tuple[int, int]], int, int]
"""(sequences decoding, their context tokens, sequences being prefilled, their prompt tokens, prompt tokens left to
compute, (tokens, attention) of each of those prefills, Σ min(output tokens asked about, left ones), Σ left ones)."""


class Engine:
    """One engine. `now` is always the engine's own monotonic milliseconds and never goes back."""

    def __init__(self, settings: EngineSettings, accelerator: Accelerator) -> None:
        self.settings = settings
        self.accelerator = accelerator
        self.blocks = BlockCache(settings.num_gpu_blocks - 1)
        self.slots = AdapterSlots(settings.max_loras)
        self.telemetry = Telemetry(settings.max_model_len)
        self.tells_tokens = True
        """whether outcomes list who gained tokens: most of an outcome, where only first and last ones are wanted"""
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.adapters_in_flight: dict[str, int] = {}
        """sequences per adapter, waiting and running, in the order in which the adapters became active"""
        self._running_adapters: dict[str, int] = {}
        self._flight: Flight | None = None
        self._outcome = Outcome()
        self._deferred = 0
        self._blocked = False
        self._pending_load_ms = 0.0

    # -- what callers ask ---------------------------------------------------------------------------------------------

    @property
    def busy_until(self) -> float | None:
        """When the step or run in progress ends; None between steps."""
        return self._flight.end if self._flight else None

    @property
    def in_flight(self) -> int:
        """Sequences waiting and running."""
        return len(self.running) + len(self.waiting)

    def adapters_told(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(adapters that run, adapters that only wait), each in the order of the sequences."""
        active = dict.fromkeys([s.adapter for s in self.running if s.adapter])
        waiting = dict.fromkeys([s.adapter for s in self.waiting if s.adapter and s.adapter not in active])
        return tuple(active), tuple(waiting)

    def steps_ended(self, now: float) -> int:
        """Steps of the run in progress that have ended by `now` and are not settled yet."""
        return self._flight.ended_by(now) if self._flight else 0

    def survey(self, now: float, output_tokens: int) -> Survey:
        """What runs here at `now`, as an onlooker sees it who knows all; `output_tokens`: of whom it is asked for."""
        ended = self.steps_ended(now)
        decoding = context = prefilling = prefilling_context = rest_tokens = shared = total = 0
        prefills: list[tuple[int, int]] = []
        for sequence in self.running:
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

    def kv_usage(self) -> float:
        """Share of the blocks that sequences reference; cached but unreferenced blocks count as free."""
        return self.blocks.used / self.blocks.total if self.blocks.total else 0.0

    def longest(self) -> int:
        """Tokens that one sequence may have, prompt and output together."""
        return min(self.settings.max_model_len, self.blocks.total * self.settings.block_size)

    # -- what callers do ----------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence, now: float) -> None:
        """Puts a new sequence at the end of the queue; it is seen by the next `plan`.

        Raises SequenceTooLongError when it could never run, ValueError when it is malformed.
        """
        if sequence.state is not State.NEW or sequence.prompt_tokens < 1 or sequence.output_tokens < 1:
            raise ValueError(
                f"a new sequence needs prompt_tokens >= 1 and output_tokens >= 1, got state {sequence.state.value}, "
                f"{sequence.prompt_tokens} and {sequence.output_tokens}"
            )
        if sequence.adapter is not None and self.settings.max_loras < 1:
            raise ValueError(f"adapter {sequence.adapter!r}: this engine has no LoRA slots (max_loras is 0)")
        if sequence.prompt_tokens + sequence.output_tokens > self.longest():
            raise SequenceTooLongError(
                f"{sequence.prompt_tokens} prompt and {sequence.output_tokens} output tokens exceed the "
                f"{self.longest()} tokens that one sequence may have"
            )
        sequence.arrived = now
        sequence.state = State.WAITING
        self._queue(sequence)
        if sequence.adapter is not None:
            self.adapters_in_flight[sequence.adapter] = self.adapters_in_flight.get(sequence.adapter, 0) + 1

    def _queue(self, sequence: Sequence) -> None:
        position = len(self.waiting)
        if self.settings.priority_scheduling:
            while position and self.waiting[position - 1].priority > sequence.priority:
                position -= 1
        self.waiting.insert(position, sequence)

    def abort(self, sequence: Sequence, now: float) -> bool:
        """Drops a sequence and frees its blocks at once; False when it has already ended.

        The step in progress keeps its planned end: the accelerator computes what it was given.
        """
        self._advance(now)
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            count_down(self._running_adapters, sequence.adapter)
            self.blocks.release(sequence.table)
        elif sequence.state in (State.WAITING, State.PREEMPTED):
            self.waiting.remove(sequence)
        else:
            return False
        sequence.state = State.ABORTED
        sequence.finished = now
        self.telemetry.finished["abort"] += 1
        count_down(self.adapters_in_flight, sequence.adapter)
        self._blocked = False
        self.interrupt(now)
        if not self._flight:
            self._measure()
        return True

    def load_adapter(self, adapter: str) -> None:
        """Brings an adapter into a slot ahead of its first request; the next step waits for it.

        Without a slot that the batch can spare, nothing happens until a request needs the adapter.
        """
        in_batch = self._running_adapters
        if self.settings.max_loras and self.slots.can_take(adapter, in_batch) and self.slots.use(adapter, in_batch):
            self._pending_load_ms += self.settings.lora_load_ms

    def plan(self, now: float, steps: int = 1) -> float | None:
        """Begins the next step at `now` and returns when it ends; None when there is nothing to do.

        `steps` > 1 allows a run of that many steps when all of them are pure decode with the same batch.
        """
        assert self._flight is None, "settle the step in progress first"
        if not self.running and not self.waiting:
            return None
        settings = self.settings
        budget = settings.max_num_batched_tokens
        decoding: list[Sequence] = []
        chunks: list[tuple[Sequence, int]] = []
        preempted = False
        size = settings.block_size
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            computed, known = sequence.computed, sequence.prompt_tokens + sequence.generated
            if sequence.generated and computed == known - 1 and computed % size and known % size:
                # Decodes within the block it holds: most of a batch in most steps.
                decoding.append(sequence)
                budget, index = budget - 1, index + 1
                continue
            take = min(known - computed, budget)
            while not self._grow(sequence, computed + take):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            if sequence.state is not State.RUNNING:
                break
            if sequence.generated and sequence.computed == known - 1:
                decoding.append(sequence)
            else:
                chunks.append((sequence, take))
            budget, index = budget - take, index + 1
        load_ms = self._touch_adapters() + self._pending_load_ms
        self._pending_load_ms = 0.0
        if not preempted:
            load_ms += self._admit(now, budget, chunks)
        if not decoding and not chunks:
            return None
        flight = self._launch(now, decoding, chunks, load_ms, 1 if preempted else steps)
        self._flight = flight
        return flight.end

    def interrupt(self, now: float) -> float | None:
        """Ends a run at the step in progress, unless an arrival would have to wait behind a stuck sequence anyway.

        Returns when the (shortened) run ends; None when the engine is between steps.
        """
        flight = self._flight
        if flight is None:
            return None
        if flight.steps > 1 and not self._blocked:
            flight.steps = min(flight.steps, flight.ended_by(now) + 1)
        return flight.end

    def settle(self, now: float) -> Outcome:
        """Completes every step that has ended by `now` and returns what they brought."""
        self._advance(now)
        outcome, self._outcome = self._outcome, Outcome()
        return outcome

    def twin(self, accelerator: Accelerator) -> Engine:
        """A copy on another accelerator that goes on for itself, the step in progress included; its counters begin at
        0."""
        other = Engine(self.settings, accelerator)
        known = {id(sequence): sequence.twin() for sequence in (*self.running, *self.waiting)}
        other.blocks, other.slots = self.blocks.twin(), self.slots.twin()
        other.running = [known[id(sequence)] for sequence in self.running]
        other.waiting = deque(known[id(sequence)] for sequence in self.waiting)
        other.adapters_in_flight = dict(self.adapters_in_flight)
        other._running_adapters = dict(self._running_adapters)
        other._deferred, other._blocked, other._pending_load_ms = self._deferred, self._blocked, self._pending_load_ms
        if self._flight is not None:
            flight = copy(self._flight)
            # Who was aborted meanwhile stays what it is.
            flight.decoding = [known.get(id(sequence), sequence) for sequence in flight.decoding]
            flight.chunks = [(known.get(id(sequence), sequence), take) for sequence, take in flight.chunks]
            other._flight = flight
        return other

    # -- planning -----------------------------------------------------------------------------------------------------

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Gives a running sequence the blocks for its first `tokens` tokens and names the full ones."""
        size = self.settings.block_size
        table = sequence.table
        missing = -(-tokens // size) - len(table)
        if missing > 0:
            if missing > self.blocks.free:
                return False
            self.blocks.allocate(missing)
            table.extend([UNNAMED] * missing)
        first, last, hashes = sequence.computed // size, tokens // size, sequence.block_hashes
        if last > first and self.settings.enable_prefix_caching:
            for position in range(first, min(last, len(hashes))):
                if table[position] == UNNAMED and self.blocks.name(hashes[position]):
                    table[position] = hashes[position]
        return True

    def _preempt(self, sequence: Sequence) -> None:
        count_down(self._running_adapters, sequence.adapter)
        self.blocks.release(sequence.table)
        sequence.computed = 0
        sequence.preemptions += 1
        sequence.state = State.PREEMPTED
        self.waiting.appendleft(sequence)
        self.telemetry.preemptions += 1
        self._outcome.preempted.append(sequence)

    def _touch_adapters(self) -> float:
        """Marks the batch's adapters as just used; the loads this needs, in milliseconds."""
        batch = self._running_adapters
        return self.settings.lora_load_ms * sum([self.slots.use(adapter, batch) for adapter in batch])

    def _admit(self, now: float, budget: int, chunks: list[tuple[Sequence, int]]) -> float:
        """Moves waiting sequences into the batch while anything is left; the adapter loads this needs, in ms."""
        load_ms = 0.0
        index = 0
        self._deferred = 0
        self._blocked = False
        while index < len(self.waiting) and budget > 0:
            if len(self.running) >= self.settings.max_num_seqs:
                self._blocked = True
                break
            sequence = self.waiting[index]
            adapter = sequence.adapter
            if (
                adapter is not None
                and adapter not in self._running_adapters
                and len(self._running_adapters) >= self.settings.max_loras
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

    def _enter(self, sequence: Sequence, budget: int) -> int:
        """Gives a waiting sequence its cached blocks and those of its first chunk; the chunk's tokens, 0 if no room.

        The whole prompt must fit in what is free now, although only the chunk's blocks are taken.
        """
        size = self.settings.block_size
        tokens = sequence.prompt_tokens + sequence.generated
        hits = 0
        if self.settings.enable_prefix_caching:
            hits = self.blocks.match(sequence.block_hashes, (tokens - 1) // size)
        room = self.blocks.free - self.blocks.unreferenced(sequence.block_hashes, hits)
        if -(-tokens // size) - hits > room:
            return 0
        sequence.table = self.blocks.acquire(sequence.block_hashes, hits)
        sequence.computed = hits * size
        sequence.state = State.RUNNING
        take = min(tokens - sequence.computed, budget)
        self.running.append(sequence)
        self._grow(sequence, sequence.computed + take)
        return take

    def _launch(
        self, now: float, decoding: list[Sequence], chunks: list[tuple[Sequence, int]], load_ms: float, steps: int
    ) -> Flight:
        tokens = attention = 0
        for sequence, take in chunks:
            tokens += take
            attention += take * take + 2 * take * sequence.computed
        context = len(decoding) + sum([sequence.computed for sequence in decoding])
        stall_ms = load_ms + self.accelerator.stall(now)
        count = 1
        if steps > 1 and not chunks and stall_ms == 0.0:
            count = run_length(decoding, steps, self.settings.block_size, self.blocks.free)
        noise = self.accelerator.noise(count)
        duration = self.accelerator.step_ms(len(decoding), context, len(chunks), tokens, attention)
        growth = self.accelerator.growth_ms(len(decoding), context, count) if count > 1 else 0.0
        scheduled = tokens + len(decoding)
        return Flight(now, count, noise * duration + stall_ms, noise * growth, scheduled, decoding, chunks)

    # -- completing ---------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Applies the steps of the flight that have ended by `now`."""
        flight = self._flight
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
        self.telemetry.iteration_tokens.observe(flight.tokens, ended)
        self._retire(end)
        self._measure()

    def _apply_decodes(self, flight: Flight, steps: int, end: float) -> None:
        inter_token = self.telemetry.inter_token
        tokens = self._outcome.tokens
        first_end = flight.start + flight.first_ms
        previous, alike, alive = -1.0, 0, 0
        size, running = self.settings.block_size, State.RUNNING
        growing = steps > 1 or not flight.planned_blocks
        for sequence in flight.decoding:
            if sequence.state is not running:
                continue
            alive += 1
            if sequence.last_token != previous:
                if alike:
                    inter_token.observe((first_end - previous) / 1000, alike)
                previous, alike = sequence.last_token, 0
            alike += 1
            computed = sequence.computed
            if growing and not 0 < computed % size < size - steps:
                grown = self._grow(sequence, computed + steps)
                assert grown, "a run was planned beyond the free blocks"
            sequence.computed = computed + steps
            sequence.generated += steps
            sequence.last_token = end
            if self.tells_tokens:
                tokens.append((sequence, steps))
        if alike:
            inter_token.observe((first_end - previous) / 1000, alike)
        for step in range(1, steps):
            inter_token.observe((flight.first_ms + flight.growth_ms * step) / 1000, alive)
        self.telemetry.generation_tokens += alive * steps
        self.telemetry.busy_ms += end - flight.start

    def _apply_chunks(self, flight: Flight, end: float) -> None:
        for sequence, take in flight.chunks:
            if sequence.state is not State.RUNNING:
                continue
            sequence.computed += take
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
                self.telemetry.inter_token.observe((end - sequence.last_token) / 1000)
            sequence.generated += 1
            sequence.last_token = end

    def _retire(self, end: float) -> None:
        """Takes finished sequences out of the batch and frees their blocks."""
        done = [sequence for sequence in self.running if sequence.generated >= sequence.output_tokens]
        if not done:
            return
        self.running = [sequence for sequence in self.running if sequence.generated < sequence.output_tokens]
        for sequence in done:
            sequence.state = State.FINISHED
            sequence.finished = end
            count_down(self._running_adapters, sequence.adapter)
            self.blocks.release(sequence.table)
            count_down(self.adapters_in_flight, sequence.adapter)
            self.telemetry.completed(sequence)
            self._outcome.finished.append(sequence)

    def _measure(self) -> None:
        gauges = self.telemetry.gauges
        gauges.running = len(self.running)
        gauges.waiting_deferred = min(self._deferred, len(self.waiting))
        gauges.waiting_capacity = len(self.waiting) - gauges.waiting_deferred
        gauges.kv_usage = self.kv_usage()
