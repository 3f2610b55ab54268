"""The compiled prefix index against the reference, step by step, and what no input may do to it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core_pools import BLOCK, chain
from poolpilot_picker import compiled
from poolpilot_picker.requests.request import PrefixChain
from poolpilot_picker.state.prefix import ReferencePrefixIndex

CORE = compiled.load()

rates = st.sampled_from((1.0, 1.0, 0.37, 5.3, 1e-9))
paths = st.lists(st.integers(0, 1) | st.just(0), max_size=24)


def grown(path, rate, irregular=()):
    """A chain through a tree: equal beginnings of paths share hashes; `irregular` blocks are 100 tokens longer."""
    hashes, ends, block, at = [], [], 17, 0.0
    for depth, turn in enumerate(path):
        block = hash((block, turn, depth)) & (1 << 64) - 1
        at += BLOCK * rate + (100.0 if depth in irregular else 0.0)
        hashes.append(block)
        ends.append(at)
    return PrefixChain(hashes=hashes, ends=ends)


chains = st.builds(grown, paths, rates, st.sets(st.integers(0, 24), max_size=2))
capacities = st.sampled_from((0.0, 100.0, 700.0, 3_000.0, 1e9, -1.0))


class Twins(RuleBasedStateMachine):
    """Both are told the same."""

    def __init__(self):
        super().__init__()
        self.reference, self.compiled = ReferencePrefixIndex(), CORE.prefix_index()
        self.slots = 0

    def _both(self, method, *arguments):
        for index in (self.reference, self.compiled):
            getattr(index, method)(*arguments)

    @initialize(slots=st.integers(0, 6), capacity=capacities)
    def begin(self, slots, capacity):
        self.resize(slots)
        for slot in range(slots):
            self._both("set_capacity", slot, capacity)

    @rule(slots=st.integers(0, 6))
    def resize(self, slots):
        self.slots = slots
        self._both("resize", slots)

    @rule(prefix=chains, slot=st.integers(0, 5))
    def insert(self, prefix, slot):
        if slot < self.slots:
            self._both("insert", prefix, slot)

    @rule(prefix=chains)
    def insert_everywhere(self, prefix):
        for slot in range(self.slots):
            self._both("insert", prefix, slot)

    @rule(slot=st.integers(0, 5), capacity=capacities)
    def set_capacity(self, slot, capacity):
        if slot < self.slots:
            self._both("set_capacity", slot, capacity)

    @rule(slot=st.integers(0, 5), method=st.sampled_from(("forget", "clear")))
    def lose(self, slot, method):
        if slot < self.slots:
            self._both(method, slot)

    @rule(prefix=chains, most=st.sampled_from((math.inf, 0.0, 130.0)))
    def match(self, prefix, most):
        assert self.compiled.match(prefix, most).tolist() == self.reference.match(prefix, most).tolist()

    @invariant()
    def they_hold_the_same_in_the_same_order(self):
        assert self.compiled.tokens().tolist() == self.reference.tokens().tolist()
        assert self.compiled.reuse() == pytest.approx(self.reference.reuse(), rel=1e-9)
        assert (len(self.compiled), self.compiled.entries) == (len(self.reference), self.reference.entries)
        for slot in range(self.slots):
            assert self.compiled.held(slot) == self.reference.held(slot)
            assert self.compiled.capacity(slot) == self.reference.capacity(slot)


TestTwins = Twins.TestCase
TestTwins.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_life_ends_the_same(seed):
    rng = random.Random(seed)
    reference, fast = ReferencePrefixIndex(), CORE.prefix_index()
    for index in (reference, fast):
        index.resize(40)
        for slot in range(40):
            index.set_capacity(slot, 150.0 * BLOCK)
    for _ in range(1_500):
        path = [0] * rng.randrange(30) + [rng.randrange(3) for _ in range(rng.randrange(12))]
        prefix, slot = grown(path, 1.0), min(39, int(rng.expovariate(0.1)))
        reference.insert(prefix, slot)
        fast.insert(prefix, slot)
        assert fast.match(prefix).tolist() == reference.match(prefix).tolist()
    assert [fast.held(slot) for slot in range(40)] == [reference.held(slot) for slot in range(40)]
    assert fast.reuse() == pytest.approx(reference.reuse(), rel=1e-9)
    assert 0.0 < fast.reuse().min() < fast.reuse().max() <= 1.0


# ── what no input may do ─────────────────────────────────────────────────────

ends = st.sampled_from((math.nan, math.inf, -math.inf, -5.0, 0.0, 1.0, 64.0, 1e300, 7))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.lists(st.tuples(st.integers(0, 5) | st.sampled_from((2**64 - 1, 2**63)), ends), max_size=10),
            st.sampled_from(("insert", "insert", "insert", "match", "forget", "capacity", "resize")),
            st.sampled_from((math.nan, math.inf, -math.inf, 0.0, 2.0, 300.0)),
        ),
        max_size=60,
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_survives_chains_that_are_none(steps):
    """Blocks that repeat, change their predecessor or have no size: anything may be matched, nothing may break."""
    index = CORE.prefix_index()
    index.resize(4)
    for slot, blocks, action, number in steps:
        prefix = PrefixChain(hashes=[block for block, _ in blocks], ends=[end for _, end in blocks])
        if action == "insert":
            index.insert(prefix, slot)
        elif action == "match":
            assert index.match(prefix).shape == (4,)
        elif action == "capacity":
            index.set_capacity(slot, number)
        elif action == "resize":
            index.resize(slot)
            index.resize(4)
        else:
            index.forget(slot)
        held = [index.held(one) for one in range(4)]
        assert sum(map(len, held)) == index.entries
        assert (index.tokens() >= 0).all()
    for slot in range(4):
        index.forget(slot)
    assert (len(index), index.entries, index.tokens().sum()) == (0, 0, 0.0)


@pytest.mark.parametrize("slot", [-1, 2, 2**40])
@pytest.mark.parametrize("method", ["insert", "forget", "clear", "set_capacity", "held", "capacity"])
def test_a_slot_that_is_not_there_is_refused(method, slot):
    index = CORE.prefix_index()
    index.resize(2)
    arguments = {"insert": (chain(("a", BLOCK)), slot), "set_capacity": (slot, 1.0)}.get(method, (slot,))
    with pytest.raises((IndexError, OverflowError)):
        getattr(index, method)(*arguments)


@pytest.mark.parametrize(
    ("hashes", "ends", "error"),
    [
        ([1, 2], [64.0], ValueError),
        ([-1], [64.0], OverflowError),
        ([2**64], [64.0], OverflowError),
        ([2**64 + 1], [64.0], OverflowError),
        ([-(2**80)], [64.0], OverflowError),
        (["a"], [64.0], TypeError),
        ([1.0], [64.0], TypeError),
        ([1], ["a"], TypeError),
        ([1], [None], TypeError),
        ([1], [10**400], OverflowError),
        (7, [64.0], TypeError),
    ],
)
def test_what_is_no_chain_is_refused_and_changes_nothing(hashes, ends, error):
    index = CORE.prefix_index()
    index.resize(1)
    with pytest.raises(error):
        index.insert(PrefixChain(hashes=hashes, ends=ends), 0)
    assert (len(index), index.entries) == (0, 0)


def test_what_was_refused_is_not_taken_for_what_was_read():
    index = CORE.prefix_index()
    index.resize(2)
    whole = chain(("a", 3 * BLOCK))
    index.insert(whole, 0)
    broken = PrefixChain(hashes=[5, 6, "a"], ends=whole.ends)
    for _ in range(2):
        with pytest.raises(TypeError):
            index.match(broken)
    assert index.match(whole).tolist() == [3.0 * BLOCK, 0.0]
    index.match(chain(("b", 2 * BLOCK)))
    index.insert(whole, 1)
    assert index.match(whole).tolist() == [3.0 * BLOCK] * 2 and len(index) == 3
    longer = [*whole.hashes]
    index.match(PrefixChain(hashes=longer, ends=[*whole.ends, 4.0 * BLOCK]))
    longer.append(7)
    index.insert(PrefixChain(hashes=longer, ends=[*whole.ends, 4.0 * BLOCK]), 0)
    assert len(index) == 4, "a list that has grown is another chain"


@pytest.mark.parametrize("number", [2**60 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_hash_has_up_to_64_bits(number):
    index = CORE.prefix_index()
    index.resize(1)
    index.insert(PrefixChain(hashes=[number], ends=[1.0]), 0)
    assert index.held(0) == [number]


@pytest.mark.parametrize("slots", [-1, 1 << 30])
def test_an_absurd_number_of_slots_is_refused(slots):
    with pytest.raises((ValueError, OverflowError)):
        CORE.prefix_index().resize(slots)


# ── memory ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shared", "own", "most"), [(96, 32, 12.0), (0, 128, 10.0), (0, 8, 17.0), (30, 4, 24.0), (0, 4, 26.0)]
)
def test_an_entry_takes_few_bytes(shared, own, most):
    """An entry is one block at one slot. What is counted is what was asked of the allocator, and its overhead."""
    index, rng = CORE.prefix_index(), random.Random(1)
    index.resize(20)
    heads = [[rng.getrandbits(64) for _ in range(shared)] for _ in range(10)]
    bounds = [float(BLOCK * (block + 1)) for block in range(shared + own)]
    for slot in range(20):
        index.set_capacity(slot, 2_000.0 * BLOCK)
    while index.tokens().min() < 1_950.0 * BLOCK:
        for slot in range(20):
            own_blocks = [rng.getrandbits(64) for _ in range(own)]
            index.insert(PrefixChain(hashes=[*rng.choice(heads), *own_blocks], ends=bounds), slot)
    assert index.memory_bytes / index.entries <= most


def test_memory_is_given_back():
    index = CORE.prefix_index()
    index.resize(8)
    empty = index.memory_bytes
    for number in range(400):
        index.insert(chain((number % 7, 20 * BLOCK), (number, 5 * BLOCK)), number % 8)
    full = index.memory_bytes
    for slot in range(8):
        index.forget(slot)
    assert index.memory_bytes < empty + 0.8 * (full - empty), "numbers of runs stay, their blocks do not"
    before = index.memory_bytes
    for _ in range(3):
        for number in range(400):
            index.insert(chain((number % 7, 20 * BLOCK), (number, 5 * BLOCK)), number % 8)
        for slot in range(8):
            index.forget(slot)
    assert index.memory_bytes == before
