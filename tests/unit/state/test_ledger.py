"""The account: what is booked where, when prefills are thought to end, and what samples correct."""

from __future__ import annotations

import pytest

from core_pools import spec
from poolpilot_picker.state.endpoints import EndpointTable
from poolpilot_picker.state.ledger import GAUGE_LAG_MS, REMEMBER_MS, TOGETHER_MS, Booking, Ledger, Phase

pytestmark = pytest.mark.usefixtures("both_cores")

NOW = 1_000.0


@pytest.fixture
def table():
    table = EndpointTable()
    table.apply([spec(0), spec(1)])
    return table


@pytest.fixture
def ledger(table):
    return Ledger(table)


def booked(ledger, table, *, slot=0, now=NOW, prefill_ms=100.0, sequences=1, prompt=1_000.0):
    booking = Booking(
        endpoint=table.at(slot),
        placed_ms=now,
        prompt_tokens=prompt,
        uncached_tokens=prompt / 2,
        expected_output=200.0,
        sequences=sequences,
        prefill_ms=prefill_ms,
        adapter="",
    )
    return ledger.book(booking, now)


def deferred(ledger, table):
    """Booked where its adapter waits for a GPU slot."""
    booking = Booking(
        endpoint=table.at(0),
        placed_ms=NOW,
        prompt_tokens=1_000.0,
        uncached_tokens=500.0,
        expected_output=200.0,
        sequences=1,
        prefill_ms=0.0,
        adapter="a",
        deferred=True,
    )
    return ledger.book(booking, NOW)


def firsts(*bookings):
    return [booking.first_ms - NOW for booking in bookings]


def test_prefills_queue_one_behind_the_other(ledger, table):
    queue = [booked(ledger, table) for _ in range(3)]
    assert firsts(*queue) == [100, 200, 300]
    assert table.free_at_ms[0] == NOW + 300
    assert firsts(booked(ledger, table, slot=1)) == [100]


def test_an_answer_proves_that_all_before_it_is_prefilled(ledger, table):
    first, second, third = (booked(ledger, table) for _ in range(3))
    ledger.release(second, NOW + 50, answered=True)
    assert firsts(first, third) == [100, 150]
    assert table.free_at_ms[0] == NOW + 150


def test_an_abort_takes_only_its_own_work_out_of_the_queue(ledger, table):
    first, second, third = (booked(ledger, table) for _ in range(3))
    ledger.release(second, NOW + 50, answered=False)
    assert firsts(first, third) == [100, 200]
    # Of the first, half is done.
    ledger.release(first, NOW + 50, answered=False)
    assert firsts(third) == [150]


def test_an_idle_endpoint_has_no_queue_and_exact_zeros(ledger, table):
    bookings = [booked(ledger, table, prompt=0.1 * n, sequences=3) for n in range(1, 20)]
    for booking in bookings:
        ledger.release(booking, NOW + 10, answered=False)
    assert table.free_at_ms[0] <= NOW + 10
    for name in ("inflight", "requests", "prompt_tokens", "expected_tokens", "new_kv_tokens", "started_sum_ms"):
        assert getattr(table, name)[0] == 0.0
    assert len(ledger) == 0


def test_a_late_first_token_moves_the_queue_by_half_of_the_error(ledger, table):
    first, second = (booked(ledger, table) for _ in range(2))
    ledger.first_token(first, NOW + 180)
    assert first.phase is Phase.DECODE
    assert firsts(first, second) == [180, 240]
    assert table.free_at_ms[0] == NOW + 240
    ledger.first_token(first, NOW + 900)
    assert firsts(first) == [180]


def test_who_waits_for_a_gpu_slot_holds_up_nobody(ledger, table):
    late = deferred(ledger, table)
    assert table.free_at_ms[0] == NOW
    booked(ledger, table)
    ledger.first_token(late, NOW + 5_000)
    assert table.free_at_ms[0] == NOW + 100 and late.phase is Phase.DECODE
    ledger.release(late, NOW + 6_000)
    assert table.inflight[0] == 1.0


def test_a_first_token_seen_does_not_hide_those_behind_it(ledger, table):
    first, second, third, fourth = (booked(ledger, table) for _ in range(4))
    ledger.first_token(third, NOW + 120)
    # Third is decoding now; second and fourth still move when the first turns out to be late.
    ledger.first_token(first, NOW + 160)
    assert firsts(second)[0] == 230
    assert firsts(fourth)[0] > 310


def test_a_first_token_seen_early_does_not_hide_those_before_it(ledger, table):
    first, second, third = (booked(ledger, table) for _ in range(3))
    ledger.first_token(third, NOW + 50)
    ledger.release(first, NOW + 60, answered=False)
    assert firsts(second, third) == [160, 50]


def test_moving_takes_the_whole_booking_along(ledger, table):
    booking = booked(ledger, table, sequences=2)
    other = booked(ledger, table)
    ledger.move(booking, table.at(1), NOW + 10, 700.0)
    assert table.inflight.tolist() == [1, 2]
    assert table.prompt_tokens.tolist() == [1_000, 2_000]
    assert table.new_kv_tokens.tolist() == [500, 700]
    assert firsts(other) == [110]
    assert firsts(booking) == [110]
    ledger.move(booking, table.at(1), NOW + 20, 1.0)
    assert table.new_kv_tokens.tolist() == [500, 700]
    assert ledger.release(booking, NOW + 30)
    ledger.move(booking, table.at(0), NOW + 40, 1.0)
    assert table.inflight.tolist() == [1, 0]


def test_released_once(ledger, table):
    booking = booked(ledger, table)
    booked(ledger, table)
    assert ledger.release(booking, NOW) is True
    assert ledger.release(booking, NOW) is False
    assert table.requests.tolist() == [1, 0]


def test_the_last_release_frees_a_draining_endpoint(ledger, table):
    endpoint = table.at(1)
    booking = booked(ledger, table, slot=1)
    table.apply([spec(0)])
    assert table.holds(endpoint)
    ledger.release(booking, NOW)
    assert not table.holds(endpoint) and len(table) == 1


def test_what_a_gauge_may_count_of_ours(ledger, table):
    endpoint = table.at(0)
    assert ledger.explained(endpoint, NOW) == 0
    bookings = [booked(ledger, table, sequences=2) for _ in range(3)]
    assert ledger.explained(endpoint, NOW) == 6
    ledger.release(bookings[0], NOW + 1_000)
    # A gauge read before it ended, or just after and not yet updated, counts it; a later one does not.
    assert ledger.explained(endpoint, NOW + 900) == 6
    assert ledger.explained(endpoint, NOW + 1_000 + GAUGE_LAG_MS) == 6
    assert ledger.explained(endpoint, NOW + 1_000 + TOGETHER_MS + GAUGE_LAG_MS) == 4
    for _ in range(1_000):
        ledger.release(booked(ledger, table, now=NOW + 2_000), NOW + 2_000)
    assert len(ledger._accounts[endpoint].left) == 2
    ledger.release(bookings[1], NOW + 2_100 + REMEMBER_MS)
    assert len(ledger._accounts[endpoint].left) == 1


class TestReconcile:
    """`reconcile_queue`: the end of the prefill queue is bounded by what the engine says is waiting."""

    def test_a_queue_that_was_thought_done_but_waits(self, ledger, table):
        queue = [booked(ledger, table) for _ in range(3)]
        at = NOW + 1_000
        ledger.reconcile_queue(table.at(0), at, 2, at + 5)
        assert table.free_at_ms[0] == at + 200
        # Predictions that have passed are not moved back.
        assert firsts(*queue) == [100, 200, 300]

    def test_a_queue_that_was_thought_long_but_is_done(self, ledger, table):
        queue = [booked(ledger, table, prefill_ms=10_000.0) for _ in range(3)]
        at = NOW + 1_000
        ledger.reconcile_queue(table.at(0), at, 0, at + 5)
        # Nothing waits: at most the one that had begun is still to be done.
        assert table.free_at_ms[0] == pytest.approx(at + 10_030)
        assert firsts(*queue)[2] == pytest.approx(11_030)

    def test_who_waits_for_a_gpu_slot_is_not_in_the_queue(self, ledger, table):
        deferred(ledger, table)
        booked(ledger, table)
        at = NOW + 1_000
        ledger.reconcile_queue(table.at(0), at, 1, at + 5)
        assert table.free_at_ms[0] == at + 100

    def test_what_was_placed_after_the_sample_counts_in_full(self, ledger, table):
        booked(ledger, table)
        at = NOW + 1_000
        later = [booked(ledger, table, now=at + 10 * n) for n in range(1, 4)]
        before = firsts(*later)
        ledger.reconcile_queue(table.at(0), at, 0, at + 40)
        assert firsts(*later) == before

    def test_what_came_just_before_the_sample_may_not_be_in_it(self, ledger, table):
        for _ in range(3):
            booked(ledger, table)
        at = NOW + GAUGE_LAG_MS - 130
        free_at = table.free_at_ms[0]
        ledger.reconcile_queue(table.at(0), at, 0, at)
        assert table.free_at_ms[0] == free_at

    def test_others_that_wait_are_waited_for(self, ledger, table):
        booked(ledger, table)
        at = NOW + 1_000
        ledger.reconcile_queue(table.at(0), at, 11, at)
        assert table.free_at_ms[0] >= at + 100 + 10 * 45
        # Also where we have nothing ourselves.
        ledger.reconcile_queue(table.at(1), at, 11, at)
        assert table.free_at_ms[1] >= at + 11 * 45

    def test_sequences_of_one_request_wait_together(self, ledger, table):
        queue = [booked(ledger, table, sequences=4) for _ in range(3)]
        at = NOW + 1_000
        ledger.reconcile_queue(table.at(0), at, 8, at)
        assert table.free_at_ms[0] == at + 200
        assert len(queue) == 3
