"""EndpointPickerConfig files: what loads, by which rules, and every way to be wrong, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from poolpilot_picker.config.load import LoadedConfig, load
from poolpilot_picker.config.policies import POLICIES, policy_config
from poolpilot_picker.config.registry import PluginKind
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.routing.registry import build_profile, default_registry

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
"""Two lines: what follows begins at line 3."""


def read_cases(name: str) -> list[dict[str, str]]:
    """Files and what is said of them."""
    return yaml.safe_load((Path(__file__).parents[2] / f"data/config/{name}.yaml").read_text())


def loaded(text: str, head: str = HEAD) -> LoadedConfig:
    """Loads, and builds the profile."""
    config = load(head + text, default_registry(), "f.yaml")
    build_profile(config)
    return config


def problems(text: str, head: str = HEAD) -> list[str]:
    """What is wrong with a file."""
    with pytest.raises(ConfigurationError) as caught:
        load(head + text, default_registry(), "f.yaml")
    return list(caught.value.problems)


def stands(config: LoadedConfig) -> list[tuple[str, float]]:
    """Names and weights of the profile."""
    return [(entry.plugin.name, entry.weight) for entry in config.profile.entries]


# ---- what loads


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        ("poolpilot.dev/v1alpha1", False),
        ("llm-d.ai/v1alpha1", False),
        ("inference.networking.x-k8s.io/v1alpha1", True),
    ],
)
def test_api_versions(version, warned):
    config = loaded("", head=f"apiVersion: {version}\nkind: EndpointPickerConfig\n")
    assert bool(config.warnings) is warned
    if warned:
        old, new = "inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1"
        assert config.warnings == (f"f.yaml:1:13: apiVersion: {old} is an old name; please write {new}",)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_load_without_a_word(name):
    assert loaded(policy_config(name), head="").warnings == ()


def test_a_file_without_plugins_runs_the_default_policy():
    assert stands(loaded("")) == [("predicted-finish-picker", 1.0)]


def test_scorers_without_a_picker_get_max_score():
    assert stands(loaded("plugins: [{type: queue-scorer}]")) == [("queue-scorer", 1.0), ("max-score-picker", 1.0)]


def test_filters_alone_get_the_default_policy():
    assert stands(loaded("plugins: [{type: decode-filter}]")) == [
        ("decode-filter", 1.0),
        ("predicted-finish-picker", 1.0),
    ]


def test_a_configured_picker_that_no_profile_names_is_used():
    config = loaded(
        """
plugins:
  - type: queue-scorer
  - type: random-picker
schedulingProfiles:
  - name: p
    plugins: [{pluginRef: queue-scorer}]
"""
    )
    assert stands(config) == [("queue-scorer", 1.0), ("random-picker", 1.0)]


def test_without_profiles_one_default_profile_holds_all_filters_scorers_and_the_picker():
    config = loaded(
        """
plugins:
  - type: metrics-data-source
  - type: decode-filter
  - type: queue-scorer
    name: q
  - type: utilization-detector
  - type: random-picker
  - type: single-profile-handler
"""
    )
    assert config.profile.name == "default"
    assert stands(config) == [("decode-filter", 1.0), ("q", 1.0), ("random-picker", 1.0)]


def test_the_built_in_configuration_of_llm_d_loads():
    config = loaded(
        """
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
- type: single-profile-handler
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
  - pluginRef: max-score-picker
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""
    )
    assert config.warnings == ()
    assert config.profile.describe() == (
        "profile default: queue-scorer × 2, kv-cache-utilization-scorer × 2, prefix-cache-scorer × 3, "
        "picker max-score-picker"
    )


def test_the_sticky_configuration_of_llm_d_loads_with_its_parameters():
    config = loaded(
        """
plugins:
- type: approx-prefix-cache-producer
  parameters: {autoTune: false, blockSizeTokens: 64}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.99, maxTTFTPenaltyMs: 14000, peakPrefillThroughput: 20480}
- type: token-load-scorer
- type: weighted-random-picker
  parameters: {maxNumOfEndpoints: 3}
"""
    )
    affinity, tokens, picker = config.profile.entries
    assert affinity.plugin.parameters.max_ttft_penalty_ms == 14_000
    assert tokens.plugin.parameters.queue_threshold_tokens == 4_194_304
    assert picker.plugin.parameters.max_num_of_endpoints == 3
    assert [warning.split(": ")[0] for warning in config.warnings] == ["f.yaml:6:16", "f.yaml:6:33"]


def test_a_plugin_that_is_filter_and_scorer_stands_as_both():
    config = loaded("plugins: [{type: context-length-aware, parameters: {enableFiltering: true}}]")
    assert [len(config.profile.of_kind(kind)) for kind in (PluginKind.FILTER, PluginKind.SCORER)] == [1, 1]


def test_numbers_as_yaml_1_2_and_json_write_them():
    text = """
{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
 "plugins": [{"type": "token-load-scorer", "parameters": {"queueThresholdTokens": 1e6}}]}
"""
    assert loaded(text, head="").profile.entries[0].plugin.parameters.queue_threshold_tokens == 1_000_000


def test_merge_keys_and_aliases():
    config = loaded(
        """
plugins:
  - &first {type: max-score-picker, name: a, parameters: &three {maxNumOfEndpoints: 3}}
  - {<<: *first, name: b, parameters: {<<: *three, maxNumOfEndpoints: 2}}
schedulingProfiles: [{name: p, plugins: [{pluginRef: b}]}]
"""
    )
    assert [plugin.parameters.max_num_of_endpoints for plugin in config.plugins] == [3, 2]


def test_null_means_left_out():
    config = loaded("plugins:\nfeatureGates: ~\npoolpilot:\n  receipts:\n  telemetry: {timeoutMs: null}")
    assert config.settings.receipts.keep == 1000


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ("[{type: random-picker}]", 4),
        ("[{type: random-picker, parameters: {maxNumOfEndpoints: 2}}]", 2),
        ("[{type: queue-scorer}]", 4),
        ("[]", 4),
    ],
)
def test_fallbacks_reach_a_picker_that_does_not_say_it_itself(plugins, expected):
    config = loaded(f"plugins: {plugins}\npoolpilot: {{fallbacks: {{maxNumOfEndpoints: 4}}}}")
    assert config.profile.entries[-1].plugin.parameters.max_num_of_endpoints == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plugins: []", 3),
        ("plugins: [{type: random-picker, parameters: {maxNumOfEndpoints: 2}}]", 2),
        ("plugins: []\npoolpilot: {fallbacks: {maxNumOfEndpoints: 1}}", 1),
    ],
)
def test_the_caller_says_how_many_endpoints_are_named_where_the_file_does_not(text, expected):
    config = load(HEAD + text, default_registry(), "f.yaml", endpoints_named=3)
    assert config.profile.entries[-1].plugin.parameters.max_num_of_endpoints == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_one_endpoint_is_named_by_default(policy):
    config = load(policy_config(policy), default_registry())
    assert config.profile.entries[-1].plugin.parameters.max_num_of_endpoints == 1


# ---- warnings


@pytest.mark.parametrize("case", read_cases("warnings"), ids=lambda case: case["says"][:60])
def test_what_is_harmless_warns(case):
    assert case["says"] in loaded(case["file"]).warnings


@pytest.mark.parametrize(
    "gate", ["flowControl=false", "haPopulateNonLeaderDatastore", "dataLayer", "enableLegacyMetrics=false"]
)
def test_gates_that_change_nothing_are_quiet(gate):
    assert loaded(f'featureGates: ["{gate}"]').warnings == ()


# ---- problems


@pytest.mark.parametrize("case", read_cases("problems"), ids=lambda case: case["says"][:60])
def test_problems_name_place_value_and_what_is_allowed(case):
    found = problems(case["file"])
    assert any(each.startswith(case["says"]) for each in found), found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1:1: the file is empty; at least apiVersion and kind are needed"),
        ("# nothing\n", "1:1: the file is empty; at least apiVersion and kind are needed"),
        ("[]", "1:1: expected a mapping with apiVersion, kind, featureGates, plugins, …, found a list"),
        ("kind: EndpointPickerConfig", "1:1: apiVersion is missing"),
        ("apiVersion: llm-d.ai/v1alpha1", "1:1: kind is missing"),
        (
            "apiVersion: llm-d.ai/v1alpha1\nkind: InferencePool",
            '2:7: kind: "InferencePool" is not what is read here. Allowed: EndpointPickerConfig',
        ),
        (
            "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig",
            '1:13: apiVersion: "llm-d.ai/v1" is unknown. Allowed: llm-d.ai/v1alpha1, ',
        ),
        ("a: \x00", "1:1: not valid YAML: unacceptable character #x0000"),
    ],
)
def test_problems_of_the_outline(text, says):
    found = problems(text, head="")
    assert any(each.startswith(f"f.yaml:{says}") for each in found), found


def test_all_problems_of_a_file_at_once_in_the_order_of_the_file():
    found = problems(
        """
plugins:
  - type: queue-scorr
  - type: load-aware-scorer
    parameters: {threshold: x, tresh: 1}
  - type: random-picker
    nam: y
schedulingProfiles:
  - name: p
    plugins:
      - pluginRef: queue-scorr
      - pluginRef: load-aware-scorer
        weight: -1
      - pluginRef: nowhere
poolpilot:
  receipts: {keep: -1}
featureGates: [nope]
"""
    )
    assert [each.split(": ")[1] for each in found] == [
        "plugins[0].type",
        "plugins[1].parameters.threshold",
        "plugins[1].parameters.tresh",
        "plugins[2].nam",
        "schedulingProfiles[0].plugins[1].weight",
        "schedulingProfiles[0].plugins[2].pluginRef",
        "poolpilot.receipts.keep",
        "featureGates[0]",
    ]


@pytest.mark.parametrize("text", ["flowControl: {maxBytes: &a [*a]}", "flowControl: {maxBytes: &a {b: *a}}"])
def test_an_endless_document_is_refused(text):
    [found] = problems(text)
    assert found.endswith("the document is too large or nested too deeply; look at its YAML aliases")


def test_a_document_that_aliases_make_huge_is_refused():
    levels = "".join(f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    [found] = problems(f"flowControl:\n  maxBytes:\n    a0: &a0 [x]\n{levels.replace('  a', '    a')}")
    assert found.endswith("the document is too large or nested too deeply; look at its YAML aliases")
