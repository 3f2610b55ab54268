"""The shared account as a machine: whatever workers do and whoever dies, the sums are those of the open bookings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core_pools import request, spec
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.state.samples import EngineSample
from worker_pools import Worker, Workers

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Placement


class AccountMachine(RuleBasedStateMachine):
    """Requests come and go at three workers that die and come back: the sums are always those of the open bookings."""

    def __init__(self) -> None:
        super().__init__()
        self.crew = Workers(3, 3)
        self.open: list[list[Placement]] = [[] for _ in range(3)]

    def teardown(self) -> None:
        self.crew.close()

    def _worker(self, who: int) -> Worker:
        self.crew.now += 7.0
        return self.crew.workers[who]

    @rule(who=st.integers(0, 2), prompt=st.integers(1, 5_000), sequences=st.integers(1, 3))
    def place(self, who: int, prompt: int, sequences: int) -> None:
        placed = self._worker(who).pool.place(request(prompt, sequences=sequences), self.crew.now)
        self.open[who].append(placed)

    @precondition(lambda self: any(self.open))
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def finish(self, data: st.DataObject, outcome: Outcome) -> None:
        who = data.draw(st.sampled_from([who for who in range(3) if self.open[who]]))
        placed = self.open[who].pop(data.draw(st.integers(0, len(self.open[who]) - 1)))
        self._worker(who).pool.finish(placed, outcome, self.crew.now)

    @precondition(lambda self: any(self.open))
    @rule(data=st.data(), index=st.integers(0, 3))
    def served_elsewhere(self, data: st.DataObject, index: int) -> None:
        who = data.draw(st.sampled_from([who for who in range(3) if self.open[who]]))
        placed = data.draw(st.sampled_from(self.open[who]))
        self._worker(who).pool.served(placed, spec(index).address, self.crew.now, attempts=2)

    @rule(who=st.integers(0, 2))
    def die(self, who: int) -> None:
        self.crew.die(self.crew.workers[who])
        self.crew.workers[who] = self.crew.join()
        self.open[who].clear()

    @rule(who=st.integers(0, 2), wanted=st.sets(st.integers(0, 3), min_size=1))
    def discover(self, who: int, wanted: set[int]) -> None:
        self._worker(who).pool.apply_endpoints([spec(index) for index in wanted])

    @rule(who=st.integers(0, 2), running=st.integers(0, 9), waiting=st.integers(0, 3))
    def sample(self, who: int, running: int, waiting: int) -> None:
        worker = self._worker(who)
        for endpoint in worker.pool.table.wanted():
            taken = EngineSample(taken_ms=self.crew.now, running=running, waiting=waiting)
            worker.shared.on_sample(endpoint.spec, taken)

    @invariant()
    def sums_are_those_of_the_open_bookings(self) -> None:
        bookings = [placed.booking for placements in self.open for placed in placements]
        for worker in self.crew.workers:
            worker.peers.hear()
            assert worker.peers.faults == 0
            table = worker.pool.table
            for endpoint in table:
                there = [one for one in bookings if one.endpoint.spec.key == endpoint.spec.key]
                slot = endpoint.slot
                assert table.requests[slot] == len(there)
                assert table.inflight[slot] == sum(one.sequences for one in there)
                prompts = sum(one.prompt_tokens * one.sequences for one in there)
                assert table.prompt_tokens[slot] == pytest.approx(prompts)
                started = sum(one.first_ms * one.sequences for one in there)
                assert table.started_sum_ms[slot] == pytest.approx(started, rel=1e-9, abs=1e-3)


TestAccount = AccountMachine.TestCase
TestAccount.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
