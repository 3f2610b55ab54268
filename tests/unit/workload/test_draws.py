"""The distributions: what they promise, and that they are reproducible."""

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_lab.workload.draws import LogNormal, poisson_arrivals, stratified, zipf_weights


def test_lognormal_keeps_its_median_and_its_limits() -> None:
    values = [LogNormal(100, 0.8, 10, 900).draw(rng) for rng in [random.Random(1)] for _ in range(4000)]
    assert 95 < statistics.median(values) < 105
    assert min(values) > 10
    assert 850 < max(values) < 900, "the tail reaches the limit and makes no heap there"


@pytest.mark.parametrize("wrong", [(100, 0.5, 0, 200), (100, 0.5, 150, 200), (100, 0.5, 10, 90), (100, -1, 10, 200)])
def test_lognormal_refuses_what_cannot_be_drawn(wrong: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="LogNormal"):
        LogNormal(*wrong)


def test_zipf_weights() -> None:
    weights = zipf_weights(8, 1.0)
    assert sum(weights) == pytest.approx(1.0)
    assert weights[0] / weights[3] == pytest.approx(4.0)
    assert zipf_weights(0, 1.0) == []


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    times = poisson_arrivals(random.Random(3), 8.0, 4000)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(125.0, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1.0, abs=0.06)
    assert times == sorted(times)
    with pytest.raises(ValueError, match="above 0"):
        poisson_arrivals(random.Random(3), 0.0, 3)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8), st.integers(0, 300), st.integers(0, 2**32))
def test_stratified_gives_each_its_share_within_one(shares: list[float], count: int, seed: int) -> None:
    drawn = stratified(random.Random(seed), shares, count)
    assert len(drawn) == count
    for index, share in enumerate(shares):
        assert abs(drawn.count(index) - count * share / sum(shares)) <= 1.0 + 1e-6
