"""Slots that all workers agree on, in whatever order they learn of endpoints, and never two endpoints in one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from core_pools import spec
from poolpilot_picker.sharing.memory import MOST_ENDPOINTS, Memory
from poolpilot_picker.sharing.slots import SlotBook
from worker_pools import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory.create(2)
    yield made
    os.close(made.fd)


def test_the_same_endpoint_has_the_same_slot(memory: Memory) -> None:
    one, other = SlotBook(memory, memory.seat() or 0), SlotBook(memory, memory.seat() or 0)
    assert one.take(("a", 1)) == 0 and one.take(("b", 1)) == 1
    assert other.take(("b", 1)) == 1 and other.take(("a", 1)) == 0
    assert other.take(("a", 2)) == 2, "another port is another endpoint"


def test_a_slot_is_free_when_nobody_holds_it(memory: Memory) -> None:
    one, other = SlotBook(memory, memory.seat() or 0), SlotBook(memory, memory.seat() or 0)
    one.take(("a", 1))
    other.take(("a", 1))
    generation = int(memory.generations[0])
    one.give_back(0)
    assert one.take(("b", 1)) == 1
    other.give_back(0)
    assert one.take(("c", 1)) == 0
    assert memory.generations[0] == generation + 1


def test_a_dead_worker_holds_nothing(memory: Memory) -> None:
    chair = memory.seat()
    assert chair is not None
    SlotBook(memory, chair).take(("a", 1))
    memory.accounts[chair, 0, 0] = 5.0
    memory.clear(chair)
    assert SlotBook(memory, memory.seat() or 0).take(("b", 1)) == 0
    assert not memory.accounts[:, :8].any()


def test_there_are_only_so_many(memory: Memory) -> None:
    book = SlotBook(memory, memory.seat() or 0)
    memory.holds[0] = 1
    assert book.take(("a", 1)) is None
    memory.holds[0, MOST_ENDPOINTS - 1] = 0
    assert book.take(("a", 1)) == MOST_ENDPOINTS - 1


def test_chairs_are_taken_once_and_again(memory: Memory) -> None:
    chairs = [memory.seat() for _ in range(memory.chairs)]
    assert chairs == list(range(8)) and memory.seat() is None
    memory.clear(3)
    assert memory.seat() == 3


class AgreementMachine(RuleBasedStateMachine):
    """Workers that hear of endpoints in any order, and die and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.crew = Workers(3, 0)

    def teardown(self) -> None:
        self.crew.close()

    @rule(who=st.integers(0, 2), wanted=st.sets(st.integers(0, 6)))
    def discover(self, who: int, wanted: set[int]) -> None:
        self.crew.workers[who].pool.apply_endpoints([spec(index) for index in sorted(wanted, reverse=bool(who % 2))])

    @rule(who=st.integers(0, 2), wanted=st.sets(st.integers(0, 6)))
    def die(self, who: int, wanted: set[int]) -> None:
        self.crew.die(self.crew.workers[who])
        self.crew.workers[who] = self.crew.join([spec(index) for index in wanted])

    @invariant()
    def nobody_disagrees(self) -> None:
        where: dict[int, tuple[str, int]] = {}
        slots: dict[tuple[str, int], int] = {}
        for worker in self.crew.workers:
            for endpoint in worker.pool.table:
                key = endpoint.spec.key
                assert where.setdefault(endpoint.slot, key) == key
                assert slots.setdefault(key, endpoint.slot) == endpoint.slot
        held = np.flatnonzero(self.crew.memory.holds.max(axis=0))
        assert set(held.tolist()) == set(where)


TestAgreement = AgreementMachine.TestCase
TestAgreement.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
