"""What the operator takes for deleted: what the server says is gone, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api_faults import fault_proxy, plain_access
from poolpilot_kube.access import from_kubeconfig
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import RefusedError
from poolpilot_operator.models import KINDS, Owned, OwnedMeta
from poolpilot_operator.store import Store
from poolpilot_operator.writer import DisputedError, Writer

if TYPE_CHECKING:
    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_conflict_is_a_deletion_only_where_another_object_has_the_name(
    plane: ControlPlane, cluster: Cluster, home: str
) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": home}}
    await cluster.api.apply(manifest)
    async with fault_proxy(plane.kubeconfig) as proxy, KubeApi(plain_access(proxy)) as api:
        store: Store[Owned] = Store(api, KINDS["ConfigMap"], [home])
        writer = Writer(api, {"ConfigMap": store}, home)
        first = await writer.read("ConfigMap", (home, "one"))
        assert first is not None
        store.wrote(first.key, await api.get(f"/api/v1/namespaces/{home}/configmaps/one"))

        proxy.refusals.append((409, {}))
        with pytest.raises(RefusedError, match="409"):
            await writer.delete("ConfigMap", first)
        assert store.get(first.key) == first

        await cluster.delete("v1", "ConfigMap", home, "one")
        await cluster.api.apply(manifest)
        await writer.delete("ConfigMap", first)
        assert store.get(first.key) is None
        second = await writer.read("ConfigMap", first.key)
        assert second is not None
        assert second.metadata.uid != first.metadata.uid


async def test_who_deletes_an_object_as_often_as_it_is_made_is_met_by_growing_pauses(
    plane: ControlPlane, cluster: Cluster, home: str
) -> None:
    now = 1000.0
    async with KubeApi(from_kubeconfig(plane.kubeconfig)) as api:
        writer = Writer(api, {}, home, lambda: now)
        for kind in ("ConfigMap", "Service"):
            spec = {"spec": {"ports": [{"port": 1}]}} if kind == "Service" else {"data": {"a": "b"}}
            labels = {"app.kubernetes.io/managed-by": "poolpilot"}
            meta = {"name": "two", "namespace": home, "labels": labels}
            wanted = {"apiVersion": "v1", "kind": kind, "metadata": meta, **spec}
            for _ in range(3):
                await writer.ensure(wanted)
                await cluster.delete("v1", kind, home, "two")
            text = f"^{kind} {home}/two is deleted, or loses its label"
            with pytest.raises(DisputedError, match=text) as refused:
                await writer.ensure(wanted)
            assert refused.value.again_s == pytest.approx(1.0)
            assert await cluster.get("v1", kind, home, "two") is None
            now += 1.0
            await writer.ensure(wanted)
            await cluster.delete("v1", kind, home, "two")
            with pytest.raises(DisputedError, match=text) as refused:
                await writer.ensure(wanted)
            assert refused.value.again_s == pytest.approx(2.0)


async def test_an_operators_objects_are_its_own_again_when_its_namespace_is_made_anew(
    plane: ControlPlane, cluster: Cluster, home: str
) -> None:
    now, other = 1000.0, f"{home}-anew"
    labels = {"app.kubernetes.io/managed-by": "poolpilot", "poolpilot.dev/operator": other}
    one = Owned(OwnedMeta(name="a", namespace=home, labels=labels))
    async with KubeApi(from_kubeconfig(plane.kubeconfig)) as api:
        writer = Writer(api, {}, home, lambda: now)
        assert not writer.ours(one)
        assert await writer.abandoned(other)
        assert writer.ours(one)
        await cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
        now += 60.0
        assert not writer.ours(one)
        assert not await writer.abandoned(other)
        assert not writer.ours(one)
        assert await writer.abandoned(home)
