"""What of the charts needs pods: the test of a release, its clean-up before the end, and how the pieces stay apart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from cluster_stage import ROOT, CommandError, until

if TYPE_CHECKING:
    from cluster_stage import Space

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHART: Final = ROOT / "charts/poolpilot"
POOL: Final = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "llama", "labels": {"poolpilot.dev/picker": "mine"}},
    "spec": {
        "selector": {"matchLabels": {"app": "llama"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "llama-mine", "port": {"number": 9002}},
    },
}
OPERATOR: Final = "app.kubernetes.io/component=operator"
OURS: Final = "app.kubernetes.io/managed-by=poolpilot"
KINDS: Final = "services,endpointslices,deployments,roles,rolebindings,serviceaccounts,configmaps,poddisruptionbudgets"


async def test_a_release_in_one_namespace_is_tested_and_cleans_up_behind_itself(space: Space) -> None:
    """`helm install`, `helm test`, `helm uninstall`, with their hooks; nothing but this namespace is touched."""
    values = ("--set", "scope=namespace,picker.name=mine,cleanup.timeoutSeconds=30")
    # Nothing of the cluster is given in a namespace: the doctor does without definitions, and says so.
    space.stage.audit.expected.add((space.name, "apiextensions.k8s.io", "customresourcedefinitions"))
    await space.helm("install", "mine", str(CHART), *values, "--wait", "--timeout=3m")
    roles = json.loads(await space.kubectl("get", "clusterroles", "-o", "json"))["items"]
    assert not [one["metadata"]["name"] for one in roles if space.name in one["metadata"]["name"]]

    async def ready() -> bool:
        picker = await space.get("picker", "mine")
        conditions = picker.get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    await until(ready, "the Picker is not ready", 120)
    said = await space.helm("test", "mine", "--logs", "--timeout=2m")
    assert "Phase:          Succeeded" in said and "0 errors" in said

    await space.apply(POOL)
    await until(lambda: space.has("service", "llama-mine"), "the pool gets no Service", 60)
    await space.kubectl("scale", "deployment/mine-poolpilot-operator", "--replicas=0")
    await space.kubectl("wait", "pod", "-l", OPERATOR, "--for=delete", "--timeout=60s")
    await space.kubectl("delete", "service", "llama-mine")
    with pytest.raises(CommandError) as failed:
        await space.helm("test", "mine", "--logs", "--timeout=2m")
    assert "service-missing" in str(failed.value), "the test of a release can fail, and says why"
    await space.kubectl("scale", "deployment/mine-poolpilot-operator", "--replicas=1")
    await until(lambda: space.has("service", "llama-mine"), "the Service does not come back", 60)

    await space.helm("uninstall", "mine", "--wait", "--timeout=3m")
    assert await space.kubectl("get", KINDS, "-l", OURS, "-o", "name") == ""
    assert not await space.has("picker", "mine")
    pool = await space.get("inferencepool", "llama")
    assert "finalizers" not in pool["metadata"] and pool["spec"]["targetPorts"] == POOL["spec"]["targetPorts"]
    left = await space.kubectl("get", "jobs,roles,rolebindings,deployments", "-o", "name")
    assert left == "", "no hook leaves anything"
