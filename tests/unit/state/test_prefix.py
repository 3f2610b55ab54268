"""The prefix index against a naive one, and what an engine's cache makes us expect of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_pools import BLOCK, chain
from poolpilot_picker.requests.request import NO_PREFIX
from poolpilot_picker.state.prefix import ASSUMED_TOKENS, prefix_index

pytestmark = pytest.mark.usefixtures("both_cores")

SLOTS = 3


class NaiveIndex:
    """Per slot a list of (block, size), least recently used first."""

    def __init__(self):
        self.slots = [[] for _ in range(SLOTS)]
        self.capacity = [ASSUMED_TOKENS] * SLOTS

    def insert(self, prefix, slot):
        if self.capacity[slot] <= 0:
            return
        held = self.slots[slot]
        starts = [0.0, *prefix.ends]
        for position in reversed(range(len(prefix.hashes))):
            block = prefix.hashes[position]
            known = next((entry for entry in held if entry[0] == block), None)
            if known is not None:
                held.remove(known)
            held.append(known or (block, starts[position + 1] - starts[position]))
        self.fit(slot)

    def fit(self, slot):
        held = self.slots[slot]
        while held and sum(size for _, size in held) > self.capacity[slot]:
            held.pop(0)

    def match(self, prefix):
        matched = []
        for held in self.slots:
            blocks = {block for block, _ in held}
            count = 0
            while count < len(prefix.hashes) and prefix.hashes[count] in blocks:
                count += 1
            matched.append(prefix.ends[count - 1] if count else 0.0)
        return matched


prompts = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), min_size=0, max_size=3).map(
    lambda parts: chain(*((name, blocks * BLOCK) for name, blocks in parts))
)
actions = st.one_of(
    st.tuples(st.just("insert"), st.integers(0, SLOTS - 1), prompts),
    st.tuples(st.just("capacity"), st.integers(0, SLOTS - 1), st.sampled_from((0, 100, 128, 500, 1_000, 5_000))),
    st.tuples(st.just("forget"), st.integers(0, SLOTS - 1), st.none()),
    st.tuples(st.just("clear"), st.integers(0, SLOTS - 1), st.none()),
)


@given(st.lists(actions, max_size=40), prompts)
def test_equals_a_naive_index(done, asked):
    index, naive = prefix_index(), NaiveIndex()
    index.resize(SLOTS)
    for action, slot, argument in done:
        if action == "insert":
            index.insert(argument, slot)
            naive.insert(argument, slot)
        elif action == "capacity":
            index.set_capacity(slot, argument)
            naive.capacity[slot] = argument
            naive.fit(slot)
        else:
            getattr(index, action)(slot)
            naive.slots[slot].clear()
            if action == "clear":
                naive.capacity[slot] = ASSUMED_TOKENS
        assert index.tokens().tolist() == [sum(size for _, size in held) for held in naive.slots]
        assert len(index) == len({block for held in naive.slots for block, _ in held})
    assert index.match(asked).tolist() == naive.match(asked)


def make_index(slots=2, capacity=10 * BLOCK):
    index = prefix_index()
    index.resize(slots)
    for slot in range(slots):
        index.set_capacity(slot, capacity)
    return index


def test_heads_outlive_tails_under_pressure():
    index = make_index(1)
    index.insert(chain(("system", 4 * BLOCK), ("one", 4 * BLOCK)), 0)
    index.insert(chain(("system", 4 * BLOCK), ("two", 4 * BLOCK)), 0)
    assert index.match(chain(("system", 4 * BLOCK)))[0] == 4 * BLOCK
    # Ten blocks fit: of the older conversation its end is gone, not its beginning.
    assert index.match(chain(("system", 4 * BLOCK), ("one", 4 * BLOCK)))[0] == 6 * BLOCK
    assert index.match(chain(("system", 4 * BLOCK), ("two", 4 * BLOCK)))[0] == 8 * BLOCK


def test_a_prompt_longer_than_the_cache_keeps_its_head():
    index = make_index(1)
    index.insert(chain(("long", 30 * BLOCK)), 0)
    assert index.match(chain(("long", 30 * BLOCK)))[0] == 10 * BLOCK


def test_what_is_old_for_its_gaps_is_hardly_asked_for_again():
    index = make_index(3)
    assert index.reuse().tolist() == [0.0, 0.0, 0.0]
    # One conversation that comes back every time, and one that does not.
    index.insert(chain(("left", 4 * BLOCK)), 1)
    young = index.reuse()
    assert young.tolist() == [0.0, 1.0, 0.0]
    for _ in range(300):
        index.insert(chain(("kept", 4 * BLOCK)), 0)
    often = index.reuse()
    assert often[0] == pytest.approx(1.0) and often[2] == 0.0
    # Gaps of one insertion; three hundred have passed.
    assert often[1] == pytest.approx(1.0 / 301.0, rel=0.05)
    # Where everybody comes back as late as that, what is so old is as likely as not to be asked for.
    index.set_capacity(2, 300 * BLOCK)
    for turn in range(30_000):
        index.insert(chain((f"guest {turn % 300}", BLOCK)), 2)
    assert index.reuse()[2] == pytest.approx(0.5, abs=0.01)


def test_a_gap_is_learned_as_far_as_the_prompt_was_there():
    whole, beginning = make_index(1), make_index(1)
    for index, more in ((whole, 0), (beginning, 7)):
        for turn in range(40):
            index.insert(chain(("system", BLOCK), *(((turn, more * BLOCK),) if more else ())), 0)
        index.insert(chain(("other", BLOCK)), 0)
    # Both have gaps of one; who found an eighth of each prompt there believes in it less.
    assert whole.reuse()[0] < beginning.reuse()[0] < 1.0


def test_a_shared_middle_behind_another_head_is_no_hit():
    index = make_index(1)
    index.insert(chain(("head", 2 * BLOCK), ("middle", 4 * BLOCK)), 0)
    assert index.match(chain(("other", 2 * BLOCK), ("middle", 4 * BLOCK)))[0] == 0.0


def test_an_engine_without_prefix_caching_holds_nothing():
    index = make_index(2)
    index.insert(chain(("x", 5 * BLOCK)), 0)
    index.set_capacity(0, 0.0)
    index.insert(chain(("x", 5 * BLOCK)), 0)
    index.insert(chain(("x", 5 * BLOCK)), 1)
    assert index.match(chain(("x", 5 * BLOCK))).tolist() == [0.0, 5 * BLOCK]
    assert index.tokens().tolist() == [0.0, 5 * BLOCK]


def test_every_endpoint_may_hold_a_hot_block():
    index = make_index(200)
    for slot in range(200):
        index.insert(chain(("hot", 3 * BLOCK)), slot)
    assert (index.match(chain(("hot", 3 * BLOCK), ("cold", BLOCK))) == 3 * BLOCK).all()
    assert len(index) == 3


def test_growing_and_shrinking_keeps_what_stays():
    index = make_index(2)
    index.insert(chain(("x", 2 * BLOCK)), 1)
    index.resize(4)
    assert index.match(chain(("x", 2 * BLOCK))).tolist() == [0, 2 * BLOCK, 0, 0]
    index.resize(2)
    assert index.match(chain(("x", 2 * BLOCK))).tolist() == [0, 2 * BLOCK]


@pytest.mark.parametrize("ends", [[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
def test_blocks_without_tokens_are_bounded_too(ends):
    index = make_index(1, capacity=100.0)
    for number in range(300):
        prefix = chain((number, 3 * BLOCK))
        prefix = type(prefix)(hashes=prefix.hashes, ends=ends)
        index.insert(prefix, 0)
    assert len(index) <= 100
    assert index.tokens()[0] <= 100.0


def test_nothing_to_match_matches_nothing():
    assert make_index(2).match(NO_PREFIX).tolist() == [0.0, 0.0]
    assert prefix_index().match(chain(("x", 100 * BLOCK))).shape == (0,)


def test_memory_is_bounded_by_the_capacity():
    index = make_index(2, capacity=50 * BLOCK)
    for number in range(2_000):
        index.insert(chain((number, 4 * BLOCK)), number % 2)
    assert len(index) <= 100
    assert np.all(index.tokens() <= 50 * BLOCK)
