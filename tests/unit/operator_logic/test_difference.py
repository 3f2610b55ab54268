"""Whether a live object is as wanted: defaults and the writing of quantities are no difference, anything else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_operator.difference import covers, differences, digest, path_text

NAMES = st.text("xyz", min_size=1, max_size=2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"a": 1, "default": "x"}, {"a": 1}),
        ({"ports": [{"port": 1, "protocol": "TCP"}]}, {"ports": [{"port": 1}]}),
        ({}, {"a": ""}),
        ({}, {"a": 0}),
        ({}, {"a": []}),
        ({"a": None}, {"a": {}}),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1000m", "memory": "1024Mi"}}),
        ({"requests": {"cpu": "500m"}}, {"requests": {"cpu": 0.5}}),
        ({"requests": {"memory": "1e3"}}, {"requests": {"memory": "1k"}}),
    ],
)
def test_no_difference(live: Any, wanted: Any) -> None:
    assert covers(live, wanted)


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"a": 1}, {"a": 2}),
        ({}, {"a": 1}),
        ({"a": [1]}, {"a": []}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": [1]}, {"a": [1, 2]}),
        ({"a": [2, 1]}, {"a": [1, 2]}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1"}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1001m"}}),
        ({"limits": {"memory": "1M"}}, {"limits": {"memory": "1Mi"}}),
        (None, {"a": 1}),
    ],
)
def test_a_difference(live: Any, wanted: Any) -> None:
    assert not covers(live, wanted)


def test_every_difference_is_named() -> None:
    wanted = {
        "metadata": {"labels": {"a.b/c": "x"}},
        "spec": {"replicas": 2, "ports": [{"port": 1}, {"port": 2}], "env": [1], "same": {"a": 1}},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}},
    }
    live = {
        "metadata": {"labels": {}},
        "spec": {"replicas": 1, "ports": [{"port": 1}, {"port": 3}], "env": [1, 2], "same": {"a": 1, "b": 2}},
        "resources": {"limits": {"cpu": "2", "memory": "1024Mi"}, "requests": {"cpu": "1", "memory": "1"}},
    }
    assert [path_text(one) for one in differences(live, wanted)] == [
        "metadata.labels['a.b/c']",
        "spec.replicas",
        "spec.ports[1].port",
        "spec.env",
        "resources.limits.cpu",
        "resources.requests",
    ]


@given(JSON)
def test_a_value_covers_itself(value: Any) -> None:
    assert covers(value, value)


@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_a_digest_does_not_depend_on_the_order(value: dict[str, Any]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))
