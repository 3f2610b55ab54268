"""Pools on a real API server: who is served, what a served pool gets, and every conflict decided and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from operator_stage import eventually, quiet, running_operator, same, true
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
        assert await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), []))
        await one.serve(away, "llama", port, serving=False, reason="not synced")
        await one.serve(away, "llama", port)
        assert await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        # A pod that says another port has not heard of the change yet.
        await one.serve(away, "llama", port + 1)
        assert await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), []))
        await one.serve(away, "llama", port)
        assert await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        status = await eventually(lambda: cluster.counts(home, 1, 1))
        assert "unhealthyPools" not in status or status["unhealthyPools"] == []
        now = await cluster.get(POOL, "InferencePool", away, "llama")
        assert now is not None
        # Nothing is written to a user's object.
        assert now["metadata"]["resourceVersion"] == pool["metadata"]["resourceVersion"]


async def test_a_served_pool_is_healthy_while_it_has_endpoints(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    one, two = await pods.started("picker-a"), await pods.started("picker-b")
    for name, address in (("picker-a", "10.244.0.11"), ("picker-b", "10.244.0.12")):
        await cluster.ready_pod((home, "default"), name, address)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        port = port_of(await eventually(lambda: cluster.service(away, "llama-picker")))
        both = ["10.244.0.11", "10.244.0.12"]
        for pod in (one, two):
            await pod.serve(away, "llama", port, endpoints=0)
        # Who has no endpoints is served all the same: the picker has the better answer.
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), both))
        await eventually(lambda: cluster.counts(home, 1, 0))
        await eventually(lambda: _unhealthy(cluster, home, "NoEndpoints"))
        # One of them has heard of an endpoint.
        await one.serve(away, "llama", port, endpoints=2)
        status = await eventually(lambda: cluster.counts(home, 1, 1))
        assert not status.get("unhealthyPools")
        # A pool that grows is nothing to look at.
        await quiet(operator)
        looks, asked = operator.reconciled["pool"], one.asked
        await one.serve(away, "llama", port, endpoints=3)
        await eventually(lambda: true(one.asked > asked))
        await quiet(operator)
        assert operator.reconciled["pool"] == looks
        for pod in (one, two):
            await pod.serve(away, "llama", port, endpoints=0)
        await eventually(lambda: _unhealthy(cluster, home, "NoEndpoints"))


async def test_endpoints_are_of_the_family_of_the_service_whichever_a_pod_names_first(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """Pods name the family of their node first, a Service has that of the cluster: neither leads to the other."""
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    both, six = await pods.started("picker-a"), await pods.started("picker-b")
    await cluster.ready_pod((home, "default"), "picker-a", "fd00::11", other_ip="10.244.0.11")
    await cluster.ready_pod((home, "default"), "picker-b", "fd00::12")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        service = await eventually(lambda: cluster.service(away, "llama-picker"))
        assert service["spec"]["ipFamilies"] == ["IPv4"], "the API server's default"
        await six.serve(away, "llama", port_of(service))
        why = "picker pod picker-b has no IPv4 address, and its Service no other"
        await eventually(lambda: _unhealthy(cluster, home, "NoPicker", why))
        await both.serve(away, "llama", port_of(service))
        assert await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        other = await cluster.get("discovery.k8s.io/v1", "EndpointSlice", away, "llama-picker-poolpilot-v6")
        assert other is None


async def test_a_picker_pod_that_has_ended_is_no_endpoint_of_anybody(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """A kubelet that evicts leaves the pod there, Ready as it was; its address is another one's by then."""
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    evicted, _ = await pods.started("picker-a"), await pods.started("picker-b")
    await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        await evicted.serve(away, "llama", port_of(await eventually(lambda: cluster.service(away, "llama-picker"))))
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11", phase="Failed")
        # Whoever has the address now answers there: nothing is asked of the pod that had it.
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), []))


async def test_who_ends_is_there_until_it_takes_nothing_more(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """Where nobody else is there yet, kube-proxy leads to it; it prefers those that are ready."""
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    one, two = await pods.started("picker-a"), await pods.started("picker-b")
    for name, address in (("picker-a", "10.244.0.11"), ("picker-b", "10.244.0.12")):
        await cluster.ready_pod((home, "default"), name, address)
    serves = {"ready": True, "serving": True, "terminating": False}
    ends = {"ready": False, "serving": True, "terminating": True}

    async def conditions() -> list[tuple[str, dict[str, bool]]]:
        found = await cluster.get("discovery.k8s.io/v1", "EndpointSlice", away, "llama-picker-poolpilot")
        listed = (found or {}).get("endpoints") or ()
        return [(endpoint["addresses"][0][-2:], endpoint["conditions"]) for endpoint in listed]

    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        port = port_of(await eventually(lambda: cluster.service(away, "llama-picker")))
        await one.serve(away, "llama", port)
        await eventually(lambda: same(conditions(), [("11", serves)]))
        why = "the picker is shutting down"
        await one.serve(away, "llama", port, serving=False, terminating=True, reason=why)
        await eventually(lambda: same(conditions(), [("11", ends)]))
        await eventually(lambda: _unhealthy(cluster, home, "NoPicker", why))
        await two.serve(away, "llama", port)
        await eventually(lambda: same(conditions(), [("11", ends), ("12", serves)]))
        await one.serve(away, "llama", port, serving=False, reason=why)
        await eventually(lambda: same(conditions(), [("12", serves)]))
        # The last word of one that has ended is not always heard.
        await two.serve(away, "llama", port, serving=False, terminating=True, reason=why)
        await eventually(lambda: same(conditions(), [("12", ends)]))
        two.refuses = True
        await two.drop(away, "llama")
        await eventually(lambda: same(conditions(), []))


async def test_a_pool_that_does_not_ask_is_left_alone(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "silent", picker=None)
    await cluster.made_pool(away, "asks")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        await eventually(lambda: cluster.service(away, "asks-picker"))
        assert await cluster.service(away, "silent-picker") is None
        # Asking later is as good, and so is not asking any more.
        await cluster.made_pool(away, "silent")
        await eventually(lambda: cluster.service(away, "silent-picker"))
        await cluster.made_pool(away, "asks", picker=None)
        await eventually(lambda: _none(cluster.service(away, "asks-picker")))
        assert await eventually(lambda: same(cluster.slice_addresses(away, "asks-picker"), None))


async def test_a_foreign_service_is_never_taken_over_and_the_pool_is_served_when_it_goes(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    foreign = await cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "llama-picker", "namespace": away, "labels": {"app": "somebody"}},
            "spec": {"selector": {"app": "somebody"}, "ports": [{"port": 9002}]},
        }
    )
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        said = await eventually(lambda: cluster.event(away, "llama", "ServiceNotOurs"))
        assert f"Service {away}/llama-picker exists and was not made by poolpilot" in said
        unhealthy = await eventually(lambda: _unhealthy(cluster, home, "ServiceNotOurs"))
        assert (unhealthy["namespace"], unhealthy["name"]) == (away, "llama")
        assert await cluster.counts(home, 1, 0)
        now = await cluster.service(away, "llama-picker")
        assert now is not None
        assert now["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
        await cluster.delete("v1", "Service", away, "llama-picker")
        # No watch tells of Services that are not ours: it is looked at again now and then.
        operator.pool_queue.add((away, "llama"))
        service = await eventually(lambda: cluster.service(away, "llama-picker"))
        assert service["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "poolpilot"


@pytest.mark.parametrize(
    ("ref", "reason", "words"),
    [
        (None, "EndpointPickerRefMissing", "spec.endpointPickerRef is not set"),
        ({"name": "x", "kind": "Pod", "port": {"number": 1}}, "EndpointPickerRefUnsupported", "is a Pod; allowed is"),
        ({"name": "x", "group": "a.b", "port": {"number": 1}}, "EndpointPickerRefUnsupported", "a Service.a.b"),
        ({"name": "Not_A_Name", "port": {"number": 1}}, "WriteRefused", "Not_A_Name"),
    ],
)
async def test_a_pool_that_cannot_have_a_service_is_told_why(
    plane: ControlPlane,
    cluster: Cluster,
    pods: PickerPods,
    home: str,
    away: str,
    ref: dict[str, Any] | None,
    reason: str,
    words: str,
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama", endpointPickerRef=ref)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        assert words in await eventually(lambda: cluster.event(away, "llama", reason))
        await eventually(lambda: _unhealthy(cluster, home, reason))
        assert await cluster.counts(home, 1, 0)


async def test_a_reference_that_is_taken_away_takes_the_service_along_and_one_that_changes_moves_it(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        before = port_of(await eventually(lambda: cluster.service(away, "llama-picker")))
        await cluster.made_pool(away, "llama", endpointPickerRef={"name": "other", "port": {"number": 7000}})
        moved = await eventually(lambda: cluster.service(away, "other"))
        assert moved["spec"]["ports"][0]["port"] == 7000
        assert port_of(moved) == before
        await eventually(lambda: _none(cluster.service(away, "llama-picker")))
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), None))
        await cluster.made_pool(away, "llama", endpointPickerRef=None)
        await eventually(lambda: _none(cluster.service(away, "other")))


async def test_two_pools_cannot_share_a_service(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    shared = {"name": "shared", "port": {"number": 9002}}
    await cluster.made_pool(away, "first", endpointPickerRef=shared)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        await eventually(lambda: cluster.service(away, "shared"))
        await cluster.made_pool(away, "second", endpointPickerRef=shared)
        said = await eventually(lambda: cluster.event(away, "second", "ServiceTaken"))
        assert "already is that of InferencePool first" in said
        service = await cluster.service(away, "shared")
        assert service is not None
        assert service["metadata"]["annotations"]["poolpilot.dev/pool"] == "first"
        await cluster.delete(POOL, "InferencePool", away, "first")
        await eventually(lambda: _none(cluster.service(away, "shared")))
        operator.pool_queue.add((away, "second"))
        service = await eventually(lambda: cluster.service(away, "shared"))
        assert service["metadata"]["annotations"]["poolpilot.dev/pool"] == "second"


async def test_a_pool_that_is_deleted_and_made_again_gets_a_service_of_its_own_on_the_same_port(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    old = await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        before = await eventually(lambda: cluster.service(away, "llama-picker"))
    # While no operator runs: the Service of the old pool would be collected with it.
    await cluster.delete(POOL, "InferencePool", away, "llama")
    new = await cluster.made_pool(away, "llama")
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):

        async def owned() -> dict[str, Any] | None:
            found = await cluster.service(away, "llama-picker")
            uids = [ref["uid"] for ref in found["metadata"]["ownerReferences"]] if found is not None else []
            return found if uids == [new["metadata"]["uid"]] else None

        after = await eventually(owned)
        assert port_of(after) == port_of(before)


async def test_two_pickers_that_want_a_pool_do_not_fight_and_who_serves_goes_on(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        service = await eventually(lambda: cluster.service(away, "llama-picker"))
        await cluster.made_picker(away)
        await eventually(lambda: cluster.counts(away, 0, 0))

        async def lost() -> bool:
            status = (await cluster.picker(away, "default"))["status"]
            return [one["reason"] for one in status.get("unhealthyPools", ())] == ["ServedByAnother"]

        await eventually(lost)
        said = await eventually(lambda: cluster.event(away, "llama", "SeveralPickers"))
        assert f"served by Picker {home}/default" in said
        now = await cluster.service(away, "llama-picker")
        assert now is not None
        assert now["metadata"]["resourceVersion"] == service["metadata"]["resourceVersion"]
        await cluster.delete("poolpilot.dev/v1alpha1", "Picker", home, "default")

        async def moved() -> bool:
            found = await cluster.service(away, "llama-picker")
            return found is not None and found["metadata"]["labels"]["poolpilot.dev/picker-namespace"] == away

        await eventually(moved)
        # What came of the pool is known after its objects are written.
        await eventually(lambda: true(operator.world.states[away, "llama"].picker == (away, "default")))


async def test_a_picker_that_is_deleted_leaves_nothing_behind(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        await eventually(lambda: cluster.service(away, "llama-picker"))
        await eventually(lambda: cluster.get("apps/v1", "Deployment", home, "poolpilot-default"))
        await eventually(lambda: cluster.get("rbac.authorization.k8s.io/v1", "Role", away, f"poolpilot-{home}-default"))
        await cluster.delete("poolpilot.dev/v1alpha1", "Picker", home, "default")
        await eventually(lambda: _none(cluster.service(away, "llama-picker")))

        async def left() -> bool:
            return not any(len(store) for store in operator.world.made.values())

        await eventually(left)
        said = await eventually(lambda: cluster.event(away, "llama", "PickerNotFound"))
        assert "there is no Picker of that name" in said


async def test_a_picker_outside_the_operators_namespace_serves_its_own_only(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(away, "local")
    await cluster.made_pool(away, "near", picker="local")
    await cluster.made_pool(home, "far", picker="local")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        await eventually(lambda: cluster.service(away, "near-picker"))
        await eventually(lambda: cluster.event(home, "far", "PickerNotFound"))
        assert await cluster.service(home, "far-picker") is None
        made = await eventually(lambda: cluster.get("apps/v1", "Deployment", away, "poolpilot-local"))
        assert f"--pool-namespaces={away}" in made["spec"]["template"]["spec"]["containers"][0]["args"]


async def test_a_namespace_that_terminates_makes_no_noise(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    # Without controllers nothing empties it: it stays in this state.
    await cluster.api.call("DELETE", f"/api/v1/namespaces/{away}")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        told = await eventually(lambda: _unhealthy(cluster, home, "NamespaceTerminating"))
        assert f"namespace {away} is being deleted" in told["message"]
        assert await cluster.counts(home, 1, 0)
        assert await cluster.events(away, "llama") == {}

        async def programmed() -> bool:
            found = await cluster.condition(home, "default", "Programmed")
            return (found.get("status"), found.get("reason")) == ("False", "NamespaceTerminating")

        await eventually(programmed)
        # It is not even tried: the server would refuse it.
        assert operator.world.writer.writes["Service", "create"] == 1, "that of the Picker's metrics"
        assert operator.world.writer.writes["Role", "apply"] == 1, "that of its own namespace"
        assert operator.pool_queue.retries == 0
        # The Picker's rights there cannot be made either, and its other pools do not care.
        await cluster.made_pool(home, "near")
        await eventually(lambda: cluster.service(home, "near-picker"))


async def test_drift_is_repaired_and_nothing_is_written_when_nothing_changes(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    one = await pods.started("picker-a")
    await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
    access = from_kubeconfig(plane.kubeconfig)
    async with running_operator(access, home, pods, away):
        service = await eventually(lambda: cluster.service(away, "llama-picker"))
        port = port_of(service)
        await one.serve(away, "llama", port)
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
        await eventually(lambda: cluster.counts(home, 1, 1))
        # Somebody's change of what is ours does not last; a port of the range is the record, whoever wrote it.
        service["spec"]["ports"][0]["appProtocol"] = "http"
        service["metadata"].pop("managedFields")
        await cluster.api.apply(service)

        async def repaired() -> bool:
            found = await cluster.service(away, "llama-picker")
            return found is not None and found["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"

        await eventually(repaired)
        await cluster.delete("discovery.k8s.io/v1", "EndpointSlice", away, "llama-picker-poolpilot")
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
    async with running_operator(access, home, pods, away) as operator:
        await quiet(operator)
        assert dict(operator.world.writer.writes) == {}


async def test_trouble_is_said_once_also_by_the_next_operator(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama", endpointPickerRef=None)
    access = from_kubeconfig(plane.kubeconfig)
    for _ in range(2):
        async with running_operator(access, home, pods, away) as operator:
            await eventually(lambda: cluster.event(away, "llama", "EndpointPickerRefMissing"))
            await eventually(lambda one=operator: true(one.reconciled["pool"]))
            for _ in range(3):
                operator.pool_queue.add((away, "llama"))
                await eventually(lambda one=operator: true(one.idle))
    listed = msgspec.json.decode(await cluster.api.call("GET", f"/api/v1/namespaces/{away}/events"))
    assert [one["reason"] for one in listed["items"]] == ["EndpointPickerRefMissing"]


async def test_a_picker_may_take_every_pool_of_namespaces_that_it_names(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home, pools={"select": "All", "namespaces": [away]})
    await cluster.made_pool(away, "silent", picker=None)
    await cluster.made_pool(home, "elsewhere", picker=None)
    await cluster.made_pool(away, "asks", picker="another")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        await eventually(lambda: cluster.service(away, "silent-picker"))
        await eventually(lambda: cluster.counts(home, 1, 0))
        assert await cluster.service(home, "elsewhere-picker") is None
        assert await cluster.service(away, "asks-picker") is None
        # Taking less is told by the same object.
        await cluster.made_picker(home, pools={"select": "Labelled"})
        await eventually(lambda: _none(cluster.service(away, "silent-picker")))


async def test_two_operators_leave_each_other_alone(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    access = from_kubeconfig(plane.kubeconfig)
    await cluster.made_picker(home)
    await cluster.made_picker(away)
    await cluster.made_pool(home, "one")
    await cluster.made_pool(away, "two")
    # Both watch both namespaces, and each has a Picker of the same name at home.
    async with (
        running_operator(access, home, pods, away, image="first") as first,
        running_operator(access, away, pods, home, image="second") as second,
    ):
        for name, namespace in (("one", home), ("two", away)):
            await eventually(lambda n=name, ns=namespace: cluster.service(ns, f"{n}-picker"))
        for namespace in (home, away):
            await eventually(lambda ns=namespace: cluster.get("apps/v1", "Deployment", ns, "poolpilot-default"))
        for operator in (first, second):
            await quiet(operator)
        written = [dict(operator.world.writer.writes) for operator in (first, second)]
        for operator in (first, second):
            for pool in operator.world.pools:
                operator.pool_queue.add(pool.key)
            for picker in operator.world.pickers:
                operator.picker_queue.add(picker.key)
            await eventually(lambda one=operator: true(one.idle))
        assert [dict(operator.world.writer.writes) for operator in (first, second)] == written
        # Whose a Picker is, it can say itself.
        await cluster.api.apply(
            {
                "apiVersion": "poolpilot.dev/v1alpha1",
                "kind": "Picker",
                "metadata": {"name": "default", "namespace": home, "labels": {"poolpilot.dev/operator": away}},
                "spec": {"tls": {"mode": "Disabled"}},
            }
        )

        async def moved() -> bool:
            for operator in (first, second):
                operator.picker_queue.add((home, "default"))
                operator.pool_queue.add((home, "one"))
            found = [
                await cluster.get("apps/v1", "Deployment", home, "poolpilot-default"),
                await cluster.service(home, "one-picker"),
            ]
            return all(one and one["metadata"]["labels"]["poolpilot.dev/operator"] == away for one in found)

        await eventually(moved)
        assert "ServiceNotOurs" not in await cluster.events(home, "one")


async def test_an_operator_that_starts_does_not_empty_what_works_while_pods_cannot_be_asked(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    one = await pods.started("picker-a")
    await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
    access = from_kubeconfig(plane.kubeconfig)
    async with running_operator(access, home, pods, away):
        port = port_of(await eventually(lambda: cluster.service(away, "llama-picker")))
        await one.serve(away, "llama", port)
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), ["10.244.0.11"]))
    one.refuses = True
    async with running_operator(access, home, pods, away) as operator:
        await eventually(lambda: true(operator.reconciled["pool"]))
        await eventually(lambda: true(operator.idle))
        assert await cluster.slice_addresses(away, "llama-picker") == ["10.244.0.11"]
        one.refuses = False
        await one.drop(away, "llama")
        await eventually(lambda: same(cluster.slice_addresses(away, "llama-picker"), []))


async def _unhealthy(cluster: Cluster, namespace: str, reason: str, why: str = "") -> Any:
    """Statuses are written seldom: an earlier reason may still stand there."""
    listed = (await cluster.picker(namespace, "default")).get("status", {}).get("unhealthyPools") or ()
    return next((one for one in listed if one["reason"] == reason and why in one["message"]), None)


async def _none(answer: Any) -> bool:
    return await answer is None
