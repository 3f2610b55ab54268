"""Placements packed and taken in by the compiled core, against the reference."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
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
TOGETHER_MS, MOST = 20.0, 1_000
PLACEMENTS = st.tuples(
    st.integers(0, 6),
    st.builds(chain_of, st.integers(0, 3), st.integers(0, 20), st.sampled_from([64, 0.5, 33.3])),
    LESSONS,
    NAMES,
    NUMBERS,
    NAMES,
)


class Side:
    """What one core packs, and whom it tells."""

    def __init__(self, kind, index, generations=GENERATIONS):
        self.told, self.faults = [], []
        self.packed = kind(
            generations, TOGETHER_MS, MOST, self.told.append, lambda: self.faults.append(sys.exc_info()[1])
        )
        self.packed.read_with(index)
        self.packed.wanted = True


def indexes():
    found = CORE.prefix_index(2_000.0), ReferencePrefixIndex(2_000.0)
    for index in found:
        index.resize(3)
    return found


GENERATIONS_TOLD = memoryview(array("Q", [0, 1, 7, 2**64 - 1, 1, 0, 7]))


@given(st.lists(st.tuples(st.sampled_from([0.0, 7.0, 20.0]), st.booleans(), PLACEMENTS), max_size=12))
def test_both_pack_the_same_and_take_in_the_same(steps):
    """At the same times, whoever packs and whoever reads; slots without an endpoint, with another one and of no table
    are left alone."""
    index, reference = indexes()
    mine, theirs = (Side(kind, index, GENERATIONS_TOLD) for kind in (CORE.packed, ReferencePacked))
    now = 1_000.0
    for later, wanted, one in steps:
        now += later
        for side in (mine, theirs):
            side.packed.wanted = wanted
            side.packed.placed(*one, now)
        assert mine.told == theirs.told and mine.packed.told_ms == theirs.packed.told_ms
        assert len(mine.packed) == len(theirs.packed) < MOST
    for side in (mine, theirs):
        side.packed.tell(now)
        assert not len(side.packed) and side.packed.take() == b"" and not side.faults
    assert mine.told == theirs.told and all(told and len(told) % 8 == 0 for told in mine.told)
    for told in mine.told:
        assert CORE.take_in(told, index, SLOTS, GENERATIONS) == reference_take_in(told, reference, SLOTS, GENERATIONS)
    assert [index.held(slot) for slot in range(3)] == [reference.held(slot) for slot in range(3)]
    assert index.tokens().tolist() == reference.tokens().tolist()
    assert index.tokens()[1] == 0


def test_lessons_are_summed_by_slot_and_names_stay_in_order():
    index, _ = indexes()
    side = Side(CORE.packed, index)
    chain = chain_of(0, 3, 64)
    side.packed.placed(2, NO_PREFIX, None, "", 0.0, "", 0.0)
    for ttft_ms, adapter, key in ((20.0, "", ""), (0.0, "one", ""), (30.0, "two", "key")):
        side.packed.placed(0, chain, Lesson(0, 5.0, ttft_ms, 100.0), adapter, 400.0, key, 1.0)
    side.packed.tell(1.0)
    assert len(side.told) == 2, "the first at once"
    taught, named = CORE.take_in(b"".join(side.told), index, SLOTS, GENERATIONS)
    assert taught == [(0, 15.0, 50.0, 2, 300.0), (2, 0.0, 0.0, 0, 0.0)]
    assert named == [(0, "one", 400.0, ""), (0, "two", 400.0, "key")]
    assert index.tokens().tolist() == [192.0, 0.0, 0.0]


@pytest.mark.parametrize("core", ["compiled", "reference"])
def test_what_ends_in_the_middle_is_refused_and_what_came_before_it_is_kept(core):
    index, reference = indexes()
    side = Side(CORE.packed, index)
    side.packed.placed(0, chain_of(0, 3, 64), None, "", 0.0, "", 0.0)
    side.packed.placed(0, chain_of(1, 5, 64), None, "name", 0.0, "", 0.0)
    told = side.told[0] + side.packed.take()
    whole = len(told)
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


@pytest.mark.parametrize("kind", [CORE.packed, ReferencePacked])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"slot": -1}, (OverflowError, struct.error)),
        ({"slot": 5}, IndexError),
        ({"chain": PrefixChain(hashes=[1, 2], ends=[1.0])}, (ValueError, struct.error)),
        ({"chain": PrefixChain(hashes=["a"], ends=[1.0])}, (TypeError, struct.error)),
        ({"adapter": "\ud800"}, UnicodeEncodeError),
        ({"routing_key": "\ud800"}, UnicodeEncodeError),
        ({"adapter": None}, (TypeError, AttributeError)),
    ],
)
def test_what_cannot_be_told_is_said_and_changes_nothing(kind, change, error):
    side = Side(kind, indexes()[0])
    good = {
        "slot": 0, "chain": chain_of(0, 3, 64), "lesson": None, "adapter": "", "adapter_ms": 0.0, "routing_key": "",
        "now": 0.0,
    }  # fmt: skip
    for _ in range(2):
        side.packed.placed(*good.values())
    size = len(side.packed)
    side.packed.placed(*{**good, **change}.values())
    assert len(side.packed) == size > 0 and len(side.told) == 1
    assert [type(fault) for fault in side.faults] and isinstance(side.faults[0], error)


@pytest.mark.parametrize("kind", [CORE.packed, ReferencePacked])
def test_many_do_not_wait_for_the_time(kind):
    side = Side(kind, indexes()[0])
    for number in range(5):
        side.packed.placed(0, chain_of(number, 20, 64), None, "", 0.0, "", 1.0)
    assert [len(told) // 376 for told in side.told] == [1, 3], "the first at once, then 1,000 bytes and more"
    side.packed.wanted = False
    side.packed.placed(0, chain_of(0, 20, 64), None, "", 0.0, "", 30.0)
    assert len(side.packed) == 376 and len(side.told) == 2, "nobody is there"


def test_nothing_is_told_where_chains_cannot_be_read_yet():
    packed = CORE.packed(GENERATIONS, TOGETHER_MS, MOST, pytest.fail, lambda: faults.append(sys.exc_info()[1]))
    faults = []
    packed.wanted = True
    packed.placed(0, NO_PREFIX, None, "", 0.0, "", 0.0)
    assert isinstance(faults[0], TypeError) and not len(packed)
