"""What the operator takes for deleted: what the server says is gone, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api_faults import fault_proxy, plain_access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.errors import RefusedError
from poolpilot_operator.models import KINDS, Owned
from poolpilot_operator.store import Store
from poolpilot_operator.writer import Writer

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
