"""The section flowControl: what a file says, what it means to flow control, and that it can be written out again."""

from __future__ import annotations

import math

import pytest

from poolpilot_picker.config.durations import milliseconds
from poolpilot_picker.config.flow_plugins import HoldbackParameters, ReflectiveParameters, StaticLimitParameters
from poolpilot_picker.config.flow_section import BandPlan, FlowPlan
from poolpilot_picker.config.load import LoadedConfig, load
from poolpilot_picker.config.render import render_config
from poolpilot_picker.config_use import exchange_settings, flow_settings
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.flow.admission import LatencySloAdmitter, ProbabilisticAdmitter
from poolpilot_picker.flow.saturation import ConcurrencyDetector, UtilizationDetector
from poolpilot_picker.requests import PoolRules
from poolpilot_picker.routing.registry import default_registry

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\n"
WHOLE = """
plugins:
- {type: queue-scorer}
- {type: round-robin-fairness-policy}
- {type: edf-ordering-policy, name: soonest}
- {type: program-aware-fairness, parameters: {lasHalfLifeSeconds: 30}}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.6}}
- {type: concurrency-detector, parameters: {maxConcurrency: 32}}
- {type: probabilistic-admitter, parameters: {k: 100}}
- {type: latency-slo-admitter}
flowControl:
  maxRequests: 5k
  maxBytes: 2Gi
  defaultRequestTTL: 1m30s
  noEndpointRequestTTL: 10m
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}
  defaultNegativePriorityBand: {maxRequests: 10, fairnessPolicyRef: program-aware-fairness}
  priorityBands:
  - {priority: 10, maxRequests: 100, maxBytes: 500M, orderingPolicyRef: soonest}
  usageLimitPolicyPluginRef: priority-holdback-policy
  saturationDetector: {pluginRef: concurrency-detector}
poolpilot:
  flowControl:
    gatewayTimeoutMs: 100000
    ttlMs: {"10": 5000, "-1": 250}
    priorities: {batch: -1}
    endpointRequests: 64
    sheddable: drop
    sheddableShare: 0.3
    defaultTenant: {tokens: 1000, activeSequences: 3, weight: 2}
    tenants: {gold: {weight: 6}}
"""


def loaded(text: str, head: str = HEAD) -> LoadedConfig:
    config = load(head + text, default_registry(), "f.yaml")
    assert config.warnings == ()
    return config


def test_the_gate_alone_gives_the_defaults():
    config = loaded("")
    assert config.flow == FlowPlan()
    settings = flow_settings(config, lambda: 0.5)
    assert settings.queue.most_ttl_ms == 480_000.0
    assert settings.queue.of(0).fairness == "virtual-token-counter"
    assert (settings.queue.of(0).max_requests, settings.queue.of(0).max_bytes) == (5_000, 1_000_000_000)
    assert settings.detector is None and settings.ceiling == StaticLimitParameters()
    assert settings.admitters == () and not settings.drop_sheddable


@pytest.mark.parametrize(
    "gates", ["", "featureGates: [flowControl=false]\n", "featureGates: [flowControl, flowControl=false]\n"]
)
def test_without_the_gate_there_is_none(gates: str):
    head = f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{gates}"
    assert loaded("", head).flow is None


def test_everything_is_read():
    config = loaded(WHOLE)
    plan = config.flow
    assert plan is not None
    assert (plan.max_requests, plan.max_bytes) == (5_000, 2 * 2**30)
    assert (plan.ttl_ms, plan.no_endpoint_ttl_ms) == (90_000.0, 600_000.0)
    assert plan.default_band == BandPlan(fairness="round-robin")
    assert plan.negative_band == BandPlan(max_requests=10, fairness="program-aware")
    assert plan.bands == {10: BandPlan(max_requests=100, max_bytes=500_000_000, ordering="edf")}
    assert plan.program_aware.las_half_life_seconds == 30.0
    assert plan.ceiling == HoldbackParameters(min_ceiling=0.6)


def test_everything_reaches_flow_control():
    config = loaded(WHOLE)
    settings = flow_settings(config, lambda: 0.5)
    queue = settings.queue
    assert queue.most_ttl_ms == 80_000.0 and settings.gateway_ms == 100_000.0
    assert queue.of(10).ttl_ms == 5_000.0 and queue.of(10).ordering == "edf"
    assert queue.of(-1).ttl_ms == 250.0 and queue.of(-1).fairness == "program-aware" and queue.of(-1).max_requests == 10
    assert queue.of(-2).ttl_ms is None and queue.of(3).fairness == "round-robin"
    assert isinstance(settings.detector, ConcurrencyDetector)
    kinds = [type(one) for one in settings.admitters]
    assert kinds == [ProbabilisticAdmitter, LatencySloAdmitter]
    assert settings.drop_sheddable and settings.room.max_requests == 64
    assert settings.room.sheddable_share == 0.3
    assert settings.default_tenant.tokens == 1_000.0 and settings.tenants["gold"].tokens is None
    assert queue.weights == {"gold": 3.0}


@pytest.mark.parametrize(
    ("share", "found"), [("0", "the number 0"), ("1.01", "the number 1.01"), ("x", 'the text "x"')]
)
def test_a_sheddable_share_that_is_none_is_refused_by_name_and_value(share: str, found: str):
    with pytest.raises(ConfigurationError) as caught:
        load(HEAD + f"poolpilot: {{flowControl: {{sheddableShare: {share}}}}}", default_registry(), "f.yaml")
    [problem] = caught.value.problems
    assert problem.endswith(f"poolpilot.flowControl.sheddableShare: expected a number > 0 and ≤ 1, found {found}")


def test_pickers_that_do_not_share_a_queue_divide_its_limits():
    settings = flow_settings(loaded(WHOLE), lambda: 0.5, 4)
    assert settings.queue.max_requests == 1_250 and settings.queue.of(10).max_requests == 25
    assert settings.default_tenant.tokens == 250.0 and settings.default_tenant.active_sequences == 1


def test_objectives_of_the_pool_win_over_priorities_of_the_file():
    rules = PoolRules(priorities={"batch": 7, "other": 1})
    config = loaded("poolpilot: {flowControl: {priorities: {batch: -1, cron: -2}}}")
    made = exchange_settings(config, rules).rules
    assert [made.priority(name) for name in ("batch", "other", "cron", "none")] == [7, 1, -2, 0]


def test_the_old_place_of_the_detector_counts_where_the_new_one_says_nothing():
    plugins = "plugins: [{type: concurrency-detector}, {type: utilization-detector}]\n"
    old = loaded(plugins + "saturationDetector: {pluginRef: utilization-detector}")
    assert isinstance(flow_settings(old, lambda: 0.5).detector, UtilizationDetector)
    both = loaded(
        plugins
        + "saturationDetector: {pluginRef: utilization-detector}\n"
        + "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}"
    )
    assert isinstance(flow_settings(both, lambda: 0.5).detector, ConcurrencyDetector)


def test_plugins_that_llm_d_adds_by_itself_need_no_entry():
    config = loaded(
        "flowControl:\n  saturationDetector: {pluginRef: utilization-detector}\n"
        "  usageLimitPolicyPluginRef: static-usage-limit-policy\n"
        "  defaultPriorityBand:\n    fairnessPolicyRef: global-strict-fairness-policy\n"
        "    orderingPolicyRef: fcfs-ordering-policy\n"
    )
    assert config.flow is not None and config.flow.default_band.fairness == "global-strict"
    assert config.flow.detector is not None


def test_a_ttl_of_0_is_none_and_the_gateway_still_bounds_it():
    config = loaded("flowControl: {defaultRequestTTL: 0s}")
    assert config.flow is not None and config.flow.ttl_ms == math.inf
    assert flow_settings(config, lambda: 0.5).queue.most_ttl_ms == 480_000.0


def test_a_ceiling_without_parameters():
    config = loaded(
        "plugins: [{type: soft-reflective-ceiling-policy}]\n"
        "flowControl: {usageLimitPolicyPluginRef: soft-reflective-ceiling-policy}"
    )
    assert config.flow is not None and config.flow.ceiling == ReflectiveParameters()


@pytest.mark.parametrize("text", ["", WHOLE])
def test_what_is_printed_loads_to_the_same(text: str):
    config = loaded(text)
    again = load(render_config(config), default_registry(), "f.yaml")
    assert (again.flow, again.settings) == (config.flow, config.settings)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("60s", 60_000.0),
        ("1m30s", 90_000.0),
        ("1.5h", 5_400_000.0),
        ("250ms", 250.0),
        (".5s", 500.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("2µs", 0.002),
        ("", None),
        ("60", None),
        ("s", None),
        ("-5s", None),
        ("5 s", None),
        ("5s!", None),
        ("1" * 80 + "s", None),
    ],
)
def test_durations_are_gos(text: str, found: float | None):
    assert milliseconds(text) == found
