"""The load estimate: the gauges corrected in both directions, and what it says when they are old or missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_pools import START, feed, feed_all, make_pool, request
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.state.load import LoadEstimate

pytestmark = pytest.mark.usefixtures("both_cores")

STALE = 10_000.0


def estimate(pool, now):
    return LoadEstimate(pool.table, now, STALE)


def expected(pool, now):
    return LoadEstimate(pool.table, now, STALE, expected=True)


def test_what_others_have_there_is_the_gauge_without_ours():
    pool = make_pool(2)
    first = pool.table.at(0)
    feed(pool, first, START, running=7.0, waiting=2.0)
    assert estimate(pool, START).foreign[0] == 9
    feed(pool, first, START + 1, running=0.0, waiting=0.0)
    assert estimate(pool, START + 1).foreign[0] == 0


def test_corrected_for_what_was_placed_and_finished_since():
    pool = make_pool(1)
    placed = [pool.place(request(), START) for _ in range(5)]
    feed(pool, pool.table.at(0), START + 1_000, running=8.0, waiting=0.0)
    assert estimate(pool, START + 1_000).sequences[0] == 8
    for placement in placed[:4]:
        pool.finish(placement, Outcome.SERVED, START + 1_100)
    assert estimate(pool, START + 1_100).sequences[0] == 4
    for _ in range(2):
        pool.place(request(), START + 1_200)
    assert estimate(pool, START + 1_200).sequences[0] == 6


def test_short_requests_and_slow_samples_leave_no_ghosts():
    pool = make_pool(1)
    endpoint = pool.table.at(0)
    for _ in range(52):
        pool.finish(pool.place(request(), START), Outcome.SERVED, START + 700)
    # The gauge still counts all 52: the sample was begun before they ended.
    feed(pool, endpoint, START + 720, running=52.0, waiting=0.0, taken_ms=START + 690)
    load = estimate(pool, START + 720)
    assert load.foreign[0] == 0 and load.sequences[0] == 0


def test_never_below_our_own_account():
    pool = make_pool(1)
    for _ in range(5):
        pool.place(request(sequences=2), START)
    feed(pool, pool.table.at(0), START, running=1.0, waiting=0.0)
    assert estimate(pool, START).sequences[0] == 10


def test_an_endpoint_never_heard_from_is_like_its_peers():
    pool = make_pool(4)
    for slot, running in enumerate((10.0, 20.0, 30.0)):
        feed(pool, pool.table.at(slot), START, running=running)
    load = estimate(pool, START)
    assert load.unknown.tolist() == [False, False, False, True]
    assert load.foreign[3] == 20
    pool.place(request(subset=("10.0.0.4",)), START)
    assert estimate(pool, START).sequences[3] == 21


def test_old_samples_fade_into_the_median_of_the_fresh():
    pool = make_pool(3)
    feed_all(pool, START, running=40.0)
    for slot in (0, 1):
        feed(pool, pool.table.at(slot), START + 9_000, running=4.0)
    fading = [estimate(pool, START + age).foreign[2] for age in (0, 4_999, 6_000, 7_500, 9_000, 10_000, 18_000)]
    assert fading[:2] == [40, 40]
    assert fading == sorted(fading, reverse=True)
    assert fading[3] == pytest.approx(22)
    assert fading[-2:] == [4, 4]
    assert not estimate(pool, START + 10_000).unknown[2] and estimate(pool, START + 10_001).unknown[2]


def test_in_the_dark_only_our_own_account_counts():
    pool = make_pool(3)
    feed_all(pool, START, running=40.0)
    pool.place(request(), START)
    load = estimate(pool, START + 60_000)
    assert load.unknown.all()
    assert load.sequences.tolist() == pool.table.inflight.tolist()


def test_removed_endpoints_do_not_count_as_peers():
    pool = make_pool(3)
    feed(pool, pool.table.at(0), START, running=500.0)
    feed(pool, pool.table.at(1), START, running=3.0)
    pool.place(request(subset=("10.0.0.1",)), START)
    pool.apply_endpoints([endpoint.spec for endpoint in pool.table.wanted()][1:])
    assert estimate(pool, START).foreign[2] == 3


def test_what_was_just_told_counts_half_beside_what_is_usual():
    pool = make_pool(1)
    first = pool.table.at(0)
    feed(pool, first, START, running=8.0)
    feed(pool, first, START + 10_000, running=4.0)
    # Ten seconds later half of the mean is new: usual are 6.
    assert [expected(pool, START + at).foreign[0] for at in (10_000, 11_000, 12_000, 14_000)] == [5.0, 5.5, 6.0, 6.0]


def test_others_are_taken_to_place_as_we_do():
    pool = make_pool(2)
    placed = [pool.place(request(subset=("10.0.0.1",)), START - 1_000) for _ in range(4)]
    feed_all(pool, START, running=12.0)
    later = START + 3_000
    assert expected(pool, later).foreign.tolist() == [8, 12]
    pool.place(request(subset=("10.0.0.1",)), later)
    pool.place(request(subset=("10.0.0.2",)), later)
    # One more where 4 are usual is little, one where none is usual is three times as much (each and a half more).
    assert expected(pool, later).foreign.tolist() == [pytest.approx(8 * 5.5 / 4.5), 12 * 1.5 / 0.5]
    pool.place(request(subset=("10.0.0.2",), sequences=50), later)
    assert expected(pool, later).foreign[1] == 4 * 12, "and never more than four times what is usual"
    for placement in placed:
        pool.finish(placement, Outcome.SERVED, later)
    assert expected(pool, later).foreign[0] == pytest.approx(8 * 1.5 / 4.5)


def test_several_pickers_see_alike_what_one_sample_hid():
    # Each of four has the same old sample, by which one endpoint is idle. What it has placed itself keeps it from
    # sending all there: for each of its own it reckons with three of the others.
    pool = make_pool(2)
    usual = [pool.place(request(subset=(f"10.0.0.{1 + n % 2}",)), START - 5_000) for n in range(4)]
    for second in range(30):
        feed_all(pool, START + 1_000 * second, running=8.0)
    now = START + 30_000
    feed(pool, pool.table.at(0), now, running=2.0)
    assert expected(pool, now).sequences[0] < 6
    idle, busy = expected(pool, now + 2_000).sequences
    assert 0.9 * busy < idle <= busy, "soon it has moved the mean a little"
    pool.place(request(subset=("10.0.0.1",)), now + 2_000)
    assert expected(pool, now + 2_000).sequences[0] > busy + 1
    assert len(usual) == 4


def test_expected_is_what_was_told_where_nothing_else_is_known():
    pool = make_pool(3)
    feed(pool, pool.table.at(0), START, running=10.0)
    feed(pool, pool.table.at(1), START, running=20.0)
    for age in (0.0, 1_500.0, 5_000.0):
        assert expected(pool, START + age).foreign.tolist() == estimate(pool, START + age).foreign.tolist()
    assert expected(pool, START).foreign[2] == 15, "the median of the others"
    assert expected(pool, START + 20_000).foreign.tolist() == [0, 0, 0]


def test_who_has_left_is_soon_not_expected_any_more():
    pool = make_pool(1)
    feed(pool, pool.table.at(0), START, running=20.0)
    for second in range(1, 120):
        feed(pool, pool.table.at(0), START + 1_000 * second, running=0.0)
        if second == 20:
            assert expected(pool, START + 20_000).foreign[0] < 4
    assert expected(pool, START + 119_000).foreign[0] == 0.0 == pool.table.foreign_mean[0]


def test_after_a_restart_nothing_is_usual():
    pool = make_pool(1)
    feed(pool, pool.table.at(0), START, running=20.0)
    pool.restarted(pool.table.at(0), START + 1)
    assert expected(pool, START + 2).foreign[0] == 0
    feed(pool, pool.table.at(0), START + 1_000, running=3.0)
    assert expected(pool, START + 1_000).foreign[0] == 3


def test_a_missing_gauge_is_unknown_not_zero():
    pool = make_pool(2)
    feed(pool, pool.table.at(0), START, running=9.0)
    feed(pool, pool.table.at(1), START, running=None, kv_usage=0.5)
    assert estimate(pool, START).unknown.tolist() == [False, True]
    assert estimate(pool, START).foreign.tolist() == [9, 9]


def test_an_empty_pool_has_no_load():
    assert len(estimate(make_pool(0), START).sequences) == 0


@given(
    own=st.integers(0, 20),
    gone=st.integers(0, 20),
    others=st.integers(0, 20),
    seen=st.floats(0, 1),
    age=st.floats(0, 30_000),
)
def test_the_estimate_lies_between_ours_and_what_the_gauge_may_mean(own, gone, others, seen, age):
    pool = make_pool(1)
    endpoint = pool.table.at(0)
    kept = [pool.place(request(), START) for _ in range(own + gone)]
    gauge = int(seen * (own + gone)) + others
    for placement in kept[own:]:
        pool.finish(placement, Outcome.SERVED, START + 100)
    feed(pool, endpoint, START + 200, running=float(gauge), taken_ms=START + 90)
    load = estimate(pool, START + 200 + age)
    assert own <= load.sequences[0] <= own + others


@given(
    own=st.integers(0, 20),
    now_own=st.integers(0, 40),
    told=st.lists(st.tuples(st.floats(0, 20_000), st.floats(0, 300)), min_size=1, max_size=8),
    age=st.floats(0, 30_000),
)
def test_what_is_expected_of_others_is_at_most_four_times_what_they_ever_had(own, now_own, told, age):
    pool = make_pool(1)
    for _ in range(own):
        pool.place(request(), START)
    now = START + 1.0
    for elapsed, others in told:
        now += elapsed
        feed(pool, pool.table.at(0), now, running=own + others)
    for _ in range(now_own):
        pool.place(request(), now)
    foreign = expected(pool, now + age).foreign[0]
    assert 0.0 <= foreign <= 4.0 * max(others for _, others in told) + 1e-6
