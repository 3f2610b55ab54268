"""Receipts: every candidate with every term as the decision saw it, whatever happens afterwards."""

from __future__ import annotations

import gc

import pytest

from core_pools import START, feed_all, make_pool, request
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import PoolSettings
from poolpilot_picker.flow.receipts import ReceiptBook
from poolpilot_picker.state.samples import ServedModels

pytestmark = pytest.mark.usefixtures("both_cores")


def pool_of(endpoints=3, share=1.0, **more):
    return make_pool(endpoints, settings=PoolSettings(receipt_share=share, **more))


def test_a_receipt_shows_every_candidate_and_adds_up():
    pool = pool_of()
    feed_all(pool, START, running=3.0)
    placement = pool.place(request(900, prefix=[("x", 640)], request_id="me", model="base"), START + 40)
    [receipt] = pool.receipts.newest(5)
    assert (receipt.request_id, receipt.pool, receipt.model, receipt.prompt_tokens) == ("me", "test", "base", 900)
    assert receipt.at_ms == START + 40
    assert receipt.chosen == placement.booking.endpoint.address
    assert receipt.predicted_ttft_ms == pytest.approx(placement.predicted.ttft_ms, abs=1e-3)
    assert [one.endpoint for one in receipt.candidates] == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    for one in receipt.candidates:
        terms = dict(one.terms)
        cost = terms.pop("cost")
        assert {"wait", "prefill", "decode", "delay_prefill"} <= set(terms)
        assert sum(terms.values()) == pytest.approx(cost, rel=1e-4)
        # As it was before the booking.
        assert (one.in_flight, one.foreign, one.telemetry_age_ms) == (0, 3, 40)
    costs = {one.endpoint: one.terms["cost"] for one in receipt.candidates}
    assert costs[receipt.chosen] == min(costs.values())


def test_what_excluded_an_endpoint_is_said_and_stays_said():
    pool = pool_of(4)
    pool.apply_served_models(pool.table.at(1), ServedModels(base=("other",)))
    leaving = pool.place(request(subset=("10.0.0.4",)), START)
    pool.apply_endpoints([endpoint.spec for endpoint in pool.table.wanted()][:3])
    pool.place(request(), START + 1)
    pool.finish(leaving, Outcome.SERVED, START + 2)
    pool.apply_endpoints([])
    excluded = {one.endpoint: one.excluded_by for one in pool.receipts.newest(1)[0].candidates}
    assert excluded == {
        "10.0.0.1:8000": "",
        "10.0.0.2:8000": "does not serve the model",
        "10.0.0.3:8000": "",
        "10.0.0.4:8000": "draining",
    }


def test_who_asks_gets_one_and_the_others_are_sampled():
    pool = pool_of(share=0.0)
    assert pool.place(request(receipt_wanted=True), START).receipt is not None
    assert pool.place(request(), START).receipt is None
    assert len(pool.receipts.newest(10)) == 1
    pool = pool_of(share=0.1)
    for _ in range(1_000):
        pool.place(request(), START)
    assert 60 < len(pool.receipts.newest(1_000)) < 150


def test_the_newest_first_filtered():
    pool = pool_of(2)
    for number in range(6):
        pool.place(
            request(request_id=f"r{number}", model=f"m{number % 2}", subset=(f"10.0.0.{number % 2 + 1}",)), START
        )
    ids = [receipt.request_id for receipt in pool.receipts.newest(4)]
    assert ids == ["r5", "r4", "r3", "r2"]
    assert [receipt.request_id for receipt in pool.receipts.newest(9, model="m0")] == ["r4", "r2", "r0"]
    assert [receipt.request_id for receipt in pool.receipts.newest(1, endpoint="10.0.0.2:8000")] == ["r5"]
    assert [receipt.request_id for receipt in pool.receipts.newest(9, request_id="r3")] == ["r3"]
    assert pool.receipts.newest(9)[0] is pool.receipts.newest(9)[0]


def test_memory_is_bounded_in_number_and_in_size():
    pool = pool_of(3, receipts_kept=5)
    for _ in range(20):
        pool.place(request(), START)
    assert len(pool.receipts.newest(100)) == 5
    pool.receipts = ReceiptBook(keep=1_000, rows=10)
    for _ in range(20):
        pool.place(request(), START)
    assert len(pool.receipts.newest(100)) == 3
    pool.receipts = ReceiptBook(keep=0)
    pool.place(request(), START)
    assert pool.receipts.newest(100) == []


def test_a_decision_leaves_nothing_to_the_garbage_collector():
    pool = pool_of(4, share=0.01)
    feed_all(pool, START, running=3.0)

    def some():
        for number in range(50):
            placement = pool.place(request(900, prefix=[("x", 640), (number, 128)]), START + number)
            pool.finish(placement, Outcome.SERVED, START + number)

    some()
    gc.collect()
    gc.disable()
    try:
        some()
        assert gc.collect() < 20
    finally:
        gc.enable()
