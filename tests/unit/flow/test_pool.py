"""Following placements: moves, blame, double ends, faults in the middle, and the account's backstop."""

from __future__ import annotations

import random

import pytest

from core_pools import START, Failing, chosen, default_policy, feed, feed_all, make_pool, request, spec
from poolpilot_picker.errors import NoEndpoints
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import LOST_AFTER_MS, Pool
from poolpilot_picker.requests.request import RequestKind
from poolpilot_picker.state.endpoints import EndpointTable
from poolpilot_picker.state.samples import ServedModels

pytestmark = pytest.mark.usefixtures("both_cores")


def in_flight(pool):
    return {endpoint.address: float(pool.table.requests[endpoint.slot]) for endpoint in pool.table}


def test_another_endpoint_served_and_the_booking_goes_there():
    pool = make_pool(3)
    placement = pool.place(request(subset=("10.0.0.1",)), START)
    assert not pool.served(placement, "10.0.0.1:8000", START + 5)
    assert pool.served(placement, "10.0.0.2:8000", START + 5)
    assert in_flight(pool) == {"10.0.0.1:8000": 0, "10.0.0.2:8000": 1, "10.0.0.3:8000": 0}
    assert not pool.served(placement, "10.0.0.2:8000", START + 6)
    assert not pool.served(placement, "203.0.113.9:8000", START + 7)
    assert pool.finish(placement, Outcome.SERVED, START + 9)
    assert not pool.served(placement, "10.0.0.3:8000", START + 10)
    assert set(in_flight(pool).values()) == {0}


def test_the_endpoint_that_served_now_has_the_prefix_and_the_adapter():
    pool = make_pool(2)
    for endpoint in pool.table:
        pool.apply_served_models(endpoint, ServedModels(base=("base",), adapters={"sql": "base"}))
    first = pool.place(request(1_000, model="sql", prefix=[("x", 960)], subset=("10.0.0.1",)), START)
    pool.served(first, "10.0.0.2:8000", START + 5, attempts=2)
    assert pool.adapters.inflight(0) == {} and pool.adapters.inflight(1) == {"sql": 1}
    pool.finish(first, Outcome.SERVED, START + 900)
    again = pool.place(request(1_000, model="sql", prefix=[("x", 960)], subset=("10.0.0.2",)), START + 1_000)
    assert again.cached_tokens == 960 and again.predicted.adapter_ms == 0.0


def test_a_draining_endpoint_may_have_served():
    pool = make_pool(2)
    keeps = pool.place(request(subset=("10.0.0.2",)), START)
    placement = pool.place(request(subset=("10.0.0.1",)), START)
    pool.apply_endpoints([spec(0)])
    assert pool.served(placement, "10.0.0.2:8000", START + 5)
    pool.finish(keeps, Outcome.SERVED, START + 6)
    assert in_flight(pool) == {"10.0.0.1:8000": 0, "10.0.0.2:8000": 1}
    pool.finish(placement, Outcome.SERVED, START + 7)
    assert in_flight(pool) == {"10.0.0.1:8000": 0}


@pytest.mark.parametrize("outcome", Outcome)
def test_ended_once_however_it_ends(outcome):
    pool = make_pool(1)
    placement = pool.place(request(), START)
    assert pool.finish(placement, outcome, START + 1) is True
    assert pool.finish(placement, Outcome.FAILED, START + 2) is False
    assert placement.outcome is outcome
    pool.first_token(placement, START + 3)
    pool.usage(placement, 10, 10)
    assert in_flight(pool) == {"10.0.0.1:8000": 0}


def test_blame_is_for_who_was_tried_and_did_not_answer():
    pool = make_pool(2)
    placement = pool.place(request(), START)
    tried = chosen(placement)
    other = "10.0.0.2:8000" if tried == "10.0.0.1:8000" else "10.0.0.1:8000"
    pool.served(placement, other, START + 5, attempts=2)
    pool.finish(placement, Outcome.SERVED, START + 9)
    pool.place(request(), START + 10)
    penalties = {endpoint.address: float(pool.table.failure_ms[endpoint.slot]) for endpoint in pool.table}
    assert penalties[tried] > 0 and penalties[other] == 0


@pytest.mark.parametrize("part", ["ledger.book", "prefixes.insert", "adapters.book", "_learners.placed"])
def test_a_fault_while_booking_leaves_nothing_booked(part, monkeypatch):
    pool = make_pool(2)
    for endpoint in pool.table:
        pool.apply_served_models(endpoint, ServedModels(base=("base",), adapters={"sql": "base"}))
    owner, name = part.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(pool, owner, Failing(getattr(pool, owner), name, ZeroDivisionError(part)))
        with pytest.raises(ZeroDivisionError):
            pool.place(request(model="sql"), START)
    assert set(in_flight(pool).values()) == {0}
    assert pool.adapters.inflight(0) == pool.adapters.inflight(1) == {}


def test_placing_anywhere_respects_the_hint_and_teaches_nothing():
    pool = make_pool(3)
    for _ in range(20):
        placement = pool.place_anywhere(request(500, subset=("10.0.0.2",)), START)
        assert chosen(placement) == placement.destination == "10.0.0.2:8000"
        assert placement.lesson is None and not placement.observe
        pool.finish(placement, Outcome.SERVED, START + 1)
    drawn = {chosen(pool.place_anywhere(request(), START)) for _ in range(60)}
    assert len(drawn) == 3
    with pytest.raises(NoEndpoints):
        make_pool(0).place_anywhere(request(), START)


class TestBackstop:
    """What nobody ended is released when its engine has had nothing to do for long."""

    def test_what_an_idle_engine_cannot_have_is_released(self):
        pool = make_pool(2)
        old = pool.place(request(subset=("10.0.0.1",)), START)
        now = START + LOST_AFTER_MS + 10.0
        young = pool.place(request(subset=("10.0.0.1",)), now - 1_000)
        feed(pool, pool.table.at(0), now, running=0.0)
        assert old.booking.released and not young.booking.released
        assert pool.lost == 1
        assert not pool.finish(old, Outcome.SERVED, now)
        assert in_flight(pool)["10.0.0.1:8000"] == 1

    @pytest.mark.parametrize("gauges", [{"running": 1.0}, {"running": 0.0, "waiting": 1.0}, {"running": None}])
    def test_a_busy_or_silent_engine_may_still_have_it(self, gauges):
        pool = make_pool(1)
        placement = pool.place(request(), START)
        feed(pool, pool.table.at(0), START + 2 * LOST_AFTER_MS, **gauges)
        assert not placement.booking.released and pool.lost == 0

    def test_what_engines_do_not_count_stays(self):
        pool = make_pool(1)
        socket = pool.place(request(0, kind=RequestKind.OTHER), START)
        feed_all(pool, START + 10 * LOST_AFTER_MS, running=0.0)
        assert not socket.booking.released

    def test_a_draining_endpoint_goes_with_it(self):
        pool = make_pool(2)
        pool.place(request(subset=("10.0.0.2",)), START)
        endpoint = pool.table.at(1)
        pool.apply_endpoints([spec(0)])
        feed(pool, endpoint, START + LOST_AFTER_MS + 1, running=0.0)
        assert len(pool.table) == 1 and len(pool.ledger) == 0


def test_the_table_that_is_given_is_used() -> None:
    """Also while it is empty: its step models are the configured ones."""
    table = EndpointTable()
    assert Pool("test", default_policy(), random.Random(1), None, table).table is table
