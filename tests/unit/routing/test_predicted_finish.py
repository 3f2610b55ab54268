"""The default policy: order, ties, discounts by scorers, and the same cost as a score."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from core_pools import START, chosen, feed_all, make_pool, request
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.plugins.pickers import MaxScorePicker
from poolpilot_picker.routing.predicted_finish import (
    PredictedFinishParameters,
    PredictedFinishPicker,
    PredictedFinishScorer,
)
from view_builder import make_table, make_view

pytestmark = pytest.mark.usefixtures("both_cores")


def picker(count=1):
    return PredictedFinishPicker(PredictedFinishParameters(max_num_of_endpoints=count))


def test_slots_by_rising_cost_as_many_as_asked():
    view = make_view(make_table(4, inflight=[9, 2, 5, 0]))
    assert picker(9).pick(view, np.zeros(4)) == [3, 1, 2, 0]
    assert picker(2).pick(view, np.zeros(4)) == [3, 1]
    assert picker().pick(view, np.zeros(4)) == [3]


def test_only_candidates_are_named():
    view = make_view(make_table(4, inflight=[9, 2, 5, 0]), mask=[True, False, True, False])
    assert picker(4).pick(view, np.where(view.mask, 0.0, -np.inf)) == [2, 0]


def test_equal_costs_are_drawn_evenly_and_named_once():
    view = make_view(make_table(4))
    drawn = Counter()
    for _ in range(2_000):
        order = picker(4).pick(view, np.zeros(4))
        assert sorted(order) == [0, 1, 2, 3]
        drawn[order[0]] += 1
    assert min(drawn.values()) > 400


def test_scores_of_other_scorers_are_a_discount_of_up_to_the_best_cost():
    view = make_view(make_table(3, inflight=[0, 1, 250]))
    plain = picker().pick(view, np.zeros(3))
    assert plain == [0]
    assert picker().pick(view, np.array([0.0, 1.0, 0.0])) == [1]
    # Too busy to be worth it: the discount is bounded.
    assert picker().pick(view, np.array([0.0, 0.0, 1.0])) == [0]


def test_the_forecast_is_that_of_the_chosen_endpoint():
    pool = make_pool(3)
    feed_all(pool, START)
    placement = pool.place(request(2_000), START)
    busy = pool.place(request(2_000, subset=(chosen(placement),)), START)
    assert placement.predicted.wait_ms == 0.0
    assert busy.predicted.wait_ms > placement.predicted.prefill_ms
    assert busy.predicted.finish_ms > busy.predicted.ttft_ms > busy.predicted.wait_ms
    assert busy.booking.first_ms == pytest.approx(START + 2 * placement.predicted.prefill_ms, rel=0.3)


def test_as_a_scorer_the_best_gets_one_and_the_forecast_is_booked_all_the_same():
    view = make_view(make_table(3, inflight=[4, 0, 20]))
    score = PredictedFinishScorer().score(view)
    assert score[1] == 1.0 and 0 < score[2] < score[0] < 1
    mixed = Profile("mixed", scorers=[("cost", PredictedFinishScorer(), 1.0)], picker=("max", MaxScorePicker()))
    pool = make_pool(2, policy=mixed)
    placement = pool.place(request(3_000), START)
    assert placement.predicted.prefill_ms > 0
    assert pool.table.free_at_ms.max() > START


def test_a_policy_that_predicts_nothing_still_books():
    pool = make_pool(2, policy=Profile("blind", picker=("max", MaxScorePicker())))
    first = pool.place(request(3_000, prefix=[("x", 2_048)]), START)
    again = pool.place(request(3_000, prefix=[("x", 2_048)], subset=(chosen(first),)), START)
    assert (first.predicted.ttft_ms, again.predicted.uncached_tokens) == (0.0, 952.0)
    assert pool.table.prompt_tokens.sum() == 6_000
