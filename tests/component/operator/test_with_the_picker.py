"""Operator and picker together on a real API server: each believes only what the other says there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from operator_stage import eventually, running_operator, same
from picker_pools import health
from picker_program import PickerProgram
from poolpilot_kube.access import from_kubeconfig
from poolpilot_operator.rights import PICKER

if TYPE_CHECKING:
    from pathlib import Path

    from operator_stage import Cluster
    from poolpilot_kube.objects import Pod
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

IP = "10.244.0.11"


class RealPods:
    """One picker pod, which answers where a picker of this machine does."""

    def __init__(self, picker: PickerProgram) -> None:
        self._picker = picker

    def url_of(self, _: Pod) -> str:
        return f"http://127.0.0.1:{self._picker.admin_port}"


async def test_a_pool_that_comes_is_served_by_a_running_picker_and_one_that_goes_is_not(
    plane: ControlPlane, cluster: Cluster, home: str, away: str, tmp_path: Path
) -> None:
    user = f"picker-of-{home}"
    for namespace in (home, away):
        await bound(cluster, user, namespace)
    await cluster.made_picker(home)
    await cluster.ready_pod((home, "default"), "picker-a", IP)
    flags = (
        *("--picker-name", "default", "--picker-namespace", home, "--pool-namespaces", f"{home},{away}"),
        *("--kubeconfig", str(plane.kubeconfig_of(user))),
    )
    async with (
        PickerProgram(tmp_path, *flags) as picker,
        running_operator(from_kubeconfig(plane.kubeconfig), home, RealPods(picker), away) as operator,
    ):
        for name in ("one", "two"):
            await cluster.made_pool(away, name)
        for name in ("one", "two"):
            await eventually(lambda n=name: same(cluster.slice_addresses(away, f"{n}-picker"), [IP]))
        ports = {}
        for name in ("one", "two"):
            service = await cluster.service(away, f"{name}-picker")
            assert service is not None
            ports[name] = service["spec"]["ports"][0]["targetPort"]
            assert await health(ports[name])

        async def reasons() -> set[str]:
            status = await cluster.counts(home, 2, 0) or {}
            return {one["reason"] for one in status.get("unhealthyPools", ())}

        await eventually(lambda: same(reasons(), {"NoEndpoints"}), "served, and without engines")
        await cluster.delete("inference.networking.k8s.io/v1", "InferencePool", away, "one")
        await eventually(lambda: same(cluster.slice_addresses(away, "one-picker"), None))
        await eventually(lambda: cluster.counts(home, 1, 0))
        # The picker ends in order: it leaves the slice before its port is closed.
        picker.terminate()
        await eventually(lambda: same(cluster.slice_addresses(away, "two-picker"), []))
        assert operator.world.states[away, "two"].reason == "NoPicker"


async def bound(cluster: Cluster, user: str, namespace: str) -> None:
    """A user has a picker's rights in a namespace."""
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": user, "namespace": namespace}
    rules = [rule.as_rbac() for rule in PICKER]
    await cluster.api.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    await cluster.api.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": user},
            "subjects": [{"kind": "User", "name": user, "apiGroup": rbac}],
        }
    )
