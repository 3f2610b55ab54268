"""What is kept of a pod, and that it is all that is asked of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from poolpilot_kube.objects import PODS, Pod
from poolpilot_picker.sources.pod_endpoints import endpoints_of
from poolpilot_picker.sources.slim_pods import SLIM_PODS

SLIM, FULL = msgspec.json.Decoder(SLIM_PODS.model), msgspec.json.Decoder(PODS.model)


def pod(**more: Any) -> bytes:
    """As an API server sends it."""
    meta = {
        "name": "a",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"app": "vllm", "llm-d.ai/engine-type": "sglang"},
        "annotations": {"unrelated": "x" * 100, **more.get("annotations", {})},
    }
    conditions = [{"type": "Initialized", "status": "True"}, *more.get("conditions", [])]
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}
    return msgspec.json.encode({"metadata": meta, "status": status})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"conditions": [{"type": "Ready", "status": "True"}]},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        {"conditions": [{"type": "Ready", "status": "True"}], "annotations": {"llm-d.ai/active-ports": "8001"}},
        {
            "conditions": [{"type": "Ready", "status": "True"}],
            "annotations": {"inference.networking.k8s.io/active-ports": "8000"},
        },
    ],
)
def test_its_endpoints_are_those_of_the_whole_pod(more: dict[str, Any]) -> None:
    slim, full = SLIM.decode(pod(**more)), FULL.decode(pod(**more))
    assert (slim.key, slim.ready) == (full.key, full.ready)
    made = [endpoints_of(one, (8000, 8001), ("vllm", "sglang"), "vllm") for one in (slim, full)]
    assert made[0] == made[1]


def test_what_repeats_is_there_once() -> None:
    first, second = (SLIM.decode(pod(conditions=[{"type": "Ready", "status": "True"}])) for _ in range(2))
    assert isinstance(first, Pod)
    assert "unrelated" not in first.metadata.annotations
    assert first.status.conditions is second.status.conditions
    assert first.metadata.annotations is second.metadata.annotations
    for key, other in zip(first.metadata.labels.items(), second.metadata.labels.items(), strict=True):
        assert key[0] is other[0] and key[1] is other[1]


def test_a_pod_without_anything() -> None:
    empty = SLIM.decode(b'{"metadata":{"name":"a","namespace":"ns"}}')
    assert not empty.ready and empty.metadata.labels == {}
