"""Every picker: its distribution, its ties, its fallbacks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from poolpilot_picker.routing.plugins.pickers import (
    LeastRequestPicker,
    MaxScorePicker,
    PickerParameters,
    PowerOfTwoPicker,
    RandomPicker,
    RoundRobinPicker,
    WeightedRandomPicker,
)
from poolpilot_picker.state.endpoints import EndpointSpec
from view_builder import make_table, make_view

ALL = [MaxScorePicker, RandomPicker, WeightedRandomPicker, RoundRobinPicker, LeastRequestPicker, PowerOfTwoPicker]
DRAWS = 4000


def shares(picker, view, scores, draws=DRAWS):
    """Share of first picks per slot."""
    counted = Counter(picker.pick(view, scores)[0] for _ in range(draws))
    return [counted[slot] / draws for slot in range(len(scores))]


@pytest.mark.parametrize("picker", ALL)
def test_names_as_many_distinct_candidates_as_asked(picker):
    view = make_view(make_table(5), mask=[True, False, True, True, False])
    scores = np.where(view.mask, 0.5, -np.inf)
    for wanted, got in [(1, 1), (2, 2), (3, 3), (9, 3)]:
        slots = picker(PickerParameters(max_num_of_endpoints=wanted)).pick(view, scores)
        assert len(slots) == got
        assert len(set(slots)) == got
        assert set(slots) <= {0, 2, 3}


@pytest.mark.parametrize("picker", ALL)
def test_ties_spread_evenly_over_the_candidates(picker):
    view = make_view(make_table(4), mask=[True, True, False, True])
    got = shares(picker(), view, np.where(view.mask, 0.0, -np.inf))
    assert got[2] == 0.0
    assert all(abs(share - 1 / 3) < 0.04 for slot, share in enumerate(got) if slot != 2)


def test_max_score_orders_by_falling_score():
    view = make_view(make_table(4))
    assert MaxScorePicker(PickerParameters(max_num_of_endpoints=4)).pick(view, np.array([0.1, 3.0, 2.0, 2.5])) == [
        1,
        3,
        2,
        0,
    ]


def test_weighted_random_draws_in_proportion_to_the_score():
    view = make_view(make_table(3))
    got = shares(WeightedRandomPicker(), view, np.array([1.0, 2.0, 5.0]))
    assert got == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)


def test_weighted_random_draws_a_score_of_zero_only_after_the_others():
    view = make_view(make_table(3))
    picker = WeightedRandomPicker(PickerParameters(max_num_of_endpoints=3))
    orders = [picker.pick(view, np.array([0.0, 1e-9, 1e-3])) for _ in range(200)]
    assert {order[-1] for order in orders} == {0}


def test_round_robin_takes_turns():
    view = make_view(make_table(3))
    picker = RoundRobinPicker(PickerParameters(max_num_of_endpoints=2))
    assert [picker.pick(view, np.zeros(3)) for _ in range(4)] == [[0, 1], [1, 2], [2, 0], [0, 1]]


def test_round_robin_is_not_bent_by_requests_for_a_part_of_the_pool():
    table = make_table(4)
    picker, counted = RoundRobinPicker(), Counter()
    for _ in range(300):
        picker.pick(make_view(table, mask=[True, False, False, False]), np.zeros(4))
        counted[picker.pick(make_view(table), np.zeros(4))[0]] += 1
    assert [counted[slot] for slot in (1, 2, 3)] == [100, 100, 100]


def test_round_robin_goes_on_when_the_pool_grows():
    table = make_table(2)
    picker = RoundRobinPicker()
    first = [picker.pick(make_view(table), np.zeros(2))[0] for _ in range(3)]
    table.apply([*(endpoint.spec for endpoint in table), EndpointSpec(host="10.0.0.9", port=8000)])
    assert first + [picker.pick(make_view(table), np.zeros(3))[0] for _ in range(4)] == [0, 1, 0, 2, 1, 0, 2]


def test_least_request_counts_own_bookings_and_others():
    table = make_table(3, running=[5, 0, 3])
    table.inflight[:] = table.requests[:] = [0, 2, 0]
    view = make_view(table)
    assert LeastRequestPicker(PickerParameters(max_num_of_endpoints=3)).pick(view, np.zeros(3)) == [1, 2, 0]


def test_power_of_two_never_picks_the_most_loaded_and_prefers_the_least():
    table = make_table(4, running=[4, 3, 2, 1])
    got = shares(PowerOfTwoPicker(), make_view(table), np.zeros(4))
    assert got == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6], abs=0.03)
