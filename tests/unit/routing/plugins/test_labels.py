"""Label filters by the rules of Kubernetes, roles, context lengths, and the test header."""

from __future__ import annotations

import pytest

from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.routing.plugins.labels import (
    ContextLength,
    ContextLengthParameters,
    DecodeFilter,
    EncodeFilter,
    LabelExpression,
    LabelSelector,
    LabelSelectorFilter,
    PrefillFilter,
    TestSelectionFilter,
)
from view_builder import make_table, make_view

POOL = [{"gpu": "h100", "zone": "a"}, {"gpu": "a100"}, {"zone": "b"}, {}]


def kept(plugin, labels=POOL, **view):
    """Slots that stay."""
    return plugin.filter(make_view(make_table(len(labels), labels), **view)).nonzero()[0].tolist()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (LabelSelector(), [0, 1, 2, 3]),
        (LabelSelector(match_labels={"gpu": "h100"}), [0]),
        (LabelSelector(match_labels={"gpu": "h100", "zone": "b"}), []),
        (LabelSelector(match_expressions=(LabelExpression("gpu", "In", ("h100", "a100")),)), [0, 1]),
        (LabelSelector(match_expressions=(LabelExpression("gpu", "NotIn", ("h100",)),)), [1, 2, 3]),
        (LabelSelector(match_expressions=(LabelExpression("zone", "Exists"),)), [0, 2]),
        (LabelSelector(match_expressions=(LabelExpression("zone", "DoesNotExist"),)), [1, 3]),
        (LabelSelector(match_labels={"zone": "b"}, match_expressions=(LabelExpression("gpu", "DoesNotExist"),)), [2]),
    ],
)
def test_label_selectors(selector, expected):
    assert kept(LabelSelectorFilter(selector)) == expected


@pytest.mark.parametrize(
    ("operator", "values", "message"),
    [
        ("In", (), "needs values"),
        ("NotIn", (), "needs values"),
        ("Exists", ("a",), "takes no"),
        ("DoesNotExist", ("a",), "no"),
    ],
)
def test_bad_expressions(operator, values, message):
    with pytest.raises(ValueError, match=message):
        LabelExpression("key", operator, values)


ROLES = [
    "decode",
    "prefill",
    "encode",
    "prefill-decode",
    "both",
    "encode-prefill",
    "encode-prefill-decode",
    "other",
    None,
]


@pytest.mark.parametrize(
    ("plugin", "roles"),
    [
        (DecodeFilter, {"decode", "prefill-decode", "both", "encode-prefill-decode", None}),
        (PrefillFilter, {"prefill", "prefill-decode", "both", "encode-prefill", "encode-prefill-decode"}),
        (EncodeFilter, {"encode", "encode-prefill", "encode-prefill-decode"}),
    ],
)
def test_roles(plugin, roles):
    labels = [{} if role is None else {"llm-d.ai/role": role} for role in ROLES]
    assert {ROLES[slot] for slot in kept(plugin(), labels)} == roles


def test_labels_are_read_again_when_endpoints_change():
    table = make_table(2, [{"gpu": "h100"}, {}])
    plugin = LabelSelectorFilter(LabelSelector(match_labels={"gpu": "h100"}))
    assert plugin.filter(make_view(table)).tolist() == [True, False]
    first, second = (endpoint.spec for endpoint in table)
    table.apply(
        [type(first)(host=first.host, port=8000), type(second)(host=second.host, port=8000, labels={"gpu": "h100"})]
    )
    assert plugin.filter(make_view(table)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("header", "expected"),
    [((), []), (("10.0.0.2",), [1]), (("10.0.0.1:8000", " 10.0.0.3 "), [0, 2]), (("10.0.0.1:8001", "10.0.0"), [])],
)
def test_the_test_header_names_who_stays(header, expected):
    assert kept(TestSelectionFilter(), request=InferenceRequest(request_id="r", test_selection=header)) == expected


def context(tokens, parameters=None):
    """Filter and score for a prompt of this length over the ranges below."""
    ranges = ["0-2000", "2001-12001", "500-500", "x", "9-3", None]
    labels = [{} if text is None else {"llm-d.ai/context-length-range": text} for text in ranges]
    plugin = ContextLength(parameters)
    view = make_view(make_table(6, labels), request=InferenceRequest(request_id="r", prompt_tokens=tokens))
    return plugin.filter(view).tolist(), plugin.score(view).tolist()


def test_context_lengths():
    _, score = context(500)
    assert score == pytest.approx(
        [0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 1500 / 2000), 0.3 / (1 + 1501 / 1000), 1.0, 0.0, 0.0, 0.5]
    )
    _, score = context(12_500)
    assert score == pytest.approx([0.3 / (1 + 10.5), 0.3 / (1 + 0.499), 0.3 / 13, 0.0, 0.0, 0.5])


def test_context_lengths_filter_only_when_asked():
    assert context(700)[0] == [True] * 6
    assert context(700, ContextLengthParameters(enable_filtering=True))[0] == [True, False, False, False, False, True]


def test_context_lengths_by_another_label():
    plugin = ContextLength(ContextLengthParameters(label="range"))
    assert plugin.score(make_view(make_table(2, [{"range": "0-0"}, {}]))).tolist() == [1.0, 0.5]
