"""What users, tenants and other controllers do to objects of the operator, and odd names, on a real API server."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from operator_stage import eventually, quiet, running_operator
from poolpilot_kube.access import from_kubeconfig

if TYPE_CHECKING:
    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_operator.app import Operator
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

MERGE = "application/merge-patch+json"


async def patched(cluster: Cluster, path: str, change: dict[str, Any]) -> None:
    """As `kubectl patch` or an editor does: whoever writes owns the fields."""
    await cluster.api.call("PATCH", path, change, content_type=MERGE)


def path_of(namespace: str, name: str = "llama-picker") -> str:
    return f"/api/v1/namespaces/{namespace}/services/{name}"


async def test_a_pools_service_moves_to_another_port_of_its_reference(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        before = await eventually(lambda: cluster.service(away, "llama-picker"))
        await cluster.made_pool(away, "llama", endpointPickerRef={"name": "llama-picker", "port": {"number": 9010}})

        async def moved() -> bool:
            now = await cluster.service(away, "llama-picker")
            assert now is not None
            assert now["metadata"]["uid"] == before["metadata"]["uid"]
            return [one["port"] for one in now["spec"]["ports"]] == [9010]

        await eventually(moved)


@pytest.mark.parametrize(
    "change",
    [
        # Without a selector nobody else fills the Service: with one, Kubernetes adds the engines themselves.
        {"spec": {"selector": {"app": "llama"}}},
        {"spec": {"ports": [{"name": "grpc", "port": 9002}, {"name": "more", "port": 1234}]}},
        {"spec": {"type": "ExternalName", "externalName": "somewhere.example", "clusterIP": None, "clusterIPs": None}},
        {"metadata": {"annotations": {"poolpilot.dev/pool": None}}},
        {"metadata": {"annotations": {"poolpilot.dev/pool": "other"}}},
        {"metadata": {"labels": {"poolpilot.dev/picker": "other"}}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}},
    ],
    ids=["selector", "ports", "type", "annotation removed", "annotation", "label", "mark removed", "mark"],
)
async def test_a_pools_service_is_set_back(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str, change: dict[str, Any]
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        before = await eventually(lambda: cluster.service(away, "llama-picker"))
        await quiet(operator)
        await patched(cluster, path_of(away), change)

        async def back() -> bool:
            now = await cluster.service(away, "llama-picker")
            assert now is not None, "it was deleted"
            same = {key: value for key, value in now["spec"].items() if key not in {"clusterIP", "clusterIPs"}}
            was = {key: value for key, value in before["spec"].items() if key in same}
            labels, annotations = now["metadata"]["labels"], now["metadata"].get("annotations")
            is_as = (labels, annotations) == (before["metadata"]["labels"], before["metadata"]["annotations"])
            return is_as and same == was and now["metadata"]["uid"] == before["metadata"]["uid"]

        await eventually(back)
        assert not await writes_go_on(operator, (away, "llama"))
        problems = (await cluster.picker(home, "default"))["status"].get("unhealthyPools", [])
        assert {one["reason"] for one in problems} <= {"NoPicker"}


async def test_what_others_add_to_lists_is_taken_out(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """`kubectl set env` on the pickers' Deployment: an apply leaves it in."""
    await cluster.made_picker(home)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:

        async def deployment() -> Any:
            return await cluster.get("apps/v1", "Deployment", home, "poolpilot-default")

        made = await eventually(deployment)
        await quiet(operator)
        containers = made["spec"]["template"]["spec"]["containers"]
        env = [*containers[0]["env"], {"name": "POOLPILOT_ODD", "value": "1"}]
        change = {"spec": {"template": {"spec": {"containers": [{**containers[0], "env": env}]}}}}
        await patched(cluster, f"/apis/apps/v1/namespaces/{home}/deployments/poolpilot-default", change)

        async def back() -> bool:
            return bool((await deployment())["spec"]["template"]["spec"] == made["spec"]["template"]["spec"])

        await eventually(back)
        assert not await writes_go_on(operator, (home, "default"), picker=True)


async def test_nobody_takes_a_port_by_writing_it_into_his_service(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """The thief's pool goes before the other's by name, and his Service is the older one."""
    await cluster.made_picker(home)
    await cluster.made_pool(home, "a-thief")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        await eventually(lambda: cluster.service(home, "a-thief-picker"))
        await cluster.made_pool(away, "victim")
        port = port_of(await eventually(lambda: cluster.service(away, "victim-picker")))
        await quiet(operator)
        ports = [{"name": "grpc", "port": 9002, "targetPort": port, "appProtocol": "kubernetes.io/h2c"}]
        await patched(cluster, path_of(home, "a-thief-picker"), {"spec": {"ports": ports}})

        async def elsewhere() -> bool:
            return port_of(await cluster.service(home, "a-thief-picker")) != port

        await eventually(elsewhere)
        assert port_of(await cluster.service(away, "victim-picker")) == port


async def test_two_pickers_whose_objects_would_have_one_name_do_not_fight(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    name = f"{home}-default"
    await cluster.made_picker(home, pools={"namespaces": [away]})
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        role = f"poolpilot-{name}"
        await eventually(lambda: cluster.get("rbac.authorization.k8s.io/v1", "RoleBinding", away, role))
        await quiet(operator)
        await cluster.made_picker(away, name)

        async def told() -> bool:
            found = await cluster.condition(away, name, "Programmed")
            return bool(found) and found["reason"] == "NotOurs" and f"that of Picker {home}/default" in found["message"]

        await eventually(told)
        binding = await cluster.get("rbac.authorization.k8s.io/v1", "RoleBinding", away, role)
        assert binding is not None
        assert [one["namespace"] for one in binding["subjects"]] == [home]
        assert not await writes_go_on(operator, (home, "default"), picker=True)
        assert (await cluster.condition(home, "default", "Programmed"))["status"] == "True"


async def test_a_picker_does_not_take_the_service_of_a_pool(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(home, "llama", endpointPickerRef={"name": "poolpilot-x-metrics", "port": {"number": 9002}})
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        before = await eventually(lambda: cluster.service(home, "poolpilot-x-metrics"))
        await cluster.made_picker(home, "x")

        async def told() -> bool:
            found = await cluster.condition(home, "x", "Programmed")
            return bool(found) and f"that of InferencePool {home}/llama" in found["message"]

        await eventually(told)
        now = await cluster.service(home, "poolpilot-x-metrics")
        assert now is not None
        assert now["spec"] == before["spec"]


async def test_names_with_dots_and_of_every_length(
    plane: ControlPlane,
    cluster: Cluster,
    pods: PickerPods,
    home: str,
    away: str,
) -> None:
    names = ["my.picker", "x" * 63, "9", "my-picker"]
    for name in names:
        await cluster.made_picker(home, name)
    # An Event's name is made of the first 200 characters of its object's.
    await cluster.made_picker(home)
    selector = {"matchLabels": {"app": "llama"}}
    dotted = f"{'b' * 199}.{'c' * 53}"
    await cluster.made_pool(away, dotted, endpointPickerRef=None, selector=selector)
    await cluster.made_pool(
        away, "a" * 253, endpointPickerRef={"name": "s" * 63, "port": {"number": 9002}}, selector=selector
    )
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        for name in names:

            async def programmed(name: str = name) -> bool:
                return bool((await cluster.condition(home, name, "Programmed")).get("status") == "True")

            await eventually(programmed, name)
        service = await eventually(lambda: cluster.service(away, "s" * 63))
        assert service["metadata"]["annotations"]["poolpilot.dev/pool"] == "a" * 253
        await eventually(lambda: cluster.event(away, dotted, "EndpointPickerRefMissing"))


@pytest.mark.parametrize(
    ("inline", "words"),
    [
        ("a: 2026-99-99", "month must be in 1..12"),
        ("[" * 5000, "nested too deeply"),
        ("? [1]\n: 2", "unhashable key"),
        ("null", "not a YAML mapping"),
    ],
    ids=["date", "brackets", "key", "null"],
)
async def test_a_configuration_that_is_no_yaml_is_told(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str, inline: str, words: str
) -> None:
    await cluster.made_picker(home, config={"inline": inline})
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:

        async def told() -> Any:
            found = await cluster.condition(home, "default", "Accepted")
            return found if (found.get("status"), found.get("reason")) == ("False", "ConfigInvalid") else None

        assert words in (await eventually(told))["message"]
        assert operator.picker_queue.retries == 0


async def test_a_service_that_somebody_made_like_ours_is_deleted(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """It would take a port of the Picker, and make it serve a pool that did not ask."""
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    await cluster.made_pool(away, "silent", picker=None)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        real = await eventually(lambda: cluster.service(away, "llama-picker"))
        for pool in ("llama", "silent", "nowhere"):
            meta = {
                "name": f"forged-{pool}",
                "namespace": away,
                "labels": real["metadata"]["labels"],
                "annotations": {"poolpilot.dev/pool": pool},
            }
            spec = {"ports": [{"port": 9002, "targetPort": 20_000}]}
            await cluster.api.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})

        async def gone() -> bool:
            return not any([await cluster.service(away, f"forged-{pool}") for pool in ("llama", "silent", "nowhere")])

        await eventually(gone)
        now = await cluster.service(away, "llama-picker")
        assert now is not None
        assert now["spec"] == real["spec"]


async def test_pods_that_cannot_count_are_not_asked(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """Anybody may write a Picker's labels on his pods, and answer whatever he likes."""
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    forged, beside = await pods.started("forged"), await pods.started("beside")
    await cluster.ready_pod((home, "default"), "forged", "10.244.0.66", away)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        await eventually(lambda: cluster.service(away, "llama-picker"))
        await cluster.ready_pod((home, "other"), "beside", "10.244.0.67", away)
        await quiet(operator)
        assert (forged.asked, beside.asked) == (0, 0)
        # A Picker with pods beside its pools comes to be known after its pod.
        await beside.serve(away, "llama", 20_000)
        await beside.serve(home, "llama", 20_000)
        await cluster.made_picker(home, "other", placement="PerNamespace")

        async def heard() -> bool:
            known = [one.pools for one in operator.world.health.pods.values() if one.pools]
            return [list(one) for one in known] == [[(away, "llama")]]

        await eventually(heard, "what it says of its own namespace counts, and nothing else")


async def test_a_configuration_that_pods_refuse_is_told_until_they_take_one(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """YAML, and no EndpointPickerConfig: pods run on with the one before."""
    await cluster.made_picker(home)
    pod = await pods.started("picker-a")
    await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):

        async def taken(status: str) -> Any:
            found = await cluster.condition(home, "default", "ConfigurationTaken")
            return found if found.get("status") == status else None

        await eventually(lambda: taken("True"))
        await pod.refuse("the newest configuration is refused: line 3")
        condition = await eventually(lambda: taken("False"))
        assert condition["reason"] == "ConfigRefused"
        assert condition["message"] == f"picker pod {home}/picker-a: the newest configuration is refused: line 3"
        assert "line 3" in await eventually(lambda: cluster.event(home, "default", "ConfigRefused"))
        await pod.refuse("")
        await eventually(lambda: taken("True"))


def port_of(service: dict[str, Any] | None) -> int:
    assert service is not None
    return int(service["spec"]["ports"][0]["targetPort"])


async def writes_go_on(operator: Operator, key: tuple[str, str], *, picker: bool = False) -> bool:
    """Whether looks at an object that is as it should be write anything."""
    queue = operator.picker_queue if picker else operator.pool_queue
    name = "picker" if picker else "pool"
    await quiet(operator)
    before = dict(operator.world.writer.writes)
    for _ in range(3):
        looked = operator.reconciled[name]
        queue.add(key)

        async def again(looked: int = looked) -> bool:
            return operator.reconciled[name] > looked and operator.idle

        await eventually(again)
    return {kind: count for kind, count in operator.world.writer.writes.items() if count != before.get(kind, 0)} != {}


async def test_what_the_cluster_makes_of_an_object_is_not_written_against_for_ever(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """Admission that changes what it is given, as GKE Autopilot does with resources: the second answer is the first."""
    group = "admissionregistration.k8s.io/v1"
    spec = {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": home}},
            "resourceRules": [
                {
                    "apiGroups": ["apps"],
                    "apiVersions": ["v1"],
                    "resources": ["deployments"],
                    "operations": ["CREATE", "UPDATE"],
                }
            ],
        },
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": "[JSONPatch{op: 'add', value: '750m', "
                    "path: '/spec/template/spec/containers/0/resources/requests/cpu'}]"
                },
            }
        ],
    }
    await cluster.api.apply(
        {"apiVersion": group, "kind": "MutatingAdmissionPolicy", "metadata": {"name": home}, "spec": spec}
    )
    binding = {"apiVersion": group, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": home}}
    await cluster.api.apply({**binding, "spec": {"policyName": home}})
    await cluster.made_picker(home)

    async def deployment() -> dict[str, Any] | None:
        return await cluster.get("apps/v1", "Deployment", home, "poolpilot-default")

    def cpu(one: dict[str, Any]) -> str:
        [container] = one["spec"]["template"]["spec"]["containers"]
        return str(container["resources"]["requests"]["cpu"])

    container = {"name": "a", "image": "a", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    probe = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "namespace": home},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template},
    }

    async def in_force() -> bool:
        made = await cluster.api.call("POST", f"/apis/apps/v1/namespaces/{home}/deployments?dryRun=All", probe)
        return cpu(msgspec.json.decode(made)) == "750m"

    await eventually(in_force)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        assert cpu(await eventually(deployment)) == "750m"
        await quiet(operator)
        wrote, version = operator.world.writer.writes.copy(), (await eventually(deployment))["metadata"]
        for _ in range(3):
            operator.picker_queue.add((home, "default"))
            await quiet(operator)
        assert operator.world.writer.writes == wrote
        assert (await eventually(deployment))["metadata"]["resourceVersion"] == version["resourceVersion"]
        # Who changes something else is set back all the same.
        path = f"/apis/apps/v1/namespaces/{home}/deployments/poolpilot-default"
        await patched(cluster, path, {"spec": {"minReadySeconds": 9}})

        async def set_back() -> bool:
            return bool((await eventually(deployment))["spec"]["minReadySeconds"] == 2)

        await eventually(set_back)


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "there"])
async def test_what_an_operator_of_a_namespace_left_is_taken_over_when_that_is_gone(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str, gone: bool
) -> None:
    """Deleted without `helm uninstall`, and installed anew in another: nobody would serve its pools otherwise."""
    other = f"{home}-before"
    if not gone:
        await cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    pool = await cluster.made_pool(away, "llama")
    labels = {
        "app.kubernetes.io/managed-by": "poolpilot",
        "poolpilot.dev/operator": other,
        "poolpilot.dev/picker": "default",
        "poolpilot.dev/picker-namespace": other,
    }
    owner = {"apiVersion": pool["apiVersion"], "kind": "InferencePool", "name": "llama", "uid": pool["metadata"]["uid"]}
    head = {"annotations": {"poolpilot.dev/pool": "llama"}, "ownerReferences": [owner]}
    service = {"name": "llama-picker", "namespace": away, "labels": labels, **head}
    ports = [{"name": "grpc", "port": 9002, "targetPort": 20_000}]
    await cluster.api.apply({"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": {"ports": ports}})
    rbac = "rbac.authorization.k8s.io/v1"
    role = {"name": f"poolpilot-picker:{other}:default", "labels": labels}
    await cluster.api.apply({"apiVersion": rbac, "kind": "ClusterRole", "metadata": role, "rules": []})
    await cluster.made_picker(home)
    one = await pods.started("picker-a")
    await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")

    async def taken() -> int:
        found = await cluster.service(away, "llama-picker")
        assert found is not None
        made = found["metadata"]["labels"]
        ours = (made["poolpilot.dev/operator"], made["poolpilot.dev/picker-namespace"]) == (home, home)
        return int(found["spec"]["ports"][0]["targetPort"]) if ours else 0

    async def role_is_gone() -> bool:
        return await cluster.get(rbac, "ClusterRole", "", role["name"]) is None

    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, everywhere=True) as operator:
        if gone:
            await one.serve(away, "llama", await eventually(taken))
            await eventually(role_is_gone)
        else:
            await quiet(operator)
            assert not await taken() and not await role_is_gone()


async def test_another_controller_that_sets_a_field_otherwise_for_ever_is_told_and_met_by_growing_pauses(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """At the speed of the API server two would write hundreds of times here."""
    await cluster.made_picker(home)
    await cluster.made_pool(away, "llama")
    deployment = f"/apis/apps/v1/namespaces/{home}/deployments/poolpilot-default?fieldManager=tidy-controller"
    service = f"{path_of(away)}?fieldManager=tidy-controller"
    seen: Counter[str] = Counter()

    async def second_writer() -> None:
        while True:
            found = await cluster.get("apps/v1", "Deployment", home, "poolpilot-default")
            if found is not None and found["spec"].get("minReadySeconds") != 9:
                seen["Deployment"] += 1
                await patched(cluster, deployment, {"spec": {"minReadySeconds": 9}})
            one = await cluster.service(away, "llama-picker")
            if one is not None and one["spec"]["type"] != "NodePort":
                seen["Service"] += 1
                await patched(cluster, service, {"spec": {"type": "NodePort"}})

    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        other, began = asyncio.create_task(second_writer()), operator.world.writer._clock()
        try:
            condition = await eventually(lambda: cluster.condition(home, "default", "Contested"))
            told = await eventually(lambda: cluster.event(away, "llama", "ChangedByOthers"))
            assert condition["status"] == "True"
            text = f"Deployment {home}/poolpilot-default: spec.minReadySeconds is set otherwise by field manager tidy-"
            assert condition["message"].startswith(text + "controller each time")
            assert await eventually(lambda: cluster.event(home, "default", "ChangedByOthers")) == condition["message"]
            assert told.startswith(f"Service {away}/llama-picker: spec.type")
            assert " is set otherwise by field manager tidy-controller each time" in told
            assert (await cluster.condition(home, "default", "Programmed"))["status"] == "True"

            async def more() -> bool:
                return seen["Deployment"] >= 5 and seen["Service"] >= 5

            await eventually(more)
            writes, passed = operator.world.writer.writes, operator.world.writer._clock() - began
            most = 6 + int(math.log2(passed + 1))
            assert writes["Deployment", "apply"] <= most
            assert writes["Service", "create"] + writes["Service", "patch"] <= 2 + most
        finally:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
