"""Whatever arrives, leaves or runs out: no block leaks, no token is lost, and every sequence comes to its end."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_runs import PROFILE, engine, keys
from poolpilot_lab.engine.model import Engine, Sequence, State, Variation
from poolpilot_lab.engine.model.sequence import UNNAMED

ENDED = (State.FINISHED, State.ABORTED)


class EngineMachine(RuleBasedStateMachine):
    """Random arrivals, aborts, adapters, runs and partial settling on an engine that is too small."""

    engine: Engine

    @initialize(
        blocks=st.integers(8, 40),
        seqs=st.integers(1, 6),
        budget=st.integers(3, 40),
        caching=st.booleans(),
        noise=st.sampled_from([0.0, 0.3]),
    )
    def start(self, blocks: int, seqs: int, budget: int, caching: bool, noise: float) -> None:
        self.engine = engine(
            blocks,
            PROFILE,
            Variation(sigma=noise, step_noise=noise, stall_every_ms=200 if noise else 0, stall_ms=20),
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_loras=2,
            lora_load_ms=3.0,
            enable_prefix_caching=caching,
        )
        self.now = 0.0
        self.sequences: list[Sequence] = []
        self.gained: Counter[Sequence] = Counter()
        self.first: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.preempted = 0

    def _take(self) -> None:
        outcome = self.engine.settle(self.now)
        for sequence, count in outcome.tokens:
            self.gained[sequence] += count
        self.first += outcome.first_tokens
        self.finished += outcome.finished
        self.preempted += len(outcome.preempted)

    @rule(
        prompt=st.integers(1, 20),
        output=st.integers(1, 12),
        stem=st.integers(0, 2),
        adapter=st.sampled_from([None, None, "a", "b", "c"]),
    )
    def arrive(self, prompt: int, output: int, stem: int, adapter: str | None) -> None:
        sequence = Sequence(prompt, output, keys(stem, (prompt + output) // 4), adapter)
        self.engine.add(sequence, self.now)
        self.sequences.append(sequence)
        self.engine.interrupt(self.now)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        self._take()
        ended = sequence.state in ENDED
        assert self.engine.abort(sequence, self.now) == (not ended)
        assert sequence.state in ENDED
        assert sequence.table == []

    @rule(steps=st.sampled_from([1, 1, 5, 64]))
    def go(self, steps: int) -> None:
        if self.engine.busy_until is None:
            self.engine.plan(self.now, steps)
        end = self.engine.busy_until
        if end is not None:
            assert end > self.now
            self.now = end
            self._take()
            assert self.engine.busy_until is None

    @rule(share=st.floats(0.05, 0.95), steps=st.sampled_from([1, 16]))
    def go_part_of_the_way(self, share: float, steps: int) -> None:
        if self.engine.busy_until is None:
            self.engine.plan(self.now, steps)
        end = self.engine.busy_until
        if end is not None:
            self.now += share * (end - self.now)
            self._take()

    @invariant()
    def blocks_are_conserved(self) -> None:
        blocks = self.engine.blocks
        assert 0 <= blocks.free <= blocks.total
        tables = [sequence.table for sequence in self.sequences if sequence.table]
        named = {key for table in tables for key in table if key != UNNAMED}
        assert blocks.used == len(named) + sum(table.count(UNNAMED) for table in tables)
        for sequence in self.engine.running:
            assert len(sequence.table) * 4 >= sequence.computed

    @invariant()
    def every_sequence_is_somewhere(self) -> None:
        e = self.engine
        states = Counter(sequence.state for sequence in self.sequences)
        assert states[State.RUNNING] == len(e.running) <= e.settings.max_num_seqs
        assert states[State.WAITING] + states[State.PREEMPTED] == len(e.waiting)
        assert states[State.NEW] == 0
        adapters = Counter(s.adapter for s in self.sequences if s.adapter and s.state not in ENDED)
        assert e.adapters_in_flight == dict(adapters)
        assert len({s.adapter for s in e.running if s.adapter}) <= 2

    @invariant()
    def totals_agree(self) -> None:
        telemetry = self.engine.telemetry
        finished = [s for s in self.sequences if s.state is State.FINISHED]
        assert telemetry.finished["stop"] == len(finished) == telemetry.e2e.count
        assert telemetry.finished["abort"] == sum(s.state is State.ABORTED for s in self.sequences)
        assert all(s.generated == s.output_tokens and s.table == [] for s in finished)
        assert telemetry.preemptions == sum(s.preemptions for s in self.sequences)
        assert telemetry.generation_tokens == sum(s.generated for s in self.sequences)
        assert telemetry.ttft.count == sum(s.generated > 0 for s in self.sequences)
        assert telemetry.inter_token.count == sum(max(0, s.generated - 1) for s in self.sequences)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(20_000):
            self.go(64)
            if self.engine.in_flight == 0:
                break
        self.blocks_are_conserved()
        self.every_sequence_is_somewhere()
        self.totals_agree()
        assert self.engine.in_flight == 0
        assert self.engine.blocks.used == 0
        # What was told outside is what happened inside.
        assert self.gained == Counter({s: s.generated for s in self.sequences if s.generated})
        assert sorted(map(id, self.first)) == sorted(id(s) for s in self.sequences if s.generated)
        assert sorted(map(id, self.finished)) == sorted(id(s) for s in self.sequences if s.state is State.FINISHED)
        assert self.preempted == self.engine.telemetry.preemptions
        for s in self.finished:
            assert s.arrived <= s.admitted < s.first_token <= s.last_token == s.finished


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
