"""Load scorers: the recorded values, every formula, and what an endpoint that was not heard from scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.routing.plugins.load_scorers import (
    ActiveRequestParameters,
    ActiveRequestScorer,
    KvCacheScorer,
    LoadAwareParameters,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsScorer,
    TokenLoadParameters,
    TokenLoadScorer,
)
from view_builder import NOW, make_table, make_view

VECTORS = yaml.safe_load((Path(__file__).parents[3] / "data/vectors/small.yaml").read_text())["scorers"]
NAN = float("nan")
READS = {
    "queue-scorer": ("waiting", QueueScorer),
    "running-requests-size-scorer": ("running", RunningRequestsScorer),
    "kv-cache-utilization-scorer": ("kv_usage", KvCacheScorer),
}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in READS for case in VECTORS[name]])
def test_recorded_values(name, case):
    column, scorer = READS[name]
    table = make_table(len(case["in"]), **{column: case["in"]})
    assert scorer().score(make_view(table)) == pytest.approx(case["out"])


@pytest.mark.parametrize("name", ["queue-scorer", "running-requests-size-scorer"])
def test_the_range_is_that_of_the_candidates(name):
    column, scorer = READS[name]
    view = make_view(make_table(4, **{column: [90, 2, 4, 3]}), mask=[False, True, True, True])
    assert scorer().score(view)[1:].tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("name", "known", "alike"),
    [
        ("queue-scorer", [8, 0, 6], [0.0, 1.0, 0.25]),
        ("running-requests-size-scorer", [8, 0, 6], [0.0, 1.0, 0.25]),
        ("kv-cache-utilization-scorer", [0.8, 0.0, 0.6], [0.2, 1.0, 0.4]),
    ],
)
def test_an_endpoint_never_heard_from_scores_like_the_median_of_its_peers(name, known, alike):
    column, scorer = READS[name]
    table = make_table(4, **{column: [*known, NAN]})
    table.sample_ms[3] = -np.inf
    table.running[3] = NAN
    assert scorer().score(make_view(table)) == pytest.approx([*alike, alike[2]])


@pytest.mark.parametrize("name", READS)
def test_a_stale_sample_counts_as_unknown(name):
    column, scorer = READS[name]
    table = make_table(3, **{column: [0.4, 0.2, 0.0]})
    table.sample_ms[2] = NOW - 60_000.0
    score = scorer().score(make_view(table))
    assert score[0] < score[2] < score[1]


@pytest.mark.parametrize("name", READS)
def test_when_nothing_is_known_all_score_alike(name):
    score = READS[name][1]().score(make_view(make_table(3, sampled=False)))
    assert len(set(score.tolist())) == 1
    assert not np.isnan(score).any()


def test_a_gauge_that_one_engine_lacks_does_not_spoil_the_others():
    table = make_table(3, kv_usage=[0.5, NAN, 0.1], running=[1, 1, NAN])
    assert KvCacheScorer().score(make_view(table)) == pytest.approx([0.5, 0.7, 0.9])


def test_the_median_is_that_of_the_candidates():
    table = make_table(4, waiting=[100, 2, 4, NAN])
    assert LoadAwareScorer(LoadAwareParameters(threshold=10)).score(make_view(table, mask=[False, True, True, True]))[
        1:
    ] == pytest.approx([0.4, 0.3, 0.35])


def test_load_aware_is_half_of_the_free_queue():
    table = make_table(5, waiting=[0, 32, 64, 128, 500])
    assert LoadAwareScorer().score(make_view(table)).tolist() == [0.5, 0.375, 0.25, 0.0, 0.0]
    assert LoadAwareScorer(LoadAwareParameters(threshold=64)).score(make_view(table)).tolist() == [0.5, 0.25, 0, 0, 0]
    assert LoadAwareScorer(LoadAwareParameters(threshold=-1)).score(make_view(table))[2] == 0.25


def test_active_requests_by_our_own_account():
    table = make_table(4, sampled=False)
    table.requests[:] = [0, 1, 2, 4]
    view = make_view(table)
    assert ActiveRequestScorer().score(view).tolist() == [1.0, 0.75, 0.5, 0.0]
    tuned = ActiveRequestScorer(ActiveRequestParameters(idle_threshold=1, max_busy_score=0.5))
    assert tuned.score(view).tolist() == [1.0, 1.0, 0.25, 0.0]


def test_active_requests_of_an_idle_pool():
    assert ActiveRequestScorer().score(make_view(make_table(2))).tolist() == [1.0, 1.0]


def test_token_load_counts_this_requests_uncached_tokens():
    table = make_table(4)
    table.uncached_tokens[:] = [0, 100, 100, 5000]
    view = make_view(table, request=InferenceRequest(request_id="r", prompt_tokens=300), cached=[0, 0, 300, 0])
    assert TokenLoadScorer(TokenLoadParameters(queue_threshold_tokens=1000)).score(view) == pytest.approx(
        [0.7, 0.6, 0.9, 0.0]
    )
    assert TokenLoadScorer().score(view)[1] == pytest.approx(1 - 400 / 4_194_304)


def test_token_load_without_tokens():
    assert TokenLoadScorer().score(make_view(make_table(1))).tolist() == [1.0]
