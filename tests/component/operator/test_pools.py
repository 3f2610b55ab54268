"""Pools on a real API server: who is served, what a served pool gets, and every conflict decided and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from operator_stage import eventually, running_operator
from poolpilot_kube.access import from_kubeconfig

if TYPE_CHECKING:
    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

POOL = "inference.networking.k8s.io/v1"


def port_of(service: dict[str, Any] | None) -> int:
    """Where pickers listen for the pool."""
    assert service is not None
    return int(service["spec"]["ports"][0]["targetPort"])


async def test_a_served_pool_gets_a_service_and_the_pods_that_serve_it(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    pool = await cluster.made_pool(away, "llama", 8000, 8001)
    one = await pods.started("picker-a")
    await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        service = await eventually(lambda: cluster.service(away, "llama-picker"))
        port = port_of(service)
        assert 20_000 <= port <= 29_999
        meta, spec = service["metadata"], service["spec"]
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "poolpilot"
        assert meta["labels"]["poolpilot.dev/picker"] == "default"
        assert meta["labels"]["poolpilot.dev/picker-namespace"] == home
        assert meta["annotations"]["poolpilot.dev/pool"] == "llama"
        assert [ref["uid"] for ref in meta["ownerReferences"]] == [pool["metadata"]["uid"]]
        assert "selector" not in spec
        assert [(one["port"], one["appProtocol"]) for one in spec["ports"]] == [(9002, "kubernetes.io/h2c")]
        assert await eventually(lambda: _is(cluster.slice_addresses(away, "llama-picker"), []))
        await one.serve(away, "llama", port, serving=False, reason="not synced")
        await one.serve(away, "llama", port)
        assert await eventually(lambda: _is(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        # A pod that says another port has not heard of the change yet.
        await one.serve(away, "llama", port + 1)
        assert await eventually(lambda: _is(cluster.slice_addresses(away, "llama-picker"), []))
        await one.serve(away, "llama", port)
        assert await eventually(lambda: _is(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        status = await eventually(lambda: _counts(cluster, home, (1, 1)))
        assert "unhealthyPools" not in status or status["unhealthyPools"] == []
        now = await cluster.get(POOL, "InferencePool", away, "llama")
        assert now is not None
        # Nothing is written to a user's object.
        assert now["metadata"]["resourceVersion"] == pool["metadata"]["resourceVersion"]


async def _is(answer: Any, wanted: Any) -> bool:
    return bool(await answer == wanted)


async def _counts(cluster: Cluster, namespace: str, wanted: tuple[int, int], name: str = "default") -> Any:
    status = (await cluster.picker(namespace, name)).get("status", {})
    counts = status.get("pools", {})
    return status if (counts.get("served"), counts.get("healthy")) == wanted else None
