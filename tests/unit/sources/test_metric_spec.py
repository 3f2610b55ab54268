"""`name{label=value,…}`: the vectors of core-metrics-extractor, and what a message says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.exposition import Series
from poolpilot_picker.sources.metric_spec import MetricSpec, parse_metric_spec

VALID = {
    "m": MetricSpec("m"),
    "m{a=b}": MetricSpec("m", (("a", "b"),)),
    'm{a="b"}': MetricSpec("m", (("a", "b"),)),
    "m{a=b,c=d}": MetricSpec("m", (("a", "b"), ("c", "d"))),
    " m { a = b , c = d } ": MetricSpec("m", (("a", "b"), ("c", "d"))),
    'vllm:x{a="b,c}\\" d"}': MetricSpec("vllm:x", (("a", 'b,c}" d'),)),
    'm{a=""}': MetricSpec("m", (("a", ""),)),
}
INVALID = [
    "",
    "m{a=b",
    "ma=b}",
    "m{a}",
    "m{=b}",
    "m{a=}",
    "m{a=b}x",
    "{a=b}",
    "m{}",
    "m{a=b,}",
    "m{a=b,a=c}",
    "m n",
    "1m",
    "m{a-b=c}",
]


@pytest.mark.parametrize("text", VALID)
def test_valid(text):
    assert parse_metric_spec(text) == VALID[text]


@pytest.mark.parametrize("text", INVALID)
def test_invalid(text):
    with pytest.raises(ConfigurationError) as error:
        parse_metric_spec(text, where="kvUsageSpec")
    assert str(error.value).startswith(f"kvUsageSpec: {text!r} ")


def test_matching_wants_all_labels_and_ignores_others():
    spec = parse_metric_spec("m{a=b,c=d}")
    series = [Series(b'a="b",c="d",e="f"', 1.0), Series(b'a="b"', 2.0), Series(b"", 3.0), Series(b'a="b",c="d', 4.0)]
    assert spec.matching(series) == series[:1]
    assert MetricSpec("m").matching(series) == series


@given(st.text(max_size=30))
def test_any_text_is_a_spec_or_a_clear_error(text):
    problem = None
    try:
        parse_metric_spec(text)
    except ConfigurationError as error:
        problem = str(error)
    assert problem is None or repr(text) in problem
