"""What is advised from which facts, and that nothing is advised from what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from poolpilot_operator.history.advice import Facts, advice

QUIET = {
    "endpoints": 4.0,
    "kv_p95": 0.6,
    "waiting_p95": 0.2,
    "requests_s": 2.0,
    "preemptions_s": 0.0,
    "prefix_queries_s": 100.0,
    "between_tokens_p50_s": 0.02,
    "between_tokens_p99_s": 0.05,
}


def advised(**other: Any) -> dict[str, str]:
    return {one.topic: one.message for one in advice(Facts(**{**QUIET, **other}), "1d")}


def test_where_all_is_well_or_nothing_is_known_nothing_is_said() -> None:
    assert advised() == {}
    assert advice(Facts(), "1d") == []
    assert advised(requests_s=None, preemptions_s=1.0, prefix_queries_s=0.0) == {}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kv_p95": 0.95}, "6 engines instead of 4"),
        ({"waiting_p95": 3.0}, "7 engines instead of 4"),
        ({"kv_p95": 0.86, "endpoints": 1.0}, "2 engines instead of 1"),
        ({"kv_p95": 0.1, "waiting_p95": 0.0}, "1 engines would do instead of 4"),
        ({"kv_p95": 0.25, "waiting_p95": 0.0}, "2 engines would do instead of 4"),
    ],
)
def test_replicas(facts: dict[str, float], words: str) -> None:
    assert advised(**facts)["Replicas"].startswith(words)


@pytest.mark.parametrize(
    "facts", [{"kv_p95": 0.85}, {"kv_p95": 0.1, "waiting_p95": 0.2}, {"endpoints": 0.0, "kv_p95": 1.0}]
)
def test_no_other_number_of_replicas(facts: dict[str, float]) -> None:
    assert "Replicas" not in advised(**facts)


def test_engines_flags() -> None:
    assert "--enable-prefix-caching" in advised(prefix_queries_s=0.0)["PrefixCaching"]
    assert advised(preemptions_s=0.1)["MaxNumSeqs"].startswith("5% of requests were preempted")
    assert "raise --max-num-seqs" in advised(waiting_p95=2.0, kv_p95=0.3)["MaxNumSeqs"]
    assert "--max-num-batched-tokens" in advised(between_tokens_p99_s=0.2)["TokenBudget"]
    assert "MaxNumSeqs" not in advised(preemptions_s=0.01)
    assert "TokenBudget" not in advised(between_tokens_p99_s=0.19)


def test_lengths_of_answers() -> None:
    text = advised(output_p50=120.0, output_p90=700.4)["OutputLength"]
    assert text == "half of the answers of 1d had at most 120 tokens, nine of ten 700"
