"""What pages and templates say in Envoy's words is what Envoy's messages and the generator have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2
from google.protobuf import json_format

from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.settings import EnvoySettings, HostPort

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/data/charts"


def test_the_picker_cluster_of_the_page_is_that_of_the_generator() -> None:
    """The page leaves out what can be left out, and says nothing else."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/gateways.md").read_text(), re.MULTILINE | re.DOTALL)
    [shown] = [found for block in blocks if (found := yaml.safe_load(block)).get("name") == "picker"]
    settings = EnvoySettings(pickers=(HostPort("llama-picker.serving.svc.cluster.local", 9002),))
    [made] = [one for one in bootstrap(settings)["static_resources"]["clusters"] if one["name"] == "picker"]
    assert set(shown) < set(made)
    for key, value in shown.items():
        assert made[key] == value, key


def per_route(variant: str) -> dict[str, Any]:
    [found] = [one for one in yaml.safe_load_all((GOLDEN / variant).read_text()) if one["kind"] == "EnvoyFilter"]
    [patch] = found["spec"]["configPatches"]
    value: dict[str, Any] = patch["patch"]["value"]["typed_per_filter_config"]["envoy.filters.http.ext_proc"]
    return value


def test_the_filter_for_istio_is_a_message_of_envoy() -> None:
    """Every field is known, and the picker sees no response body but hears of the end."""
    value = per_route("poolpilot-istio.yaml")
    kind = value.pop("@type")
    message = json_format.ParseDict(value, ext_proc_pb2.ExtProcPerRoute())
    assert kind == f"type.googleapis.com/{message.DESCRIPTOR.full_name}"
    mode = message.overrides.processing_mode
    assert (mode.request_body_mode, mode.response_body_mode) == (mode.BUFFERED_PARTIAL, mode.NONE)
    assert mode.response_trailer_mode == mode.SEND and message.overrides.failure_mode_allow.value is True
    cluster = message.overrides.grpc_service.envoy_grpc.cluster_name
    assert cluster == "outbound|9002||other-picker.serving.svc.cluster.local"
