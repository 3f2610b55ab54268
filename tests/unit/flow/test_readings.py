"""Samples: late ones, missing gauges, facts that stay, restarts."""

from __future__ import annotations

import math

import pytest

from core_pools import START, feed, make_pool, request
from poolpilot_picker.flow.outcome import Outcome

pytestmark = pytest.mark.usefixtures("both_cores")


def gauges(pool):
    return [float(getattr(pool.table, name)[0]) for name in ("running", "waiting", "kv_usage")]


def test_a_sample_that_comes_late_does_not_replace_a_newer_one():
    pool = make_pool(1)
    [endpoint] = pool.table
    feed(pool, endpoint, START, running=5.0, waiting=1.0, kv_usage=0.5)
    feed(pool, endpoint, START + 10, running=90.0, waiting=90.0, kv_usage=0.9, taken_ms=START - 300)
    assert gauges(pool) == [5.0, 1.0, 0.5]
    feed(pool, endpoint, START + 20, running=6.0, waiting=1.0, kv_usage=0.5, taken_ms=START)
    assert gauges(pool)[0] == 6.0


@pytest.mark.parametrize("nonsense", [None, math.nan, math.inf, -1.0, 1e300])
def test_a_gauge_that_says_nothing_is_unknown(nonsense):
    pool = make_pool(1)
    [endpoint] = pool.table
    feed(pool, endpoint, START, running=5.0, waiting=3.0, kv_usage=0.5)
    feed(pool, endpoint, START + 200, running=nonsense, waiting=nonsense, kv_usage=nonsense)
    assert all(map(math.isnan, gauges(pool)))
    assert pool.table.queued[0] == pool.table.other_kv_tokens[0] == 0.0
    # The load stays what it was when it was told last, and ages.
    assert pool.table.foreign[0] == 8.0 and pool.table.load_ms[0] == START


def test_facts_stay_when_a_later_sample_does_not_repeat_them():
    pool = make_pool(1)
    [endpoint] = pool.table
    feed(pool, endpoint, START, kv_capacity_tokens=123_456, max_sequences=7, max_adapters=3)
    feed(pool, endpoint, START + 200)
    assert (pool.table.kv_tokens[0], pool.table.max_sequences[0]) == (123_456, 7)
    assert pool.adapters.adapter_slots()[0] == 3


def test_an_engine_that_caches_no_prefixes_is_never_expected_to_hit():
    pool = make_pool(1)
    [endpoint] = pool.table
    for told in ({"prefix_caching": False}, {"prefix_caching": False, "kv_capacity_tokens": 100_000}, {}):
        feed(pool, endpoint, START, **told)
        for _ in range(2):
            placement = pool.place(request(1_000, prefix=[("x", 960)]), START)
            assert placement.cached_tokens == 0.0
            pool.finish(placement, Outcome.SERVED, START)


def test_a_counter_that_grows_means_preemption_and_its_first_reading_does_not():
    pool = make_pool(1)
    [endpoint] = pool.table
    for at, counter, preempting in ((0, 50.0, False), (200, None, False), (400, 51.0, True), (600, None, True)):
        feed(pool, endpoint, START + at, preemptions=counter)
        assert (pool.table.preempting_until_ms[0] > START + at) == preempting
    pool.restarted(endpoint, START + 700)
    assert not pool.table.preempting_until_ms[0] > START + 700
    feed(pool, endpoint, START + 800, preemptions=0.0)
    feed(pool, endpoint, START + 900, preemptions=0.0)
    assert not pool.table.preempting_until_ms[0] > START + 900


def test_after_a_restart_samples_of_the_old_process_are_still_late():
    pool = make_pool(1)
    [endpoint] = pool.table
    feed(pool, endpoint, START, running=30.0, kv_usage=0.9)
    pool.restarted(endpoint, START + 100)
    assert pool.table.foreign[0] == pool.table.other_kv_tokens[0] == 0.0
    feed(pool, endpoint, START + 110, running=30.0, taken_ms=START - 1)
    assert math.isnan(gauges(pool)[0])
    feed(pool, endpoint, START + 200, running=1.0)
    assert gauges(pool)[0] == 1.0


def test_what_waits_is_still_to_be_prefilled():
    pool = make_pool(1)
    [endpoint] = pool.table
    placed = [pool.place(request(2_000, prefix=[(n, 1_920)]), START) for n in range(4)]
    feed(pool, endpoint, START + 60_000, running=1.0, waiting=3.0)
    assert pool.table.free_at_ms[0] > START + 60_000 + 2 * placed[0].predicted.prefill_ms
    feed(pool, endpoint, START + 61_000, running=4.0, waiting=0.0)
    assert pool.table.free_at_ms[0] < START + 61_000 + 1.5 * placed[-1].booking.prefill_ms


def test_an_abort_takes_its_own_prefill_out_of_the_queue_and_an_answer_proves_more():
    left = {}
    for outcome in (Outcome.ABORTED, Outcome.SERVED):
        pool = make_pool(1)
        placed = [pool.place(request(20_000, prefix=[(n, 19_968)]), START) for n in range(4)]
        pool.finish(placed[2], outcome, START + 1)
        left[outcome] = float(pool.table.free_at_ms[0]) - START
    assert left[Outcome.ABORTED] > 2.5 * left[Outcome.SERVED]
