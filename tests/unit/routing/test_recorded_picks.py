"""Recorded integration cases of the reference picker: which endpoint its four scorers choose."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from poolpilot_picker.config.load import load
from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.routing.registry import build_profile, default_registry
from view_builder import make_adapters, make_table, make_view

pytestmark = pytest.mark.usefixtures("both_cores")

VECTORS = yaml.safe_load((Path(__file__).parents[2] / "data/vectors/epp-hermetic.yaml").read_text())
PICKS = [case for case in VECTORS["cases"] if len(case.get("pods", ())) > 1 and "endpoint" in case["expect"]]
GRPC_PICKS = [case for case in VECTORS["grpc_cases"] if "endpoint" in case["expect"]]


def pick(case, scorers):
    """The address chosen for a case, in the vectors' numbering of pods."""
    text = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
    text += "".join(f"- type: {name}\n" for name in scorers)
    text += "schedulingProfiles:\n- name: default\n  plugins:\n"
    text += "".join(f"  - pluginRef: {name}\n    weight: {weight}\n" for name, weight in scorers.items())
    pods = case["pods"]
    table = make_table(len(pods), waiting=[pod["waiting"] for pod in pods], kv_usage=[pod["kv"] for pod in pods])
    # The reference's fake pods tell no adapter slots: there is never room.
    adapters = make_adapters(len(pods), models=[pod.get("models", ()) for pod in pods], slots=0)
    request = InferenceRequest(request_id="r", target_model=case.get("request", {}).get("target", ""))
    chosen = build_profile(load(text, default_registry())).decide(make_view(table, request=request, adapters=adapters))
    return f"192.168.1.{pods[chosen[0]]['index'] + 1}:8000"


@pytest.mark.parametrize("case", PICKS, ids=lambda case: case["name"])
def test_http_cases(case):
    assert pick(case, VECTORS["setup"]["scorers"]) == case["expect"]["endpoint"]


@pytest.mark.parametrize("case", GRPC_PICKS, ids=lambda case: case["name"])
def test_grpc_cases(case):
    assert pick(case, {"queue-scorer": 1, "kv-cache-utilization-scorer": 1}) == case["expect"]["endpoint"]


def test_every_case_that_picks_among_pods_is_here():
    assert [case["id"] for case in PICKS] == [1, 2, 5, 7, 9, 10]
    assert len(GRPC_PICKS) == 3
