"""A profile: filters, weighted scores, picker; what a failing plugin costs; invariants whatever plugins answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.errors import NoEndpoints, PreconditionFailed, TooManyRequests
from poolpilot_picker.routing.pipeline import PluginGuard, Profile
from poolpilot_picker.routing.plugins.pickers import MaxScorePicker, PickerParameters
from view_builder import NOW, make_table, make_view


class Answers:
    """A plugin that answers with whatever it was given, or raises it."""

    def __init__(self, answer):
        self.answer = answer
        self.told = []

    def _say(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def filter(self, view):
        return self._say()

    def score(self, view):
        return self._say()

    def pick(self, view, scores):
        return self._say()

    def placed(self, view, slot):
        self.told.append(slot)
        self._say()


ORDER = MaxScorePicker(PickerParameters(max_num_of_endpoints=9))


def profile(*, filters=(), scorers=(), picker=ORDER, guard=None):
    """A profile of anonymous plugins."""
    return Profile(
        "p",
        filters=[(f"f{index}", each) for index, each in enumerate(filters)],
        scorers=[(f"s{index}", each, weight) for index, (each, weight) in enumerate(scorers)],
        picker=("picker", picker),
        guard=guard,
    )


def test_scores_are_clamped_weighted_and_summed_without_normalisation():
    view = make_view(make_table(3))
    seen = []

    class Picker:
        def pick(self, view, scores):
            seen.append(scores.copy())
            return [2]

    first, second = np.array([0.5, 7.0, -3.0]), np.array([1.0, 0.0, 0.25])
    assert profile(scorers=[(Answers(first), 2.0), (Answers(second), 3.0)], picker=Picker()).decide(view) == [2]
    assert seen[0].tolist() == [4.0, 2.0, 0.75]
    # The receipt keeps what the scorer said.
    assert view.terms["s0"].tolist() == [0.5, 7.0, -3.0]
    assert view.terms["s1"].tolist() == [1.0, 0.0, 0.25]


def test_the_weights_of_llm_d_reach_seven():
    ones = Answers(np.ones(2))
    assert profile(scorers=[(ones, 2.0), (ones, 2.0), (ones, 3.0)], picker=Answers([0])).decide(
        make_view(make_table(2))
    )
    view, seen = make_view(make_table(2)), []

    class Picker:
        def pick(self, view, scores):
            seen.extend(scores)
            return [0]

    profile(scorers=[(ones, 2.0), (ones, 2.0), (ones, 3.0)], picker=Picker()).decide(view)
    assert seen == [7.0, 7.0]


def test_filters_narrow_in_order_and_say_whom_they_removed():
    view = make_view(make_table(4))
    masks = [np.array([True, True, True, False]), np.array([False, True, True, True])]
    assert sorted(profile(filters=map(Answers, masks)).decide(view)) == [1, 2]
    assert view.excluded == {3: "f0", 0: "f1"}


def test_a_filter_that_leaves_none_ends_in_429():
    with pytest.raises(TooManyRequests) as caught:
        profile(filters=[Answers(np.zeros(2, dtype=bool))]).decide(make_view(make_table(2)))
    assert caught.value.text == "inference error: ResourceExhausted - no endpoints available for the given request"
    assert caught.value.dropped_reason == "rejected-saturated"


def test_no_candidate_at_all_is_503():
    with pytest.raises(NoEndpoints, match="failed to find endpoint candidates for serving the request"):
        profile().decide(make_view(make_table(2), mask=[False, False]))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ValueError("bad day"), "ValueError: bad day"),
        (np.ones(3, dtype=bool), "an array of bool with shape (3,) instead of bool with (2,)"),
        (np.ones(2), "an array of float64 with shape (2,) instead of bool with (2,)"),
        (None, "an array of object with shape () instead of bool with (2,)"),
    ],
)
def test_a_failing_filter_is_left_out(answer, reason):
    said = []
    guard = PluginGuard(log=said.append)
    assert sorted(profile(filters=[Answers(answer)], guard=guard).decide(make_view(make_table(2)))) == [0, 1]
    assert guard.failures == {"f0": 1}
    assert said == [f"plugin f0 was left out of a decision: filter() failed with {reason} (1 times so far)"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ZeroDivisionError(), "ZeroDivisionError: "),
        (np.ones(3), "an array with shape (3,) instead of (2,)"),
        (np.array([np.nan, 1.0]), "NaN for a candidate"),
        (None, "an array with shape () instead of (2,)"),
        ("high", "ValueError: could not convert string to float"),
    ],
)
def test_a_failing_scorer_is_left_out(answer, reason):
    said, view = [], make_view(make_table(2))
    good = Answers(np.array([0.0, 1.0]))
    assert profile(scorers=[(Answers(answer), 5.0), (good, 1.0)], guard=PluginGuard(log=said.append)).decide(view) == [
        1,
        0,
    ]
    assert reason in said[0]
    assert "s0" not in view.terms


def test_nan_for_an_endpoint_that_is_no_candidate_is_no_failure():
    guard = PluginGuard()
    view = make_view(make_table(3), mask=[False, True, True])
    assert profile(scorers=[(Answers(np.array([np.nan, 0.1, 0.2])), 1.0)], guard=guard).decide(view) == [2, 1]
    assert guard.failures == {}


@pytest.mark.parametrize("answer", [RuntimeError("x"), [], None, [7], [0], [-1], ["a"], [1.7, 0], [1, 0]])
def test_a_failing_picker_falls_back_to_the_best_score(answer):
    guard = PluginGuard()
    view = make_view(make_table(3), mask=[False, True, True])
    scored = [(Answers(np.array([1.0, 0.2, 0.9])), 1.0)]
    assert profile(scorers=scored, picker=Answers(answer), guard=guard).decide(view) == [2]
    assert guard.failures == {"picker": 1}


def test_repeated_slots_and_numpy_integers_are_tidied():
    slots = profile(picker=Answers(np.array([1, 0, 1]))).decide(make_view(make_table(2)))
    assert slots == [1, 0]
    assert all(type(slot) is int for slot in slots)


def test_a_picker_cannot_spoil_the_scores_of_its_fallback():
    class Vandal:
        def pick(self, view, scores):
            scores[:] = [9.0, 0.0]
            return []

    assert profile(scorers=[(Answers(np.array([0.1, 0.2])), 1.0)], picker=Vandal()).decide(
        make_view(make_table(2))
    ) == [1]


@pytest.mark.parametrize("where", ["filters", "scorers", "picker"])
def test_a_plugin_may_refuse_a_request_on_purpose(where):
    refusing = Answers(PreconditionFailed("no decode worker has the requested KV cache"))
    arguments = {"filters": [refusing], "scorers": [(refusing, 1.0)], "picker": refusing}
    with pytest.raises(PreconditionFailed):
        profile(**{where: arguments[where]}).decide(make_view(make_table(2)))


def test_failures_are_counted_each_time_and_said_once_a_minute():
    said = []
    broken = profile(filters=[Answers(OSError("gone"))], guard=PluginGuard(log=said.append))
    table = make_table(2)
    for seconds in (0, 1, 59, 61, 62):
        broken.decide(make_view(table, now=NOW + seconds * 1000.0))
    assert broken.guard.failures == {"f0": 5}
    assert [line[-16:] for line in said] == ["(1 times so far)", "(4 times so far)"]


def test_observers_are_told_and_may_fail():
    guard = PluginGuard()
    good, bad = Answers(None), Answers(KeyError("k"))
    told = Profile("p", picker=("picker", ORDER), observers=[("bad", bad), ("good", good)], guard=guard)
    told.placed(make_view(make_table(2)), 1)
    assert good.told == bad.told == [1]
    assert guard.failures == {"bad": 1}


anything = st.one_of(
    st.none(),
    st.just(RuntimeError("x")),
    st.lists(st.floats(), max_size=6),
    st.lists(st.integers(-3, 9), max_size=6),
    st.lists(st.booleans(), max_size=6).map(lambda flags: np.array(flags, dtype=bool)),
    st.lists(st.floats(), max_size=6).map(np.array),
    st.text(max_size=3),
)


@given(
    mask=st.lists(st.booleans(), min_size=1, max_size=5),
    filters=st.lists(anything, max_size=3),
    scorers=st.lists(st.tuples(anything, st.floats(0, 10)), max_size=3),
    picker=anything,
)
def test_whatever_plugins_do_the_answer_is_a_candidate_or_a_refusal(mask, filters, scorers, picker):
    view = make_view(make_table(len(mask)), mask=mask)
    before = view.mask.copy()
    run = profile(
        filters=map(Answers, filters),
        scorers=[(Answers(each), weight) for each, weight in scorers],
        picker=Answers(picker),
    )
    try:
        slots = run.decide(view)
    except NoEndpoints:
        assert not before.any()
    except TooManyRequests:
        assert not view.mask.any()
    else:
        assert slots
        assert len(set(slots)) == len(slots)
        assert all(before[slot] and view.mask[slot] for slot in slots)
