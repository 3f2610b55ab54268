"""Pods become endpoints: ports, ranks, engines, and who has an address that two claim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from poolpilot_kube.objects import Pod
from poolpilot_picker.sources.pod_endpoints import active_ports, endpoints_of, one_per_address

ENGINES = ("sglang", "vllm")


def pod(name: str = "a", ip: str = "10.0.0.1", created: str = "2026-01-01T00:00:00Z", **meta: Any) -> Pod:
    text = {
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created, **meta},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(text, Pod)


def names(one: Pod, ports: tuple[int, ...] = (8000, 8001)) -> list[str]:
    return [spec.name for spec in endpoints_of(one, ports, ENGINES, "vllm")]


def test_each_port_is_an_endpoint_with_the_pods_identity() -> None:
    first, second = endpoints_of(pod(labels={"gpu": "h100"}), (8000, 8001), ENGINES, "vllm")
    assert (first.address, first.key, first.name) == ("10.0.0.1:8000", ("uid-a", 8000), "a-rank-0")
    assert (second.address, second.key, second.name) == ("10.0.0.1:8001", ("uid-a", 8001), "a-rank-1")
    assert first.labels == {"gpu": "h100"} and first.engine == "vllm"


def test_a_pod_that_is_deleted_has_none() -> None:
    assert names(pod(deletionTimestamp="2026-01-01T00:00:00Z")) == []


@pytest.mark.parametrize("key", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"])
@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("8000,8001", ["a-rank-0", "a-rank-1"]),
        ("8001", ["a-rank-1"]),
        (" 8001 , 9000", ["a-rank-1"]),
        ("", []),
        ("http", []),
        ("9000", []),
        ("8000,http", ["a-rank-0"]),
    ],
)
def test_active_ports(key: str, text: str, ranks: list[str]) -> None:
    assert names(pod(annotations={key: text})) == ranks


def test_the_newer_annotation_counts() -> None:
    both = {"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}
    assert active_ports(both) == {8001}
    assert active_ports({}) is None


@pytest.mark.parametrize(
    ("labels", "engine"),
    [
        ({}, "vllm"),
        ({"llm-d.ai/engine-type": "sglang"}, "sglang"),
        ({"inference.networking.k8s.io/engine-type": "sglang"}, "sglang"),
        ({"llm-d.ai/engine-type": "vllm", "inference.networking.k8s.io/engine-type": "sglang"}, "vllm"),
        ({"llm-d.ai/engine-type": "unheard-of"}, "vllm"),
    ],
)
def test_the_engine(labels: dict[str, str], engine: str) -> None:
    assert [one.engine for one in endpoints_of(pod(labels=labels), (8000,), ENGINES, "vllm")] == [engine]


def test_an_ipv6_pod() -> None:
    assert endpoints_of(pod(ip="fd00::1"), (8000,), ENGINES, "vllm")[0].address == "[fd00::1]:8000"


def test_the_younger_of_two_pods_has_the_address() -> None:
    old, new = pod("z"), pod("a", created="2026-01-02T00:00:00Z")
    made = [(one, endpoints_of(one, (8000,), ENGINES, "vllm")) for one in (new, old)]
    specs, problems = one_per_address(made)
    assert [spec.uid for spec in specs] == ["uid-a"]
    assert problems == ["z-rank-0 and a-rank-0 are both ready at 10.0.0.1:8000: the younger counts"]
