"""Who joins a pool at work is not run over; who starts with everybody, or has been there a while, counts as it is."""

from __future__ import annotations

from collections import Counter

from core_pools import START, feed_all, make_pool, request, spec
from poolpilot_picker.flow.warm_up import WARM_UP_MS


def busy(pool, now):
    """Thirty requests in flight at each endpoint, their prefill long done."""
    for endpoint in pool.table:
        for number in range(30):
            pool.place(request(500, request_id=f"{endpoint.slot}/{number}", subset=(endpoint.address,)), now)


def placed_at_the_newcomer(now, *, known):
    """How many of forty prompts go to an endpoint that has just joined three busy ones; `known`: nothing is lent."""
    pool = make_pool(3)
    busy(pool, START)
    pool.apply_endpoints([spec(n) for n in range(4)])
    if known:
        pool._warm_up.new.clear()
    pool.place(request(500, subset=(spec(0).address,)), START + 5_000.0)
    feed_all(pool, now)
    # Long ones, and with time to be prefilled: where they queue, waits decide, whatever is lent.
    placed = [pool.place(request(1_500, prefix=[(n, 1_472)]), now + 50.0 * n) for n in range(40)]
    return Counter(placement.booking.endpoint.address for placement in placed)[spec(3).address]


def test_an_endpoint_that_joins_gets_its_share_and_not_everything():
    now = START + 5_000.0
    alike = placed_at_the_newcomer(now, known=True)
    assert 10 <= placed_at_the_newcomer(now, known=False) < alike
    # Later it counts as what it is: empty.
    later = now + WARM_UP_MS
    assert placed_at_the_newcomer(later, known=False) == placed_at_the_newcomer(later, known=True)


def test_endpoints_of_the_start_are_not_new_and_those_that_leave_are_forgotten():
    pool = make_pool(2)
    assert not pool._warm_up.new
    pool.apply_endpoints([spec(n) for n in range(3)])
    assert [endpoint.address for endpoint in pool._warm_up.new] == [spec(2).address]
    pool.apply_endpoints([spec(n) for n in range(2)])
    assert not pool._warm_up.new


def test_what_is_lent_fades_to_nothing():
    pool = make_pool(1)
    pool.apply_endpoints([spec(n) for n in range(2)])
    slot = pool.table.find(spec(1).address).slot
    lent = [float(pool._warm_up.shares(START + part * WARM_UP_MS)[slot]) for part in (0.0, 0.25, 0.75, 1.0)]
    assert lent == [1.0, 0.75, 0.25, 0.0]
    assert not pool._warm_up.new
