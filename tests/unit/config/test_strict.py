"""The strict reader on any document: a struct, or problems with places; nothing else is raised."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.config.load import load
from poolpilot_picker.config.schema import EndpointPickerConfig
from poolpilot_picker.config.wording import alternatives
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.routing.registry import default_registry

REGISTRY = default_registry()

words = st.sampled_from(
    [
        "plugins",
        "type",
        "name",
        "parameters",
        "queue-scorer",
        "random-picker",
        "pluginRef",
        "weight",
        "poolpilot",
        "receipts",
        "share",
        "dataLayer",
        "sources",
        "schedulingProfiles",
        "apiVersion",
        "kind",
        "EndpointPickerConfig",
        "llm-d.ai/v1alpha1",
        "featureGates",
        "<<",
        "conditions",
        "true",
        "3",
    ]
)
scalars = st.one_of(words, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4))
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(words, st.text(max_size=3)), inner, max_size=5)
    ),
    max_leaves=30,
)
SECTIONS = ["plugins", "schedulingProfiles", "poolpilot", "dataLayer", "flowControl", "featureGates"]
PLACE = re.compile(r"^doc:\d+:\d+: ")


def attempt(text):
    """Loads; every problem must have a place."""
    problems = None
    try:
        load(text, REGISTRY, "doc")
    except ConfigurationError as error:
        problems = error.problems
    assert problems is None or (problems and all(PLACE.match(problem) for problem in problems)), problems


@given(documents)
def test_any_document(document):
    attempt(yaml.safe_dump(document))


@given(
    documents,
    st.sampled_from(["plugins", "schedulingProfiles", "poolpilot", "dataLayer", "flowControl", "featureGates"]),
)
def test_any_section(document, section):
    attempt(yaml.safe_dump({"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", section: document}))


@given(st.text())
def test_any_text(text):
    attempt(text)


@given(st.sampled_from([plugin_type.name for plugin_type in REGISTRY]), documents)
def test_any_parameters(name, parameters):
    plugin = {"type": name, "parameters": parameters}
    attempt(yaml.safe_dump({"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": [plugin]}))


def test_the_closest_match_comes_first_and_long_lists_are_cut():
    names = [f"option-{letter}" for letter in "abcdefghijklmnop"] + ["queue-scorer"]
    said = alternatives("queue-scorrer", names)
    assert said.startswith("Allowed: queue-scorer, option-")
    assert said.endswith(" and 5 more")


@pytest.mark.parametrize("field", EndpointPickerConfig.__struct_fields__)
def test_the_outline_is_that_of_upstream_and_ours(field):
    assert field in {
        "api_version", "kind", "feature_gates", "plugins", "scheduling_profiles", "data_layer", "flow_control",
        "request_handler", "saturation_detector", "parser", "poolpilot",
    }  # fmt: skip
