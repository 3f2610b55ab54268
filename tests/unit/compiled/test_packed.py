"""Placements packed and taken in by the compiled core, against the reference."""

from __future__ import annotations

import contextlib
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker import compiled
from poolpilot_picker.flow.learners import Lesson
from poolpilot_picker.flow.packed import ReferencePacked, reference_take_in
from poolpilot_picker.requests.request import NO_PREFIX, PrefixChain
from poolpilot_picker.state.prefix import ReferencePrefixIndex

CORE = compiled.load()
SLOTS = ["a", None, "c"]
"""Stands for endpoints."""
GENERATIONS = memoryview(array("Q", [1, 1, 2**64 - 1, 0, 7]))


def chain_of(system: int, blocks: int, size: float) -> PrefixChain:
    hashes = random.Random(system)
    return PrefixChain(
        hashes=[hashes.getrandbits(64) for _ in range(blocks)], ends=[size * (block + 1) for block in range(blocks)]
    )


NUMBERS = st.floats(0.0, 1e9)
LESSONS = st.none() | st.builds(
    Lesson, window=st.integers(0, 9), work_ms=NUMBERS, ttft_ms=st.just(0.0) | NUMBERS, cached=NUMBERS
)
NAMES = st.sampled_from(["", "a", "eight by", "eight bytes and", "äöü 漢字"])
PLACEMENTS = st.tuples(
    st.integers(0, 6),
    st.sampled_from([0, 1, 7, 2**64 - 1]),
    st.builds(chain_of, st.integers(0, 3), st.integers(0, 20), st.sampled_from([64, 0.5, 33.3])),
    LESSONS,
    NAMES,
    NUMBERS,
    NAMES,
)


def indexes():
    found = CORE.prefix_index(2_000.0), ReferencePrefixIndex(2_000.0)
    for index in found:
        index.resize(3)
    return found


@given(st.lists(PLACEMENTS, max_size=12))
def test_both_pack_the_same_and_take_in_the_same(placements):
    """Whoever packs and whoever reads; slots without an endpoint, with another one and of no table are left alone."""
    index, reference = indexes()
    mine, theirs = CORE.packed(index), ReferencePacked()
    for one in placements:
        assert mine.add(*one) == theirs.add(*one) == len(mine) == len(theirs)
    told = mine.take()
    assert told == theirs.take() and len(told) % 8 == 0
    assert len(mine) == len(theirs) == 0 and mine.take() == theirs.take() == b""
    assert CORE.take_in(told, index, SLOTS, GENERATIONS) == reference_take_in(told, reference, SLOTS, GENERATIONS)
    assert [index.held(slot) for slot in range(3)] == [reference.held(slot) for slot in range(3)]
    assert index.tokens().tolist() == reference.tokens().tolist()
    assert index.tokens()[1] == 0


def test_lessons_are_summed_by_slot_and_names_stay_in_order():
    index, _ = indexes()
    packed = CORE.packed(index)
    chain = chain_of(0, 3, 64)
    for ttft_ms, adapter, key in ((20.0, "", ""), (0.0, "one", ""), (30.0, "two", "key")):
        packed.add(0, 1, chain, Lesson(0, 5.0, ttft_ms, 100.0), adapter, 400.0, key)
    packed.add(2, 2**64 - 1, NO_PREFIX, None, "", 0.0, "")
    taught, named = CORE.take_in(packed.take(), index, SLOTS, GENERATIONS)
    assert taught == [(0, 15.0, 50.0, 2, 300.0), (2, 0.0, 0.0, 0, 0.0)]
    assert named == [(0, "one", 400.0, ""), (0, "two", 400.0, "key")]
    assert index.tokens().tolist() == [192.0, 0.0, 0.0]


@pytest.mark.parametrize("core", ["compiled", "reference"])
def test_what_ends_in_the_middle_is_refused_and_what_came_before_it_is_kept(core):
    index, reference = indexes()
    packed = CORE.packed(index)
    packed.add(0, 1, chain_of(0, 3, 64), None, "", 0.0, "")
    whole = packed.add(0, 1, chain_of(1, 5, 64), None, "name", 0.0, "")
    told = packed.take()
    take_in, into = (CORE.take_in, index) if core == "compiled" else (reference_take_in, reference)
    for length in range(56 + 48 + 1, whole):
        with pytest.raises(ValueError, match=r"are no placement|ends after"):
            take_in(told[:length], into, SLOTS, GENERATIONS)
        assert into.tokens()[0] == 192.0


@given(st.binary(max_size=300))
def test_no_bytes_do_harm(told):
    """Sizes that are no sizes are not believed."""
    index, _ = indexes()
    with contextlib.suppress(ValueError):
        CORE.take_in(told, index, SLOTS, GENERATIONS)
    assert index.tokens().sum() <= 6_000.0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"slot": -1}, OverflowError),
        ({"generation": 2**64}, OverflowError),
        ({"chain": PrefixChain(hashes=[1, 2], ends=[1.0])}, ValueError),
        ({"chain": PrefixChain(hashes=["a"], ends=[1.0])}, TypeError),
        ({"adapter": "\ud800"}, UnicodeEncodeError),
        ({"routing_key": "\ud800"}, UnicodeEncodeError),
        ({"adapter": None}, TypeError),
    ],
)
def test_what_cannot_be_told_is_refused_and_changes_nothing(change, error):
    packed = CORE.packed(indexes()[0])
    good = {
        "slot": 0, "generation": 1, "chain": chain_of(0, 3, 64), "lesson": None,
        "adapter": "", "adapter_ms": 0.0, "routing_key": "",
    }  # fmt: skip
    size = packed.add(**good)
    with pytest.raises(error):
        packed.add(**{**good, **change})
    assert len(packed) == size == len(packed.take())
