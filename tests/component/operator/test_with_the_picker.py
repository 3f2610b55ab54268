"""Operator and picker together on a real API server: each believes only what the other says there."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from operator_stage import RealPods, eventually, quiet, running_operator, same, true
from picker_pools import health
from picker_program import PickerProgram
from poolpilot_kube.access import from_kubeconfig
from poolpilot_kube.api import KubeApi
from poolpilot_kube.watch import Watcher
from poolpilot_operator.models import SLICES
from poolpilot_operator.rights import PICKER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from operator_stage import Cluster
    from poolpilot_kube.objects import Pod
    from poolpilot_kube.watch import Change
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_operator.app import Operator
    from poolpilot_operator.models import Owned
    from stand_in_pickers import PickerPod, PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

IP = "10.244.0.11"


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
        # What came of the pool is known after its slice is written.
        await eventually(lambda: true(operator.world.states[away, "two"].reason == "NoPicker"))


async def test_a_pool_that_is_added_is_never_answered_by_a_pod_that_does_not_know_it(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str, tmp_path: Path
) -> None:
    """Every state of the slice that the API server had is looked at, and whether the picker answered at that moment."""
    await cluster.made_picker(home)
    late = await pods.started("late")
    for name, address in (("picker-a", IP), ("late", "10.244.0.12")):
        await cluster.ready_pod((home, "default"), name, address)
    states: list[tuple[list[str], int]] = []

    def heard(changes: Sequence[Change[Owned]]) -> None:
        for new in (change.new for change in changes):
            if new is not None and new.endpoints:
                [port] = {one["port"] for one in new.ports or ()}
                states.append((sorted(host for one in new.endpoints for host in one["addresses"]), port))
                asked.append(asyncio.create_task(health(port, f"{away}/llama")))

    asked: list[asyncio.Task[str]] = []
    access = from_kubeconfig(plane.kubeconfig)
    flags = ("--picker-name", "default", "--picker-namespace", home, "--pool-namespaces", f"{home},{away}")
    async with (
        KubeApi(access) as api,
        PickerProgram(tmp_path, *flags, "--kubeconfig", str(plane.kubeconfig)) as picker,
        running_operator(access, home, OneReal("picker-a", picker, pods), away) as operator,
    ):
        watcher = Watcher(api, SLICES, heard, namespace=away)
        watching = asyncio.create_task(watcher.run())
        await watcher.synced.wait()
        await quiet(operator)
        began = time.monotonic()
        await cluster.made_pool(away, "llama")
        await eventually(lambda: true(states))
        print(f"served {time.monotonic() - began:.2f} s after it was applied; bar: 2 s")
        # The other pod is there, is asked, and says that it has other pools.
        await late.serve(away, "another", 20_000)
        await heard_and_done(late, operator)
        assert {tuple(addresses) for addresses, _ in states} == {(IP,)}
        [port] = {port for _, port in states}
        await late.serve(away, "llama", port + 1)
        await heard_and_done(late, operator)
        assert {tuple(addresses) for addresses, _ in states} == {(IP,)}, "it knows the pool, on another port"
        await late.serve(away, "llama", port)
        await eventually(lambda: true(states[-1][0] == [IP, "10.244.0.12"]))
        assert set(await asyncio.gather(*asked)) == {"SERVING"}
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def heard_and_done(pod: PickerPod, operator: Operator) -> None:
    """It is asked anew when what it said before has been taken in."""
    asked = pod.asked
    await eventually(lambda: true(pod.asked > asked))
    await quiet(operator)


class OneReal(RealPods):
    """One of the pods is a picker, the others stand in."""

    def __init__(self, name: str, picker: PickerProgram, others: PickerPods) -> None:
        super().__init__(picker)
        self._name, self._others = name, others

    def url_of(self, pod: Pod) -> str:
        return super().url_of(pod) if pod.metadata.name == self._name else self._others.url_of(pod)


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
