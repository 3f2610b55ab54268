"""Tallies are written to the page as the library's own metrics would have been."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from poolpilot_picker.instruments.tallies import Gauges, Spreads, Tallies

BOUNDS = (0.5, 1, 2, 1_048_576.0)
LABELS = st.sampled_from(["a", "b", 'quoted "c"\n', ""])
VALUES = st.sampled_from([0, 0.5, 0.50001, 1, 2, 3, 2.0**20, 1e9]) | st.floats(0, 1e7)


@given(st.lists(st.tuples(LABELS, LABELS, VALUES)))
def test_pages_are_equal(events: list[tuple[str, str, float]]) -> None:
    disable_created_metrics()
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tallies, spreads = (
        Tallies("x_things", "Things", ("one", "two"), ours),
        Spreads("x_sizes", "Sizes", ("one", "two"), ours, BOUNDS),
    )
    gauges, single = Gauges("x_now", "Now", ("one", "two"), ours), Spreads("x_all", "All", (), ours, BOUNDS).labels()
    counter = Counter("x_things", "Things", ("one", "two"), registry=theirs)
    histogram = Histogram("x_sizes", "Sizes", ("one", "two"), registry=theirs, buckets=BOUNDS)
    gauge = Gauge("x_now", "Now", ("one", "two"), registry=theirs)
    alone = Histogram("x_all", "All", registry=theirs, buckets=BOUNDS)
    for one, two, value in events:
        tallies.labels(one, two).inc()
        counter.labels(one, two).inc()
        spreads.labels(one, two).observe(value)
        histogram.labels(one, two).observe(value)
        gauges.labels(one, two).value -= 3
        gauge.labels(one, two).dec(3)
        single.observe(value)
        alone.observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_name_is_given_once() -> None:
    registry = CollectorRegistry()
    Tallies("x_things", "Things", (), registry)
    with pytest.raises(ValueError, match="x_things"):
        Gauges("x_things", "Again", (), registry)


def test_a_child_has_the_labels_of_its_family() -> None:
    family = Tallies("x_things", "Things", ("one", "two"), CollectorRegistry())
    assert family.labels("a", "b") is family.labels("a", "b")
    with pytest.raises(ValueError, match="x_things has the labels one, two, got"):
        family.labels("a")
