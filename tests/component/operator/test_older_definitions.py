"""An operator that is newer than the definitions (CRDs) of its cluster: Helm never upgrades those of a chart."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from control_planes import definitions
from operator_stage import eventually, quiet, running_operator
from poolpilot_kube.access import from_kubeconfig
from poolpilot_lab.control_plane.api import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")
OURS = "poolpilot.dev/v1alpha1"


def of(kind: str) -> dict[str, Any]:
    return copy.deepcopy(next(one for one in definitions() if one["spec"]["names"]["kind"] == kind))


def said_of(definition: dict[str, Any]) -> dict[str, Any]:
    """The fields of its status."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields: dict[str, Any] = schema["properties"]["status"]["properties"]
    return fields


@pytest_asyncio.fixture(loop_scope="module")
async def older(cluster: Cluster) -> AsyncIterator[list[dict[str, Any]]]:
    """Definitions that lack a field, a field of a field, and one of entries of a list."""
    pickers, adapters = of("Picker"), of("LoraAdapter")
    del said_of(pickers)["advice"]
    del said_of(pickers)["pools"]["properties"]["healthy"]
    del said_of(pickers)["conditions"]["items"]["properties"]["observedGeneration"]
    del said_of(adapters)["wanted"]
    for one in (pickers, adapters):
        await cluster.api.apply(one)
    yield [pickers, adapters]
    for kind in ("Picker", "LoraAdapter"):
        await cluster.api.apply(of(kind))


async def test_what_a_definition_knows_is_written_and_the_rest_is_told(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, older: list[dict[str, Any]]
) -> None:
    await cluster.made_picker(home)
    adapter = {
        "apiVersion": OURS,
        "kind": "LoraAdapter",
        "metadata": {"name": "sql", "namespace": home},
        "spec": {"poolRef": {"name": "nowhere"}, "source": {"path": "/adapters/sql"}},
    }
    await cluster.api.apply(adapter)

    # The API server takes a definition into use a moment after it was applied.
    await eventually(lambda: refused(cluster, "Picker", "default", home, {"advice": []}))
    await eventually(lambda: refused(cluster, "LoraAdapter", "sql", home, {"wanted": 0}))

    async def outdated() -> dict[str, Any]:
        return await cluster.condition(home, "default", "CRDOutdated")

    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        told = await eventually(outdated)
        assert (told["status"], told["reason"]) == ("True", "FieldsUnknown")
        for word in (
            "status.advice",
            "status.pools.healthy",
            "status.conditions[].observedGeneration",
            "poolpilot-crds",
        ):
            assert word in told["message"]
        picker = await cluster.picker(home, "default")
        assert picker["status"]["observedGeneration"] == picker["metadata"]["generation"]
        assert picker["status"]["pools"] == {"served": 0}
        assert (await cluster.condition(home, "default", "Programmed"))["status"] == "True"
        await eventually(lambda: cluster.event(home, "default", "CRDOutdated"))

        async def adapters() -> dict[str, Any]:
            found = await cluster.get(OURS, "LoraAdapter", home, "sql") or {}
            conditions = found.get("status", {}).get("conditions", ())
            told: dict[str, Any] = next((one for one in conditions if one["type"] == "CRDOutdated"), {})
            return told

        assert "status.wanted" in (await eventually(adapters))["message"]
        await eventually(lambda: cluster.event(home, "sql", "CRDOutdated"))
        await quiet(operator)
        # Looked at again, nothing is written.
        writes = operator.world.writer.writes.total()
        before = dict(operator.reconciled)
        operator.picker_queue.add((home, "default"))
        operator.adapter_queue.add((home, "nowhere"))

        async def looked() -> bool:
            return operator.idle and all(operator.reconciled[one] > before[one] for one in ("picker", "adapters"))

        await eventually(looked)
        assert operator.world.writer.writes.total() == writes

    # The right definitions, and an operator that does not remember.
    for kind in ("Picker", "LoraAdapter"):
        await cluster.api.apply(of(kind))
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):

        async def whole() -> bool:
            status = (await cluster.picker(home, "default"))["status"]
            return not await outdated() and not await adapters() and status["pools"] == {"served": 0, "healthy": 0}

        await eventually(whole)


async def test_an_older_definition_of_others_is_told(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    """A ServiceMonitor without `interval`: all else is made, and the Picker says what is not."""
    endpoint = {"type": "object", "properties": {"port": {"type": "string"}}}
    spec = {
        "type": "object",
        "properties": {
            "selector": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "endpoints": {"type": "array", "items": endpoint},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
    }
    names = {"kind": "ServiceMonitor", "listKind": "ServiceMonitorList", "plural": "servicemonitors"}
    monitors = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    await cluster.api.define([monitors])
    await cluster.made_picker(home)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):

        async def told() -> dict[str, Any] | None:
            found = await cluster.condition(home, "default", "Programmed")
            return found if (found.get("status"), found.get("reason")) == ("False", "WriteRefused") else None

        words = (await eventually(told))["message"]
        assert "ServiceMonitor" in words and "interval: field not declared in schema" in words
        assert await cluster.get("apps/v1", "Deployment", home, "poolpilot-default") is not None


async def refused(cluster: Cluster, kind: str, name: str, namespace: str, status: dict[str, Any]) -> bool:
    path = f"/apis/{OURS}/namespaces/{namespace}/{kind.lower()}s/{name}/status?fieldManager=test&dryRun=All"
    body = {"apiVersion": OURS, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "status": status}
    try:
        await cluster.api.call("PATCH", path, body, content_type="application/apply-patch+yaml")
    except ApiError as error:
        return "not declared in schema" in str(error)
    return False
