"""The compiled shares against the reference: the same sums, the same memory, the same calls back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker import compiled
from poolpilot_picker.sharing.shares import ReferenceShares
from poolpilot_picker.state.columns import LEDGER_ROWS, ReferenceColumns, new_block

CORE = compiled.load()
SLOTS, BUCKETS, BUCKET_MS = 3, 4, 100.0
FREE_AT = LEDGER_ROWS - 1


class Side:
    """A worker with one other, by one core."""

    def __init__(self, kind, columns):
        self.blocks = [new_block(SLOTS) for _ in range(3)]
        sums, own, other = (columns(block, SLOTS) for block in self.blocks)
        self.epoch = np.zeros(8, np.uint64)
        self.recent, self.others = np.zeros(SLOTS * 3 * BUCKETS), np.zeros(SLOTS * 3 * BUCKETS)
        self.calls = []
        self.columns = own
        self.table = SimpleNamespace(
            columns=sums,
            account=SimpleNamespace(free_at_ms=self.blocks[1][FREE_AT]),
            free_at_ms=self.blocks[0][FREE_AT],
        )
        self.accounts = [own, other]
        self.shares = kind(self.epoch.data, self.recent.data, BUCKETS, BUCKET_MS, self.look_around, self.hear)
        self.look_around()

    def look_around(self):
        self.calls.append("look around")
        self.shares.follow(self.table, self.accounts, [self.others.data, self.others.data])

    def hear(self, now):
        self.calls.append(now)
        self.shares.due_ms = now + 20.0


SLOT = st.integers(0, SLOTS - 1)
AMOUNT = st.sampled_from([0.0, 1.0, 3.5, 700.0])
STEPS = st.one_of(
    st.tuples(st.just("catch_up")),
    st.tuples(st.just("sum_up")),
    st.tuples(st.just("sum_up_slot"), SLOT),
    st.tuples(st.just("booked"), SLOT, AMOUNT),
    st.tuples(st.just("released"), SLOT, AMOUNT),
    st.tuples(st.just("write"), st.integers(1, 2), st.integers(0, LEDGER_ROWS - 1), SLOT, AMOUNT),
    st.tuples(st.sampled_from(["booked_since", "released_since"]), SLOT),
    st.tuples(st.just("remember"), st.integers(0, SLOTS * BUCKETS - 1), st.sampled_from([0.0, 100.0, 1_000.0]), AMOUNT),
    st.tuples(st.just("come or go")),
    st.tuples(st.just("change")),
)


@given(st.lists(st.tuples(st.sampled_from([0.0, 7.0, 99.0, 1_000.0]), STEPS), max_size=30))
def test_both_do_the_same(steps):
    sides = [Side(CORE.shares, CORE.columns), Side(ReferenceShares, ReferenceColumns)]
    now = 5_000_000.0
    for later, (what, *told) in steps:
        now += later
        for side in sides:
            if what == "write":
                block, row, slot, amount = told
                side.blocks[block][row, slot] = amount
            elif what == "remember":
                place, ago, amount = told
                cells = side.others.reshape(SLOTS, 3, BUCKETS)
                cells[place // BUCKETS, :, place % BUCKETS] = (now - ago) // BUCKET_MS, amount, 2.0 * amount
            elif what == "come or go":
                side.epoch[0] += 1
            elif what == "change":
                side.shares.resized()
            else:
                times = [] if what in ("sum_up", "sum_up_slot") else [now - 150.0 if "since" in what else now]
                side.calls.append(getattr(side.shares, what)(*told, *times))
        mine, theirs = sides
        assert mine.calls == theirs.calls
        assert mine.recent.tolist() == theirs.recent.tolist()
        for block, reference in zip(mine.blocks, theirs.blocks, strict=True):
            assert np.array_equal(block[:, :SLOTS], reference[:, :SLOTS], equal_nan=True)


@pytest.mark.parametrize("kind", [CORE.shares, ReferenceShares])
def test_what_others_did_since_a_time_is_told_by_whole_buckets(kind):
    """Of what they booked too little rather than too much, of what ended too much rather than too little."""
    side = Side(kind, CORE.columns)
    cells = side.others.reshape(SLOTS, 3, BUCKETS)
    for place, stamp in enumerate((49_999, 50_000, 50_001)):
        cells[1, :, place] = stamp, 10.0**place, 5.0 * 10.0**place
    assert side.shares.released_since(1, 5_000_050.0) == 2 * (10.0 + 100.0), "both others"
    assert side.shares.booked_since(1, 5_000_050.0) == 2 * 500.0
    assert side.shares.released_since(0, 5_000_050.0) == side.shares.booked_since(2, 0.0) == 0.0


@pytest.mark.parametrize("slot", [-1, SLOTS, 1 << 40])
@pytest.mark.parametrize("what", ["sum_up_slot", "booked", "released", "booked_since", "released_since"])
def test_a_slot_that_is_not_there_is_refused(what, slot):
    side = Side(CORE.shares, CORE.columns)
    with pytest.raises(IndexError, match="slot"):
        getattr(side.shares, what)(
            slot, *([] if what == "sum_up_slot" else [1.0] if "since" in what else [1.0, 5_000.0])
        )
    assert not side.recent.any()


def test_what_fails_while_hearing_is_told():
    side = Side(CORE.shares, CORE.columns)

    def broken(_):
        raise RuntimeError("a fault")

    shares = CORE.shares(side.epoch.data, side.recent.data, BUCKETS, BUCKET_MS, side.look_around, broken)
    shares.follow(side.table, side.accounts, [])
    with pytest.raises(RuntimeError, match="a fault"):
        shares.catch_up(0.0)
