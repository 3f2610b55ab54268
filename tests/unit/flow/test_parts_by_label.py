"""A pool in parts, by a label: filters that go by labels are asked before anybody asks who is well and has room."""

from __future__ import annotations

import msgspec
import pytest

from exchange_desk import spec_of
from flow_stage import Stage, addresses, slot, waits
from poolpilot_picker.config.load import load
from poolpilot_picker.errors import TooManyRequests
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.routing.registry import build_profile, default_registry

RANGE = "llm-d.ai/context-length-range"
FILTERED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - type: predicted-finish-picker
  - {type: context-length-aware, parameters: {enableFiltering: true}}
  - type: decode-filter
schedulingProfiles:
  - name: default
    plugins: [{pluginRef: FILTER}, {pluginRef: predicted-finish-picker}]
"""


def labelled(labels, chosen="context-length-aware"):
    stage = Stage((), room=RoomSettings())
    stage.pool.policy = build_profile(load(FILTERED.replace("FILTER", chosen), default_registry()))
    specs = zip(addresses(len(labels)), labels, strict=True)
    stage.pool.apply_endpoints(msgspec.structs.replace(spec_of(address), labels=each) for address, each in specs)
    for _ in range(50):
        stage.finish(stage.go(tokens=100), after=20.0)
    return stage


def test_a_prompt_of_the_other_part_passes_a_long_one_of_its_tenant():
    stage = labelled([{RANGE: "0-4096"}, {RANGE: "0-4096"}, {RANGE: "4097-131072"}])
    stage.go(tokens=100_000)
    stage.go(tokens=30_000)
    assert waits(stage, stage.go(tokens=3_000)) < 100.0, "two endpoints idle"


def test_long_pods_with_the_larger_caches_are_all_for_long_prompts():
    stage = labelled([{RANGE: "0-4096"}] * 2 + [{RANGE: "4097-131072"}] * 2)
    stage.pool.table.kv_tokens[:2] = 50_000.0
    assert {slot(stage.go(tokens=60_000)) for _ in range(2)} == {2, 3}


@pytest.mark.parametrize(
    ("chosen", "other"),
    [("context-length-aware", {RANGE: "100000-200000"}), ("decode-filter", {"llm-d.ai/role": "prefill"})],
)
def test_a_pod_for_something_else_changes_nothing_for_the_rest(chosen, other):
    stage = labelled([{}] * 4 + [other], chosen)
    taken = [slot(stage.go(tokens=60_000)) for _ in range(4)]
    assert taken.count(None) == 1


def test_the_only_pod_for_long_prompts_is_not_ejected():
    stage = labelled([{RANGE: "0-4096"}, {RANGE: "0-4096"}, {RANGE: "4097-131072"}])
    for _ in range(6):
        client = stage.go(tokens=10_000)  # 429 after the fifth
        stage.now += 100.0
        stage.pool.finish(client.placement, Outcome.FAILED, stage.now)


def test_a_prompt_for_nobody_is_refused_at_once():
    stage = labelled([{RANGE: "0-4096"}, {RANGE: "4097-90000"}])
    for _ in range(13):
        stage.go(tokens=80_000)
    with pytest.raises(TooManyRequests, match="no endpoints available"):
        stage.go(tokens=150_000)
