"""The compiled arithmetic against the reference, and what no input may do to it."""

from __future__ import annotations

import copy
import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_pools import request
from poolpilot_picker import compiled
from poolpilot_picker.compiled._cost import Priced
from poolpilot_picker.config.step_models import GENERIC
from poolpilot_picker.learning.speed import ReferenceClock
from poolpilot_picker.routing.cost_model import CostModel, CostParameters
from poolpilot_picker.routing.pricing import Pricing
from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.columns import ROWS, ReferenceColumns, new_block
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable
from poolpilot_picker.state.homes import Home
from poolpilot_picker.state.samples import EngineSample

CORE = compiled.load()
NOW = 5_000_000.0

SCALES = {
    **dict.fromkeys(("inflight", "requests", "queued"), (0.0, 1.0, 5.0, 90.0, 300.0)),
    **dict.fromkeys(("foreign", "foreign_mean", "own_mean"), (0.0, 1.0, 5.0, 90.0, 300.0)),
    **dict.fromkeys(("prompt_tokens", "new_kv_tokens", "other_kv_tokens"), (0.0, 700.0, 90_000.0, 400_000.0)),
    "expected_tokens": (0.0, 300.0, 40_000.0),
    "uncached_tokens": (0.0, 700.0),
    "started_sum_ms": (0.0, NOW, 300.0 * NOW, 4.0 * NOW - 9_000.0),
    "free_at_ms": (0.0, NOW - 5.0, NOW + 30.0, NOW + 4_000.0),
    "sample_ms": (NOW - 10.0,),
    "load_ms": (NOW - 10.0, NOW - 10.0, NOW - 10.0, NOW - 7_000.0, -math.inf),
    "preempting_until_ms": (-math.inf, -math.inf, NOW + 900.0),
    "kv_tokens": (1e9, 300_000.0, 40_000.0),
    "max_sequences": (1e9, 256.0, 4.0),
    "token_budget": (1e9, 2_048.0, 300.0),
    "step_ms": (1.0, 11.0, 23.5),
    "sequence_ms": (0.0, 0.03),
    "context_ms": (0.0, 8e-5),
    "token_ms": (0.0, 0.05),
    "token2_ms": (0.0, 1.5e-6),
    "half_chunk_ms": (0.0, 40.0),
    "interference": (1.0, 1.7),
    "failure_ms": (0.0, 0.0, 1_500.0),
    "cache_trust": (0.0, 0.4, 1.0),
}


def table_of(slots, rng, scales=SCALES):
    """A table whose slots are in states drawn from the scales."""
    table = EndpointTable()
    table.apply(EndpointSpec(host=f"10.0.{n >> 8}.{n & 255}", port=8000) for n in range(slots))
    for name, values in scales.items():
        getattr(table, name)[:] = [
            rng.choice(values) * (rng.choice((1.0, rng.uniform(0.5, 2.0)))) for _ in range(slots)
        ]
    return table


def view_of(table, rng, *, adapter="", **asked):
    slots = len(table)
    adapters = AdapterResidency()
    adapters.resize(slots)
    for slot in range(slots):
        adapters.apply_sample(slot, EngineSample(taken_ms=NOW, max_adapters=rng.choice((1, 2, 8))))
        for name in rng.choices("abcd", k=rng.randrange(4)):
            adapters.book(slot, name)
    prompt = asked.get("prompt_tokens", 500)
    return DecisionView(
        request=request(**asked),
        table=table,
        now=NOW,
        mask=np.array([rng.random() < 0.8 for _ in range(slots)], dtype=np.bool_),
        cached_tokens=np.array([rng.choice((0.0, prompt * rng.random())) for _ in range(slots)]),
        adapters=adapters,
        rng=random.Random(1),
        home=rng.choice((None, Home(rng.randrange(slots), 90.0, 0.3 * prompt))),
        adapter_home=rng.choice(((-1, 0.0), (rng.randrange(slots), 0.7))),
        adapter=adapter,
        expected_output=rng.choice((1.0, 300.0, 4_000.0)),
        expected_rest=rng.choice((20.0, 250.0)),
        hit_share=rng.random(),
        reuse=rng.choice((None, np.array([rng.random() for _ in range(slots)]))),
        indexed_tokens=np.array([rng.choice((0.0, 180_000.0, 500_000.0)) for _ in range(slots)]),
    )


parameters = st.builds(
    CostParameters,
    own_decode_weight=st.floats(0.0, 1.0),
    decode_horizon=st.floats(1.0, 1e6),
    others_weight=st.floats(0.0, 1.0),
    backlog_ms=st.sampled_from((1.0, 100.0, 1e9, math.inf)),
    fleet_share=st.floats(0.0, 1.0),
    hit_wait_weight=st.sampled_from((0.0, 1.0, 9.0, math.inf)),
    slow_start_ms=st.sampled_from((0.0, 300.0, 1e9)),
    use_wait=st.booleans(),
    use_cache=st.booleans(),
)


@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 40),
    wanted=parameters,
    prompt=st.sampled_from((0, 1, 300, 4_000, 90_000)),
    sequences=st.sampled_from((1, 1, 8)),
    target=st.none() | st.floats(10.0, 5_000.0),
    adapter=st.sampled_from(("", "a", "b", "unheard-of")),
)
@settings(max_examples=300, deadline=None)
def test_costs_what_the_reference_says(seed, slots, wanted, prompt, sequences, target, adapter):
    rng = random.Random(seed)
    view = view_of(
        table_of(slots, rng),
        rng,
        adapter=adapter,
        prompt_tokens=prompt,
        sequences=sequences,
        slo_ttft_ms=target,
    )
    cost = Pricing(wanted).cost(view)
    assert isinstance(cost, Priced)
    reference = CostModel(view, wanted)
    assert list(cost.terms) == list(reference.terms)
    for name, term in reference.terms.items():
        np.testing.assert_allclose(cost.terms[name], term, rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(cost.total, reference.total, rtol=1e-9)
    for slot in range(slots):
        for mine, theirs in zip(_numbers(cost.forecast(slot)), _numbers(reference.forecast(slot)), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    if view.mask.any():
        draws = random.Random(seed), random.Random(seed)
        assert cost.cheapest(view.mask, draws[0]) == reference.cheapest(view.mask, draws[1])
        assert draws[0].random() == draws[1].random(), "no more draws than the reference"


def _numbers(forecast):
    return [getattr(forecast, name) for name in type(forecast).__struct_fields__]


def test_ties_fall_where_the_reference_lets_them_fall():
    table = table_of(60, random.Random(1), {})
    view = view_of(table, random.Random(2))
    view.cached_tokens[:] = view.indexed_tokens[:] = 0.0
    view.home = None
    table.load_ms[:] = NOW
    table.prompt_tokens[::7] = 50.0
    cost, reference = Pricing(CostParameters()).cost(view), CostModel(view, CostParameters())
    draws = random.Random(3), random.Random(3)
    chosen = [cost.cheapest(view.mask, draws[0]) for _ in range(200)]
    assert chosen == [reference.cheapest(view.mask, draws[1]) for _ in range(200)]
    assert len(set(chosen)) > 20


def price(table, **changed):
    """A request's costs on a table."""
    none = np.zeros(len(table))
    arrays = {"cached": none, "indexed": none, "adapter": None, "lent": None, "reuse": None}
    return CORE.cost(CostParameters()).price(**{**arguments(len(table)), "columns": table.columns, **arrays, **changed})


def test_the_load_is_estimated_where_a_wanted_endpoint_was_not_heard():
    table = table_of(3, random.Random(1), {})
    table.foreign[:] = table.foreign_mean[:] = [5.0, 50.0, 5.0]
    table.load_ms[:] = [NOW, NOW - 5_000.0, NOW]
    assert price(table).total[1] > price(table).total[0], "what was heard counts"
    table.load_ms[1] = NOW - 20_000.0
    assert price(table).total[1] == price(table).total[0], "in its place, what the others have"
    table.foreign[:] = table.foreign_mean[:] = 0.0
    assert price(table).total[1] == price(table).total[0], "nobody has anything"


loads = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.0, 1.0, 3.5, 90.0)) | st.floats(0, 300),
        st.sampled_from((0.0, 1.0, 20.0)),
        st.sampled_from((0.0, 1_000.0, 4_999.0, 7_500.0, 10_000.0, 10_001.0, math.inf)) | st.floats(0, 20_000),
        st.booleans(),
    ),
    max_size=60,
)


@given(loads, st.booleans())
@settings(max_examples=300, deadline=None)
def test_estimates_the_load_as_the_reference_does(slots, expected):
    block = new_block(len(slots))
    for slot, (foreign, usual, age, wanted) in enumerate(slots):
        block[ROWS.index("foreign"), slot] = foreign
        block[ROWS.index("foreign_mean"), slot] = usual
        block[ROWS.index("own_mean"), slot] = slot % 5
        block[ROWS.index("load_ms"), slot] = NOW - age
        block[ROWS.index("mean_weight"), slot] = 0.1 * wanted
        block[ROWS.index("inflight"), slot] = slot % 3
        block[ROWS.index("other_kv_tokens"), slot] = 100.0 * slot
    kinds = ReferenceColumns, CORE.columns
    mine, theirs = (kind(block, len(slots)).load(NOW, 10_000.0, expected) for kind in kinds)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype and one.shape == (len(slots),)


bookings = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from((1, 8)),
        st.floats(0, 1e5),
        st.floats(0, 5_000),
        st.floats(0, 1e5),
        st.floats(0, 900),
        st.sampled_from(("enter", "enter_decoding")),
    ),
    max_size=20,
)


@given(bookings, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_keeps_the_account_as_the_reference_does(booked, rng):
    blocks = new_block(5), new_block(5)
    for block in blocks:
        block[ROWS.index("foreign"), :5] = [0.0, 2.5, 0.0, 0.0, 0.0]
        block[ROWS.index("sequence_ms"), :5] = 0.04
    both = ReferenceColumns(blocks[0], 3), CORE.columns(blocks[1], 3)
    model = msgspec.structs.replace(GENERIC, max_sequences=6)
    clocks = {
        both[0]: (ReferenceClock(model), CORE.clock(model)),
        both[1]: (CORE.clock(model), ReferenceClock(model)),
    }
    left = []
    now = NOW
    for slot, sequences, prompt, expected, uncached, prefill, how in booked:
        now += rng.choice((0.0, 3.0, 700.0))
        numbers = (slot, sequences, prompt, expected, uncached)
        if how == "enter":
            first, other = (columns.enter(*numbers, prefill, now) for columns in both)
            assert first == other
        else:
            first = now - 3.0
            for columns in both:
                columns.enter_decoding(*numbers, first)
        left.append((*numbers, first, how == "enter"))
        if rng.random() < 0.4:
            gone = left.pop(rng.randrange(len(left)))
            for columns in both:
                if any(other[0] == gone[0] for other in left):
                    columns.leave(*gone)
                else:
                    columns.leave_idle(gone[0], now)
        np.testing.assert_array_equal(*blocks)
        assert [both[0].batch(at, now) for at in range(3)] == [both[1].batch(at, now) for at in range(3)]
        assert [both[0].crowd(at) for at in range(3)] == [both[1].crowd(at) for at in range(3)]
        for growth in (0.0, 0.5):
            assert [both[0].step(at, growth) for at in range(3)] == [both[1].step(at, growth) for at in range(3)]
        limits = now + rng.choice((0.0, 1e3, 1e9)), rng.choice((0.0, 1e9)), rng.choice((0.0, 1e12)), 0.9, 0.95
        assert both[0].ample(*limits) == both[1].ample(*limits)
        for columns in both:
            # Each with its own clock, then with the other's kind.
            columns.advance(slot, now, clocks[columns][0])
            columns.advance(slot, now + 1.0, clocks[columns][1])
            columns.advance(slot, now - 2.0, clocks[columns][1])
        assert len({_hands(clock) for pair in clocks.values() for clock in pair[:1]}) == 1
        assert len({_hands(clock) for pair in clocks.values() for clock in pair[1:]}) == 1
        if rng.random() < 0.1:
            for pair in clocks.values():
                pair[0].restart(now)


def _hands(clock):
    return clock.since_ms, clock.at_ms, clock.step_sum, clock.step_weight


@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 2**32))
@settings(deadline=None)
def test_sums_accounts_as_the_reference_does(processes, slots, seed):
    rng = np.random.default_rng(seed)
    shares = [rng.uniform(0, 9, (len(ROWS), slots + rng.integers(0, 3))) for _ in range(processes)]
    blocks = new_block(8), new_block(8)
    for kind, block in zip((ReferenceColumns, CORE.columns), blocks, strict=True):
        columns = kind(block, slots)
        columns.sum_up([kind(share, share.shape[1]) for share in shares])
        for share in shares:
            share += 1.0
        if slots:
            columns.sum_up_slot([kind(share, share.shape[1]) for share in shares], slots - 1)
        for share in shares:
            share -= 1.0
    np.testing.assert_allclose(*blocks, rtol=1e-12)
    assert (blocks[1][:, slots:] == new_block(8)[:, slots:])[~np.isnan(blocks[1][:, slots:])].all()


# ── what no input may do ─────────────────────────────────────────────────────

absurd = st.sampled_from((math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 1e308, -1e308, 5e-324))


@given(st.integers(0, 9), st.integers(0, 2**32), absurd, absurd, st.booleans())
@settings(max_examples=150, deadline=None)
def test_survives_numbers_that_make_no_sense(slots, seed, prompt, output, with_adapter):
    rng = random.Random(seed)
    odd = (math.nan, math.inf, -math.inf, -1.0, 0.0, 3.0, 1e308)
    table = table_of(slots, rng)
    table.block[:] = [[rng.choice(odd) for _ in range(table.block.shape[1])] for _ in range(len(ROWS))]
    arrays = [np.array([rng.choice(odd) for _ in range(slots)]) for _ in range(8)]
    mask = np.array([rng.random() < 0.5 for _ in range(slots)], dtype=np.bool_)
    columns, formula = table.columns, CORE.cost(CostParameters())
    cost = formula.price(
        columns, math.nan, prompt, 1.0, output, 250.0, None, 0.4, rng.choice((1e4, *odd)), mask, arrays[0],
        arrays[1], (mask, *arrays[2:6], rng.randrange(-1, slots + 2), rng.choice(odd)) if with_adapter else None,
        rng.choice((None, arrays[6])), rng.choice((None, arrays[7])),
    )  # fmt: skip
    clock = CORE.clock(GENERIC)
    best = cost.cheapest(mask, rng)
    assert best == -1 or mask[best]
    assert cost.total.shape == (slots,)
    columns.load(rng.choice((NOW, *odd)), rng.choice((1e4, *odd)), rng.random() < 0.5)
    for slot in range(slots):
        cost.forecast(slot)
        columns.enter(slot, *[rng.choice(odd) for _ in range(6)])
        columns.leave(slot, *[rng.choice(odd) for _ in range(5)], True)
        columns.batch(slot, NOW)
        columns.crowd(slot)
        columns.step(slot, rng.choice(odd))
        columns.advance(slot, rng.choice(odd), clock)
    columns.all_hold(rng.choice(odd))
    columns.ample(*[rng.choice(odd) for _ in range(5)])


def arguments(slots=3, **changed):
    """Of `Cost.price`, all well but for what is changed."""
    floats = np.zeros(slots)
    well = {
        "columns": CORE.columns(new_block(slots), slots),
        "now": NOW,
        "prompt": 100.0,
        "sequences": 1.0,
        "output": 300.0,
        "rest": 250.0,
        "target_ms": None,
        "hit_share": 0.4,
        "stale_after_ms": 10_000.0,
        "mask": np.ones(slots, dtype=np.bool_),
        "cached": floats,
        "indexed": floats,
        "adapter": (np.zeros(slots, dtype=np.bool_), floats, floats, floats, floats, -1, 0.0),
        "lent": floats,
        "reuse": floats,
    }
    assert set(changed) <= set(well)
    return {**well, **changed}


short, mask2, floats3 = np.zeros(2), np.zeros(2, dtype=np.bool_), np.zeros(3)
mask3 = np.zeros(3, dtype=np.bool_)


@pytest.mark.parametrize(
    "changed",
    [
        {"cached": short},
        {"indexed": short},
        {"cached": floats3.astype(np.float32)},
        {"cached": np.zeros(6)[::2]},
        {"cached": None},
        {"adapter": (mask2, floats3, floats3, floats3, floats3, -1, 0.0)},
        {"adapter": (mask3, short, floats3, floats3, floats3, -1, 0.0)},
        {"adapter": (mask3, floats3, short, floats3, floats3, -1, 0.0)},
        {"adapter": (mask3, floats3, floats3, short, floats3, -1, 0.0)},
        {"adapter": (mask3, floats3, floats3, floats3, short, -1, 0.0)},
        {"adapter": (mask3, floats3, None, floats3, floats3, -1, 0.0)},
        {"adapter": (mask3, floats3, floats3, floats3)},
        {"adapter": (floats3, floats3, floats3, floats3, floats3, -1, 0.0)},
        {"adapter": (np.zeros(6, dtype=np.bool_)[::2], floats3, floats3, floats3, floats3, -1, 0.0)},
        {"mask": mask2},
        {"mask": floats3},
        {"mask": None},
        {"lent": short},
        {"reuse": short},
        {"lent": floats3.astype(np.float32)},
        {"columns": None},
        {"columns": CORE.columns(new_block(3), 2)},
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(changed):
    formula = CORE.cost(CostParameters())
    formula.price(**arguments())
    with pytest.raises((ValueError, TypeError, BufferError)):
        formula.price(**arguments(**changed))


@pytest.mark.parametrize("wrong", [None, 7, "clock"])
def test_a_clock_that_is_none_is_refused(wrong):
    columns = CORE.columns(new_block(3), 3)
    with pytest.raises((TypeError, AttributeError)):
        columns.advance(0, NOW, wrong)


@pytest.mark.parametrize("kind", [ReferenceColumns, CORE.columns])
def test_the_smallest_cache_decides_whether_all_hold_a_prompt(kind):
    block = new_block(4)
    block[ROWS.index("kv_tokens"), :4] = [9_000.0, 500.0, 700.0, 10.0]
    columns = kind(block, 3)
    assert columns.all_hold(500.0) and not columns.all_hold(501.0) and kind(block, 0).all_hold(1e12)


@pytest.mark.parametrize("kind", [ReferenceColumns, CORE.columns])
@pytest.mark.parametrize(
    ("row", "most"),
    [
        ("free_at_ms", 1_100.0),
        ("inflight", 43.0),
        ("foreign", 43.0),
        ("expected_tokens", 350.0),
        ("new_kv_tokens", 700.0),
        ("other_kv_tokens", 700.0),
    ],
)
def test_there_is_ample_room_until_one_slot_comes_near_a_bound(kind, row, most):
    block = new_block(3)
    block[ROWS.index("max_sequences"), :3], block[ROWS.index("kv_tokens"), :3] = 100.0, 1_000.0
    columns, limits = kind(block, 2), (1_100.0, 4.0, 20.0, 0.9, 0.8)
    block[ROWS.index(row), :3] = 0.0, 2.0 * most, 1e12
    assert columns.ample(*limits), "where nothing is ours, nothing has to wait"
    block[ROWS.index("requests"), 0] = 1.0
    assert not columns.ample(*limits)
    block[ROWS.index(row), 1] = most
    assert columns.ample(*limits), "the third slot is none"
    block[ROWS.index(row), 1] = most + 1e-6
    assert not columns.ample(*limits)


@pytest.mark.parametrize("mask", [mask2, floats3, np.zeros(6, dtype=np.bool_)[::2], None])
def test_a_mask_that_does_not_fit_is_refused(mask):
    cost = CORE.cost(CostParameters()).price(**arguments())
    with pytest.raises((ValueError, TypeError, BufferError)):
        cost.cheapest(mask, random.Random(1))


def test_costs_are_made_by_the_formula_alone():
    with pytest.raises(TypeError):
        Priced()
    nothing = Priced.__new__(Priced)
    assert nothing.terms == {} and len(nothing.total) == 0
    total = CORE.cost(CostParameters()).price(**arguments()).total
    with pytest.raises(ValueError, match="read-only"):
        total[0] = 1.0
    assert total.tolist() == [total[0]] * 3, "its memory lives as long as what reads it"


@pytest.mark.parametrize("slot", [-1, 3, 2**40])
def test_a_slot_that_is_not_there_is_refused(slot):
    columns, cost = CORE.columns(new_block(3), 3), CORE.cost(CostParameters()).price(**arguments())
    for call in (
        lambda: columns.enter(slot, 1, 1, 1, 1, 1, 1),
        lambda: columns.enter_decoding(slot, 1, 1, 1, 1, 1),
        lambda: columns.leave(slot, 1, 1, 1, 1, 1, True),
        lambda: columns.leave_idle(slot, NOW),
        lambda: columns.batch(slot, NOW),
        lambda: columns.advance(slot, NOW, CORE.clock(GENERIC)),
        lambda: columns.crowd(slot),
        lambda: columns.step(slot, 0.5),
        lambda: cost.forecast(slot),
    ):
        with pytest.raises(IndexError):
            call()


@pytest.mark.parametrize("block", [new_block(3)[:-1], new_block(3)[:, :3], new_block(3).astype(np.float32), None])
def test_a_block_that_is_none_is_refused(block):
    with pytest.raises((ValueError, TypeError)):
        CORE.columns(block, 3)
    with pytest.raises(ValueError, match="slots"):
        CORE.columns(new_block(3), 3_000)
    with pytest.raises((ValueError, OverflowError)):
        CORE.columns(new_block(3), -1)


@pytest.mark.parametrize("wrong", [None, 7, ReferenceColumns(new_block(3), 3), CORE.columns(new_block(3), 2)])
def test_an_account_that_is_none_is_refused(wrong):
    columns = CORE.columns(new_block(3), 3)
    with pytest.raises((TypeError, AttributeError, ValueError)):
        columns.sum_up([columns, wrong])
    with pytest.raises((TypeError, AttributeError, IndexError)):
        columns.sum_up_slot([wrong], 2)


def test_rows_are_those_of_the_state():
    assert CORE.rows == ROWS


def test_a_table_in_memory_from_outside_is_that_memory():
    memory = bytearray(8 * len(ROWS) * 8)
    outside = np.frombuffer(memory, dtype=np.float64).reshape(len(ROWS), 8)

    def allocate(slots):
        assert slots <= 8
        outside[:] = new_block(8)[:, :8]
        return outside

    table = EndpointTable(allocate=allocate)
    table.apply([EndpointSpec(host="10.0.0.1", port=8000)])
    before = copy.copy(memory)
    table.columns.enter(0, 3.0, 100.0, 10.0, 50.0, 5.0, NOW)
    assert outside[ROWS.index("inflight"), 0] == 3.0 == table.inflight[0]
    assert memory != before


GAUGES = st.none() | st.sampled_from((0.0, -1.0, 1e6, 1e6 + 1, math.nan, math.inf)) | st.floats(0, 500)


@settings(max_examples=200)
@given(
    st.integers(0, 2**32),
    GAUGES,
    GAUGES,
    GAUGES,
    st.none() | st.sampled_from((0, 1, 456_789)),
    st.none() | st.sampled_from((0, 7)),
    st.floats(0, 300),
)
def test_a_sample_is_written_as_the_reference_writes_it(seed, running, waiting, usage, capacity, most, explained):
    table = table_of(3, random.Random(seed))
    theirs = table.block.copy()
    sample = EngineSample(
        taken_ms=NOW + 3.0,
        running=running,
        waiting=waiting,
        kv_usage=usage,
        kv_capacity_tokens=capacity,
        max_sequences=most,
    )
    told = CORE.columns(table.block, 3).tell(1, sample, explained)
    assert repr(told) == repr(ReferenceColumns(theirs, 3).tell(1, sample, explained))
    assert np.array_equal(table.block, theirs, equal_nan=True)
    share = math.nan if usage is None else usage
    CORE.columns(table.block, 3).tell_usage(2, share)
    ReferenceColumns(theirs, 3).tell_usage(2, share)
    assert np.array_equal(table.block, theirs, equal_nan=True)


def test_a_sample_of_no_slot_or_of_no_numbers_is_refused_and_nothing_is_written():
    table = table_of(2, random.Random(1))
    before = table.block.copy()
    columns = CORE.columns(table.block, 2)
    for slot in (-1, 2, 2**40):
        with pytest.raises(IndexError):
            columns.tell(slot, EngineSample(taken_ms=NOW), 0.0)
        with pytest.raises(IndexError):
            columns.tell_usage(slot, 0.5)
    with pytest.raises(TypeError):
        columns.tell(0, EngineSample(taken_ms=NOW, running="3"), 0.0)
    assert np.array_equal(table.block, before, equal_nan=True)
