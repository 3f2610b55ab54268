"""Prefix cache, adapters, and the spread of requests that no cache knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from poolpilot_picker.requests.request import InferenceRequest, PrefixChain
from poolpilot_picker.routing.plugins.cache_scorers import (
    LoraAffinityScorer,
    NoHitLruParameters,
    NoHitLruScorer,
    PrefixCacheParameters,
    PrefixCacheScorer,
)
from poolpilot_picker.state.endpoints import EndpointSpec
from view_builder import make_adapters, make_table, make_view

LORA = yaml.safe_load((Path(__file__).parents[3] / "data/vectors/small.yaml").read_text())["scorers"][
    "lora-affinity-scorer"
]


def prompt(blocks: int, tokens: float = 64.0) -> InferenceRequest:
    """A request whose prompt is cut in equal blocks."""
    chain = PrefixChain(hashes=range(blocks), ends=[tokens * (index + 1) for index in range(blocks)])
    return InferenceRequest(request_id="r", prompt_tokens=int(blocks * tokens) + 10, prefix=chain)


def test_prefix_is_matched_over_total_blocks():
    view = make_view(make_table(4), request=prompt(4), cached=[0, 64, 192, 266])
    assert PrefixCacheScorer().score(view).tolist() == [0.0, 0.25, 0.75, 1.0]


def test_prefix_with_a_share_for_the_matched_length():
    scorer = PrefixCacheScorer(PrefixCacheParameters(match_length_weight=0.4, match_length_scale_tokens=128))
    view = make_view(make_table(3), request=prompt(4), cached=[64, 128, 256])
    assert scorer.score(view) == pytest.approx([0.4 * 0.25 + 0.6 * 0.25, 0.4 + 0.6 * 0.5, 1.0])


def test_a_prompt_shorter_than_a_block_scores_nothing():
    view = make_view(make_table(2), request=InferenceRequest(request_id="r", prompt_tokens=20), cached=[0, 0])
    assert PrefixCacheScorer().score(view).tolist() == [0.0, 0.0]


def lora(model, **kinds):
    """Scores for a model over four endpoints: running it, with room, with it waiting, full."""
    adapters = make_adapters(
        4, models=[["a", "x"], ["x"], ["x", "y"], ["x", "y"]], waiting=[[], [], ["a"], ["z"]], slots=2, **kinds
    )
    request = InferenceRequest(request_id="r", target_model=model)
    return LoraAffinityScorer().score(make_view(make_table(4), request=request, adapters=adapters)).tolist()


def test_adapters_running_room_waiting_full():
    assert lora("a") == [LORA["active"], LORA["room"], LORA["waiting"], LORA["full"]]


def test_a_base_model_is_no_special_case():
    assert lora("base") == [0.0, 0.8, 0.0, 0.0]


def test_an_endpoint_that_never_told_of_adapters_scores_like_the_median():
    adapters = make_adapters(3, models=[["a"], ["x"]], slots=2)
    adapters.clear(2)
    request = InferenceRequest(request_id="r", target_model="a")
    assert LoraAffinityScorer().score(make_view(make_table(3), request=request, adapters=adapters)).tolist() == [
        1.0,
        0.8,
        0.9,
    ]
    for slot in range(3):
        adapters.clear(slot)
    assert len(set(LoraAffinityScorer().score(make_view(make_table(3), request=request, adapters=adapters)))) == 1


def place(scorer, table, **view):
    """Picks the best score (the first of equals) and tells the scorer."""
    made = make_view(table, **view)
    score = scorer.score(made)
    slot = int(np.where(made.mask, score, -1).argmax())
    scorer.placed(made, slot)
    return slot


def test_cold_requests_go_to_the_endpoint_unused_for_longest():
    scorer, table = NoHitLruScorer(), make_table(3)
    assert scorer.score(make_view(table)).tolist() == [1.0, 0.5, 0.0]
    assert [place(scorer, table) for _ in range(5)] == [0, 1, 2, 0, 1]
    # 2 was used the longest ago, then 0, then 1.
    assert scorer.score(make_view(table)).tolist() == [0.5, 0.0, 1.0]


def test_never_used_endpoints_stand_before_used_ones():
    scorer, table = NoHitLruScorer(), make_table(4)
    scorer.placed(make_view(table), 0)
    scorer.placed(make_view(table), 2)
    # never used: 1, 3 → 1 − 0/3, 1 − 1/3; used: 0, 2 → 1 − (2 + 0)/3, 1 − (2 + 1)/3
    assert scorer.score(make_view(table)) == pytest.approx([1 / 3, 1.0, 0.0, 2 / 3])


def test_any_hit_makes_it_neutral_and_nothing_is_remembered():
    scorer, table = NoHitLruScorer(), make_table(3)
    warm = make_view(table, cached=[0, 64, 0])
    assert scorer.score(warm).tolist() == [0.5, 0.5, 0.5]
    scorer.placed(warm, 0)
    assert scorer.score(make_view(table)).tolist() == [1.0, 0.5, 0.0]


def test_a_hit_outside_the_candidates_does_not_count():
    view = make_view(make_table(3), cached=[64, 0, 0], mask=[False, True, True])
    assert NoHitLruScorer().score(view)[1:].tolist() == [1.0, 0.0]


def test_one_candidate_scores_one():
    assert NoHitLruScorer().score(make_view(make_table(2), mask=[False, True]))[1] == 1.0


def test_what_was_used_first_is_forgotten_first():
    scorer, table = NoHitLruScorer(NoHitLruParameters(lru_size=2)), make_table(4)
    for slot in (2, 1, 0):
        scorer.placed(make_view(table), slot)
    # 2 is forgotten: as good as 3, which was never used.
    assert scorer.score(make_view(table)) == pytest.approx([0.0, 1 / 3, 1.0, 2 / 3])


def test_a_slot_that_changed_hands_was_never_used():
    scorer, table = NoHitLruScorer(), make_table(2)
    scorer.placed(make_view(table), 0)
    table.apply([EndpointSpec(host="10.0.0.2", port=8000), EndpointSpec(host="10.0.0.77", port=8000)])
    assert table.at(0).spec.host == "10.0.0.77"
    assert scorer.score(make_view(table)).tolist() == [1.0, 0.0]
