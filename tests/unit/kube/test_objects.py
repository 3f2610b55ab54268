"""Objects as API servers send them become the little that is read."""

from __future__ import annotations

import msgspec
import pytest

from poolpilot_kube.backoff import Backoff
from poolpilot_kube.errors import RefusedError
from poolpilot_kube.objects import OBJECTIVES, PODS, POOLS, Pod


def pod(**status: object) -> Pod:
    text = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "managedFields": [{}]},
        "spec": {"containers": []},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(text), type=Pod)


READY = {"type": "Ready", "status": "True", "lastProbeTime": None}


def test_a_pod_is_ready_with_an_address_and_the_condition() -> None:
    assert pod(podIP="10.0.0.1", phase="Running", conditions=[READY]).ready
    assert not pod(conditions=[READY]).ready
    assert not pod(podIP="10.0.0.1", phase="Running").ready
    assert not pod(podIP="10.0.0.1", conditions=[{**READY, "status": "False"}]).ready


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_not_ready_whatever_its_conditions_say(phase: str) -> None:
    """A kubelet that evicts, or shuts down with its node, has left Ready true on them."""
    assert pod(podIP="10.0.0.1", phase=phase, conditions=[READY]).ended
    assert not pod(podIP="10.0.0.1", phase=phase, conditions=[READY]).ready
    assert not pod(podIP="10.0.0.1", phase="Unknown", conditions=[READY]).ended


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    text = {
        "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"podIP": "10.0.0.1", "conditions": [READY]},
    }
    assert not msgspec.convert(text, Pod).ready


def test_paths() -> None:
    assert PODS.path("n") == "/api/v1/namespaces/n/pods"
    assert POOLS.path() == "/apis/inference.networking.k8s.io/v1/inferencepools"
    assert [one.path("n").split("/")[2] for one in OBJECTIVES] == ["llm-d.ai", "inference.networking.x-k8s.io"]


def test_a_pool_and_its_selector() -> None:
    text = {
        "metadata": {"name": "p"},
        "spec": {
            "selector": {"matchLabels": {"b": "2", "a": ""}},
            "targetPorts": [{"number": 8000}, {"number": 8001}],
            "endpointPickerRef": {"name": "e", "port": {"number": 9002}},
        },
    }
    pool = msgspec.convert(text, POOLS.model)
    assert str(pool.spec.selector) == "a=,b=2"
    assert [port.number for port in pool.spec.target_ports] == [8000, 8001]
    picker = pool.spec.endpoint_picker_ref
    assert picker is not None and picker.port is not None and picker.port.number == 9002


@pytest.mark.parametrize(
    ("status", "message", "expired"),
    [
        (410, "too old", True),
        (504, "Timeout: Too large resource version: 9, current: 3", True),
        (504, "gateway time-out", False),
        (500, "etcd", False),
    ],
)
def test_which_refusals_mean_that_a_watch_cannot_go_on(status: int, message: str, expired: bool) -> None:
    assert RefusedError("watch", status, message).expired is expired


class Middle:
    """Always 0.5."""

    def random(self) -> float:
        return 0.5


def test_backoff_doubles_to_its_limit_and_begins_again() -> None:
    backoff = Backoff(Middle(), 1.0, 4.0)  # type: ignore[arg-type]
    assert [backoff.after_failure() for _ in range(4)] == [0.75, 1.5, 3.0, 3.0]
    assert backoff.after_failure(10.0) == 13.0
    backoff.reset()
    assert backoff.after_failure() == 0.75
