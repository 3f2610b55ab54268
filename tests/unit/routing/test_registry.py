"""The plugin types that come with the picker, and building a profile of them."""

from __future__ import annotations

import msgspec
import pytest

from poolpilot_picker.config.load import load
from poolpilot_picker.config.registry import ROUTING_KINDS, NoParameters, PluginKind, PluginType, Registry, Standing
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.routing.registry import build_profile, default_registry

HEAD = "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\n"

# Names that a drop-in replacement of llm-d's and GIE's pickers must know.
UPSTREAM = [
    "prefix-cache-scorer",
    "max-score-picker",
    "random-picker",
    "weighted-random-picker",
    "single-profile-handler",
    "kv-cache-utilization-scorer",
    "queue-scorer",
    "running-requests-size-scorer",
    "lora-affinity-scorer",
    "token-load-scorer",
    "global-strict-fairness-policy",
    "round-robin-fairness-policy",
    "fcfs-ordering-policy",
    "edf-ordering-policy",
    "slo-deadline-ordering-policy",
    "static-usage-limit-policy",
    "approx-prefix-cache-producer",
    "predicted-latency-producer",
    "latency-slo-admitter",
    "prefix-cache-affinity-filter",
    "slo-headroom-tier-filter",
    "latency-scorer",
    "inflight-load-producer",
    "header-based-testing-filter",
    "destination-endpoint-served-verifier",
    "metrics-data-source",
    "core-metrics-extractor",
    "k8s-notification-source",
    "endpoint-notification-source",
    "request-attribute-reporter",
    "openai-parser",
    "vllmgrpc-parser",
    "passthrough-parser",
    "concurrency-detector",
    "utilization-detector",
    "by-label",
    "by-label-selector",
    "active-request-filter",
    "pd-profile-handler",
    "disagg-headers-handler",
    "prefill-header-handler",
    "data-parallel-profile-handler",
    "precise-prefix-cache-scorer",
    "tokenizer",
    "load-aware-scorer",
    "active-request-scorer",
    "no-hit-lru-scorer",
    "session-affinity-scorer",
    "session-affinity-filter",
    "context-length-aware",
    "decode-filter",
    "prefill-filter",
    "encode-filter",
    "label-selector-filter",
    "utilization-filter",
]


@pytest.mark.parametrize("name", UPSTREAM)
def test_every_name_of_upstream_is_known(name):
    assert default_registry().find(name) is not None


def test_every_type_that_runs_can_be_built_from_its_defaults():
    for plugin_type in default_registry():
        if plugin_type.kinds & ROUTING_KINDS and plugin_type.standing is Standing.RUNS and plugin_type.build:
            try:
                parameters = plugin_type.parameters()
            except (TypeError, ValueError):
                assert plugin_type.name.startswith("session-affinity"), plugin_type.name
                continue
            assert plugin_type.build(parameters)


def test_what_is_not_run_says_why():
    for plugin_type in default_registry():
        assert bool(plugin_type.note) is (plugin_type.standing is not Standing.RUNS), plugin_type.name


class Parameters(msgspec.Struct):
    """Of the plugin below."""

    factor: float
    fail: bool = False


class Both:
    """A scorer and observer of a user's package."""

    def __init__(self, parameters):
        if parameters.fail:
            raise OSError("no such table")
        self.factor = parameters.factor

    def score(self, view):
        return view.table.requests * self.factor

    def placed(self, view, slot):
        pass


def with_user_plugin(build=Both, kinds=frozenset({PluginKind.SCORER})):
    """The registry with one more type."""
    registry = default_registry()
    registry.add(PluginType(name="mine", kinds=kinds, parameters=Parameters, summary="mine", build=build), "my-package")
    return registry


def test_a_users_plugin_stands_beside_ours():
    text = HEAD + "plugins: [{type: queue-scorer}, {type: mine, parameters: {factor: 0.5}}]"
    profile = build_profile(load(text, with_user_plugin()))
    assert [(name, weight) for name, _, weight in profile.scorers] == [("queue-scorer", 1.0), ("mine", 1.0)]
    assert [name for name, _ in profile.observers] == ["mine"]


def test_an_instance_is_built_once_however_often_it_is_used():
    text = HEAD + "plugins: [{type: context-length-aware}]"
    profile = build_profile(load(text, default_registry()))
    assert profile.filters[0][1] is profile.scorers[0][1]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("{}", r"f:3:36: plugins\[0\].parameters: factor is missing"),
        ("", r"f:3:24: plugins\[0\].parameters: factor is missing"),
        ("{factor: 1, fail: true}", r"f: plugin mine \(mine\) cannot be built: OSError: no such table"),
    ],
)
def test_a_users_plugin_with_bad_parameters(parameters, message):
    with pytest.raises(ConfigurationError, match=message):
        build_profile(load(f"{HEAD}plugins: [{{type: mine, parameters: {parameters}}}]", with_user_plugin(), "f"))


def test_a_plugin_without_the_method_of_its_kind():
    registry = with_user_plugin(kinds=frozenset({PluginKind.FILTER}))
    with pytest.raises(ConfigurationError, match=r"mine \(mine\) is a filter without a method filter\(\)"):
        build_profile(load(HEAD + "plugins: [{type: mine, parameters: {factor: 1}}]", registry))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "queue-scorer"}, "plugin type 'queue-scorer' of me is already registered"),
        ({"name": "by-label"}, "plugin type 'by-label' of me is already registered"),
        ({"aliases": ("random-picker",)}, "plugin type 'random-picker' of me is already registered"),
        ({"kinds": frozenset()}, "plugin type 'new' of me has no kind"),
        ({"build": None}, "plugin type 'new' of me has no `build`"),
        ({"parameters": dict}, "plugin type 'new' of me: parameters must be a msgspec.Struct"),
        ({"parameters": None}, "plugin type 'new' of me: parameters must be a msgspec.Struct"),
    ],
)
def test_types_that_cannot_be_registered(changes, message):
    fields = {
        "name": "new",
        "kinds": frozenset({PluginKind.SCORER}),
        "parameters": NoParameters,
        "summary": "",
        "build": Both,
    }
    with pytest.raises(ConfigurationError, match=message):
        default_registry().add(PluginType(**(fields | changes)), "me")


def test_a_refused_type_takes_no_name():
    registry = Registry()
    with pytest.raises(ConfigurationError):
        registry.add(PluginType(name="x", kinds=frozenset(), parameters=NoParameters, summary=""))
    assert registry.find("x") is None
    assert list(registry) == []
