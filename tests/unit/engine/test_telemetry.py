"""Buckets and sums as vLLM counts them."""

import pytest

from engine_runs import drain, engine
from poolpilot_lab.engine.model import Histogram, Sequence
from poolpilot_lab.engine.model.telemetry import token_bounds


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    histogram.observe(9.0, weight=3)
    assert histogram.counts == [2, 2, 4]
    assert (histogram.count, histogram.sum) == (8, 34.5)


def test_token_buckets_reach_up_to_the_context_length() -> None:
    assert token_bounds(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert token_bounds(5000)[-1] == 5000


def test_the_times_of_a_request_add_up() -> None:
    e = engine(max_num_seqs=1)
    first = Sequence(10, 3, max_tokens=7, choices=2, stop_reason="length")
    second = Sequence(4, 1)
    e.add(first, 0.0)
    e.add(second, 5.0)
    drain(e, 5.0)
    t = e.telemetry
    # The first: admitted at 5, first token at 25, two more at 35 and 45. The second: 45 to 59.
    assert t.ttft.sum == pytest.approx(0.025 + 0.054)
    assert t.queue_time.sum == pytest.approx(0.005 + 0.040)
    assert t.prefill_time.sum == pytest.approx(0.020 + 0.014)
    assert t.decode_time.sum == pytest.approx(0.020)
    assert t.inference_time.sum == pytest.approx(0.040 + 0.014)
    assert t.e2e.sum == pytest.approx(0.045 + 0.054)
    assert t.inter_token.sum == pytest.approx(0.020)
    assert t.time_per_output_token.sum == pytest.approx(0.010)
    assert (t.request_prompt_tokens.sum, t.request_generation_tokens.sum) == (14, 4)
    assert (t.request_max_tokens.sum, t.request_max_tokens.count, t.request_choices.sum) == (7, 1, 3)
    assert (t.finished["length"], t.finished["stop"]) == (1, 1)
    assert t.busy_ms == pytest.approx(54.0)


def test_gauges_are_frozen_between_steps() -> None:
    e = engine()
    e.add(Sequence(8, 2), 0.0)
    assert (e.telemetry.gauges.running, e.telemetry.gauges.waiting) == (0, 0)
    end = e.plan(0.0)
    assert end is not None
    assert e.telemetry.gauges.running == 0
    e.settle(end)
    assert (e.telemetry.gauges.running, e.telemetry.gauges.kv_usage) == (1, 2 / 1000)
    drain(e, end)
    assert (e.telemetry.gauges.running, e.telemetry.gauges.kv_usage) == (0, 0.0)
