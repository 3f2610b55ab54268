"""Prefix affinity with its way out, and session bindings."""

from __future__ import annotations

import pytest

from poolpilot_picker.requests.request import InferenceRequest, PrefixChain
from poolpilot_picker.routing.plugins import stickiness
from poolpilot_picker.routing.plugins.stickiness import (
    PrefixAffinityFilter,
    PrefixAffinityParameters,
    SessionAffinityFilter,
    SessionAffinityScorer,
    SessionParameters,
)
from poolpilot_picker.state.endpoints import EndpointSpec
from view_builder import NOW, make_table, make_view

CHAIN = PrefixChain(hashes=list(range(10)), ends=[100.0 * n for n in range(1, 11)])
PROMPT = InferenceRequest(request_id="r", prompt_tokens=1010, prefix=CHAIN)


def kept(cached, inflight=(0, 0, 0), seed=1, **parameters):
    """Slots that stay, with so many cached and in-flight tokens."""
    table = make_table(3)
    table.uncached_tokens[:] = inflight
    view = make_view(table, request=PROMPT, cached=cached, seed=seed)
    return PrefixAffinityFilter(PrefixAffinityParameters(**parameters)).filter(view).nonzero()[0].tolist()


def test_keeps_the_endpoints_that_hold_most_of_the_prompt():
    assert kept([800, 799, 1000]) == [0, 2]


def test_without_a_sticky_endpoint_all_stay():
    assert kept([700, 100, 0]) == [0, 1, 2]
    view = make_view(make_table(3), request=InferenceRequest(request_id="r", prompt_tokens=10))
    assert PrefixAffinityFilter(PrefixAffinityParameters(affinity_threshold=0.0)).filter(view).all()


def test_a_queue_that_delays_the_first_token_too_much_breaks_the_stickiness():
    # 10,000 tokens/s and 2 s: 20,000 tokens behind the best of the others.
    limits = {"peak_prefill_throughput": 10_000.0, "max_ttft_penalty_ms": 2000.0}
    assert kept([1000, 0, 0], [25_000, 5000, 9000], **limits) == [0]
    assert kept([1000, 0, 0], [25_001, 5000, 9000], **limits) == [0, 1, 2]
    assert kept([1000, 1000, 0], [25_001, 20_000, 1000], **limits) == [0, 1]


def test_without_a_penalty_it_always_sticks():
    assert kept([1000, 0, 0], [1e9, 0, 0], max_ttft_penalty_ms=0.0) == [0]


def test_exploration_ignores_stickiness_at_times():
    free = sum(len(kept([1000, 0, 0], seed=seed, exploration_probability=0.25)) == 3 for seed in range(400))
    assert 70 <= free <= 130


def test_the_published_threshold():
    defaults = PrefixAffinityParameters()
    assert defaults.peak_prefill_throughput * defaults.max_ttft_penalty_ms / 1000 == pytest.approx(286_704)


def session(key, table, now=NOW, **view):
    """A view for a request of this session."""
    return make_view(table, request=InferenceRequest(request_id="r", routing_key=key), now=now, **view)


def test_a_session_scores_the_endpoint_it_was_first_placed_on():
    scorer, table = SessionAffinityScorer(SessionParameters(strategy="session_id")), make_table(3)
    assert scorer.score(session("s", table)).tolist() == [0, 0, 0]
    scorer.placed(session("s", table), 1)
    scorer.placed(session("s", table), 2)
    assert scorer.score(session("s", table)).tolist() == [0, 1, 0]
    assert scorer.score(session("other", table)).tolist() == [0, 0, 0]


def test_a_request_without_a_key_is_not_bound():
    scorer, table = SessionAffinityScorer(SessionParameters(strategy="session_id")), make_table(2)
    scorer.placed(session("", table), 1)
    assert scorer.score(session("", table)).tolist() == [0, 0]


def test_a_session_is_bound_anew_only_when_its_endpoint_is_gone():
    plugin, table = SessionAffinityFilter(SessionParameters(strategy="session_id")), make_table(3)
    plugin.placed(session("s", table), 0)
    # Removed by another filter for a moment: everything passes, the binding stays.
    busy = session("s", table)
    busy.keep(make_view(table, mask=[False, True, True]).mask, "too busy")
    assert plugin.filter(busy).tolist() == [True, True, True]
    plugin.placed(busy, 2)
    assert plugin.filter(session("s", table)).tolist() == [True, False, False]
    # Gone, and its slot taken by another endpoint.
    table.apply([EndpointSpec(host=f"10.0.0.{n}", port=8000) for n in (2, 3, 9)])
    assert table.at(0).spec.host == "10.0.0.9"
    assert plugin.filter(session("s", table)).tolist() == [True, True, True]
    plugin.placed(session("s", table), 1)
    assert plugin.filter(session("s", table)).tolist() == [False, True, False]


def test_a_binding_outlives_a_pool_that_shrinks_below_its_slot():
    plugin, table = SessionAffinityFilter(SessionParameters(strategy="session_id")), make_table(3)
    plugin.placed(session("s", table), 2)
    table.apply([EndpointSpec(host="10.0.0.1", port=8000)])
    assert len(table) == 1
    assert plugin.filter(session("s", table)).tolist() == [True]
    plugin.placed(session("s", table), 0)
    assert plugin.filter(session("s", table)).tolist() == [True]


def test_a_session_ends_when_it_is_unused():
    scorer = SessionAffinityScorer(SessionParameters(strategy="session_id", eviction_ttl_seconds=60))
    table = make_table(2)
    scorer.placed(session("s", table), 0)
    scorer.placed(session("s", table, now=NOW + 50_000), 0)
    assert scorer.score(session("s", table, now=NOW + 110_000)).tolist() == [1, 0]
    assert scorer.score(session("s", table, now=NOW + 110_001)).tolist() == [0, 0]
    scorer.placed(session("s", table, now=NOW + 120_000), 1)
    assert scorer.score(session("s", table, now=NOW + 120_000)).tolist() == [0, 1]


def test_sessions_are_swept_and_bounded(monkeypatch):
    monkeypatch.setattr(stickiness, "MAX_SESSIONS", 10)
    scorer, table = SessionAffinityScorer(SessionParameters(strategy="session_id")), make_table(2)
    for number in range(25):
        scorer.placed(session(f"s{number}", table), 0)
    assert len(scorer._sessions._bound) == 10
    assert scorer.score(session("s24", table)).any()
    assert not scorer.score(session("s3", table)).any()
    scorer.placed(session("late", table, now=NOW + 1e6), 0)
    assert list(scorer._sessions._bound) == ["late"]


def test_the_default_strategy_is_refused():
    with pytest.raises(ValueError, match="encoded_endpoint_header"):
        SessionParameters()
