"""Pickers on a real API server: what each gets, under which rights, and what its status says."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from operator_stage import IMAGE, eventually, quiet, running_operator
from poolpilot_kube.access import from_kubeconfig
from poolpilot_lab.control_plane.api import ApiError
from poolpilot_operator.certificates import made
from poolpilot_operator.resources.naming import made_for
from poolpilot_operator.rights import OPERATOR, OPERATOR_CLUSTER, OPERATOR_HOME

if TYPE_CHECKING:
    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_operator.app import Operator
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")

MADE = (
    ("v1", "ServiceAccount"),
    ("v1", "ConfigMap"),
    ("apps/v1", "Deployment"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
)
RBAC = "rbac.authorization.k8s.io/v1"
RIGHTS = (("v1", "ServiceAccount"), (RBAC, "Role"), (RBAC, "RoleBinding"))


async def deployment(cluster: Cluster, namespace: str, name: str = "poolpilot-default") -> dict[str, Any]:
    return await eventually(lambda: cluster.get("apps/v1", "Deployment", namespace, name))


async def told(cluster: Cluster, namespace: str, type_: str, reason: str, name: str = "default") -> dict[str, Any]:
    """The condition, as soon as it has that reason."""

    async def check() -> dict[str, Any] | None:
        found = await cluster.condition(namespace, name, type_)
        return found if found.get("reason") == reason else None

    return await eventually(check, f"{type_} {reason}")


async def test_a_picker_gets_all_that_its_pods_need_and_says_how_it_stands(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    picker = await cluster.made_picker(home, tls={"mode": "SelfSigned"}, replicas=2)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        for version, kind in MADE:
            made = await eventually(lambda v=version, k=kind: cluster.get(v, k, home, "poolpilot-default"))
            # What its pods still need while they drain must not go with it: the operator takes that away afterwards.
            owners = [] if kind in {"ServiceAccount", "Role", "RoleBinding"} else [picker["metadata"]["uid"]]
            assert [ref["uid"] for ref in made["metadata"].get("ownerReferences", ())] == owners
            assert not any("blockOwnerDeletion" in ref for ref in made["metadata"].get("ownerReferences", ()))
            assert "finalizers" not in made["metadata"]
        made = await deployment(cluster, home)
        assert made["spec"]["replicas"] == 2
        [container] = made["spec"]["template"]["spec"]["containers"]
        assert container["image"] == IMAGE
        for flag in (
            "--picker-name=default",
            f"--picker-namespace={home}",
            f"--pool-namespaces={home}",
            f"--operator-namespace={home}",
            "--config-file=/etc/poolpilot/config/config.yaml",
            "--tls-cert=/etc/poolpilot/tls/tls.crt",
            "--tls-key=/etc/poolpilot/tls/tls.key",
        ):
            assert flag in container["args"]
        config = await cluster.get("v1", "ConfigMap", home, "poolpilot-default")
        assert config is not None
        assert "predicted-finish-picker" in config["data"]["config.yaml"]
        ready = await told(cluster, home, "Ready", "NoPodReady")
        assert ready["status"] == "False"
        assert (await cluster.condition(home, "default", "Programmed"))["status"] == "True"
        status = {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
        await cluster.api.set_status(made, {"observedGeneration": 1, **status})
        ready = await told(cluster, home, "Ready", "Ready")
        assert ready["observedGeneration"] == picker["metadata"]["generation"]
        shared = await told(cluster, home, "StateShared", "SeveralPickers")
        assert shared["status"] == "False"
        now = await cluster.picker(home, "default")
        assert (now["status"]["replicas"], now["status"]["readyReplicas"]) == (2, 2)
        assert "metadata.managedFields" not in now
        assert "finalizers" not in now["metadata"]
        assert "annotations" not in now["metadata"]
        await quiet(operator)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        await quiet(operator)
        assert dict(operator.world.writer.writes) == {}


async def test_the_pods_are_taken_in_a_namespace_of_the_restricted_standard(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    namespace = await cluster.api.get("v1", "Namespace", home)
    namespace["metadata"] = {
        "name": home,
        "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
    }
    await cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace["metadata"]})
    await cluster.made_picker(home, tls={"mode": "SelfSigned"}, engineCredentials={"secretRef": {"name": "engines"}})
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):
        made = await deployment(cluster, home)
    template = made["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": home, "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    await cluster.api.create(pod)
    pod["metadata"]["name"] = "two"
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        await cluster.api.create(pod)


async def test_configuration_changes_without_another_rollout(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    await cluster.made_picker(home)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):
        before = await deployment(cluster, home)
        await cluster.made_picker(home, config={"policy": "round-robin"})

        async def changed(word: str) -> bool:
            found = await cluster.get("v1", "ConfigMap", home, "poolpilot-default")
            return found is not None and word in found["data"]["config.yaml"]

        await eventually(lambda: changed("round-robin-picker"))
        await cluster.made_picker(home, config={"inline": "kind: EndpointPickerConfig\nplugins: []\n"})
        await eventually(lambda: changed("plugins: []"))
        await cluster.made_picker(home, config={"inline": "- a\n- list\n"})
        condition = await told(cluster, home, "Accepted", "ConfigInvalid")
        assert "not a YAML mapping" in condition["message"]
        assert await changed("plugins: []")
        after = await deployment(cluster, home)
        assert after["spec"]["template"] == before["spec"]["template"]
        await cluster.made_picker(home, config={"configMapRef": {"name": "mine", "key": "a.yaml"}})
        condition = await told(cluster, home, "Programmed", "ConfigMissing")
        assert "ConfigMap mine does not exist" in condition["message"]
        await cluster.api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "mine", "namespace": home},
                "data": {"a.yaml": "kind: EndpointPickerConfig\n# mine\n"},
            }
        )
        await cluster.made_picker(home, config={"configMapRef": {"name": "mine", "key": "a.yaml"}}, replicas=0)
        await eventually(lambda: changed("# mine"))
        await told(cluster, home, "Ready", "ScaledToZero")


async def test_an_autoscaler_takes_over_the_number_there_is(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    await cluster.made_picker(home, replicas=5)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):
        assert (await deployment(cluster, home))["spec"]["replicas"] == 5
        await cluster.made_picker(home, replicas=5, autoscaling={"minReplicas": 2, "maxReplicas": 9})
        scaler = await eventually(
            lambda: cluster.get("autoscaling/v2", "HorizontalPodAutoscaler", home, "poolpilot-default")
        )
        assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 9)
        assert (await deployment(cluster, home))["spec"]["replicas"] == 5
        # What an autoscaler sets is not set back.
        now = await deployment(cluster, home)
        scale = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": now["metadata"]["name"]}}
        scale["metadata"]["namespace"] = home
        await cluster.api.apply({**scale, "spec": {"replicas": 7}})
        await cluster.made_picker(home, replicas=5, autoscaling={"minReplicas": 3, "maxReplicas": 9})

        async def bounded() -> bool:
            found = await cluster.get("autoscaling/v2", "HorizontalPodAutoscaler", home, "poolpilot-default")
            return found is not None and found["spec"]["minReplicas"] == 3

        await eventually(bounded)
        assert (await deployment(cluster, home))["spec"]["replicas"] == 7
        await cluster.made_picker(home, replicas=4, autoscaling=None)

        async def gone() -> bool:
            found = await cluster.get("autoscaling/v2", "HorizontalPodAutoscaler", home, "poolpilot-default")
            return found is None and (await deployment(cluster, home))["spec"]["replicas"] == 4

        await eventually(gone)


async def test_a_certificate_is_made_once_and_anew_when_it_is_about_to_end(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    await cluster.made_picker(home, tls={"mode": "SelfSigned"})
    access = from_kubeconfig(plane.kubeconfig)
    async with running_operator(access, home, pods):
        secret = await eventually(lambda: cluster.get("v1", "Secret", home, "poolpilot-default-tls"))
        first = await deployment(cluster, home)
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"poolpilot-default.{home}.svc" in names.get_values_for_type(x509.DNSName)
    async with running_operator(access, home, pods) as operator:
        await quiet(operator)
        same = await cluster.get("v1", "Secret", home, "poolpilot-default-tls")
        assert same is not None
        assert same["data"] == secret["data"]
    late = certificate.not_valid_after_utc
    async with running_operator(access, home, pods, now=lambda: late) as operator:

        async def renewed() -> dict[str, Any] | None:
            found = await cluster.get("v1", "Secret", home, "poolpilot-default-tls")
            return found if found is not None and found["data"] != secret["data"] else None

        await eventually(renewed)
        await quiet(operator)
        # Running pods take it up by themselves: nobody is restarted.
        assert (await deployment(cluster, home))["metadata"]["generation"] == first["metadata"]["generation"]


async def test_a_secret_that_is_given_and_one_that_is_missing(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    await cluster.made_picker(home, tls={"mode": "Secret", "secretRef": {"name": "given"}})
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods) as operator:
        condition = await told(cluster, home, "Programmed", "SecretMissing")
        assert f"Secret {home}/given does not exist" in condition["message"]
        good, other = (made(["a.b.svc"], datetime.now(UTC)) for _ in range(2))
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": "given", "namespace": home},
        }

        async def given(data: dict[str, str]) -> None:
            await cluster.api.apply({**secret, "data": {name: data[name] for name in ("tls.crt", "tls.key")}})
            operator.picker_queue.add((home, "default"))

        await given(dict.fromkeys(("tls.crt", "tls.key"), base64.b64encode(b"x").decode()))
        condition = await told(cluster, home, "Programmed", "SecretInvalid")
        assert "tls.crt is no certificate in PEM" in condition["message"]
        await given(good)
        await told(cluster, home, "Programmed", "Programmed")
        before = (await deployment(cluster, home))["metadata"]["generation"]
        # Pods that run go on with the certificate that they have.
        operator._picker_reconciler._looked.clear()
        await given({**good, "tls.key": other["tls.key"]})
        condition = await told(cluster, home, "Programmed", "SecretInvalid")
        assert condition["message"].endswith("tls.key is not the key of tls.crt")
        await given(other)
        await told(cluster, home, "Programmed", "Programmed")
        assert (await deployment(cluster, home))["metadata"]["generation"] == before, "another one restarts nobody"
        await cluster.made_picker(home, tls={"mode": "CertManager", "issuerRef": {"name": "ca"}})
        condition = await told(cluster, home, "Accepted", "CertManagerMissing")
        assert "cert-manager.io/v1" in condition["message"]


async def test_an_object_of_somebody_else_is_left_alone(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str
) -> None:
    foreign = await cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "poolpilot-default", "namespace": home},
            "data": {"mine": "yes"},
        }
    )
    await cluster.made_picker(home)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods):
        condition = await told(cluster, home, "Programmed", "NotOurs")
        assert f"ConfigMap {home}/poolpilot-default exists and was not made by poolpilot" in condition["message"]
        await eventually(lambda: cluster.event(home, "default", "NotOurs"))
    now = await cluster.get("v1", "ConfigMap", home, "poolpilot-default")
    assert now is not None
    assert now["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]


async def test_what_a_picker_cannot_be(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    long = "n" * 64
    await cluster.made_picker(home, long)
    await cluster.made_picker(away, pools={"namespaces": [home, away]})
    await cluster.made_pool(away, "llama")
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        condition = await told(cluster, home, "Accepted", "NameTooLong", long)
        assert condition["status"] == "False"
        condition = await told(cluster, away, "Accepted", "NamespacesNotAllowed")
        assert condition["message"] == (
            f"spec.pools.namespaces has {home}; outside the operator's namespace {home} a Picker serves its own "
            "namespace only"
        )
        # What it may do, it does.
        await eventually(lambda: cluster.service(away, "llama-picker"))
    await cluster.made_picker(home, workers=3)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        condition = await told(cluster, home, "Accepted", "WorkersUnsupported")
        assert condition["message"].startswith("spec.workers is 3; allowed is 1")
    await cluster.made_picker(home)
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away, image=""):
        condition = await told(cluster, home, "Accepted", "ImageMissing")
        assert "--picker-image" in condition["message"]


async def test_one_deployment_in_each_namespace_that_has_pools(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home, placement="PerNamespace", tls={"mode": "SelfSigned"})
    await cluster.made_pool(away, "llama")
    one = await pods.started("picker-a")
    name = f"poolpilot-{home}-default"
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away):
        made = await deployment(cluster, away, name)
        assert f"--pool-namespaces={away}" in made["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "ownerReferences" not in made["metadata"]
        assert await cluster.get("v1", "Secret", away, f"{name}-tls") is not None
        assert await cluster.get("apps/v1", "Deployment", home, "poolpilot-default") is None
        await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11", away)
        service = await eventually(lambda: cluster.service(away, "llama-picker"))
        port = service["spec"]["ports"][0]["targetPort"]
        await one.serve(away, "llama", port)

        async def served() -> bool:
            return await cluster.slice_addresses(away, "llama-picker") == ["10.244.0.11"]

        await eventually(served)
        await cluster.made_pool(away, "llama", picker=None)
        await eventually(lambda: without(cluster, "apps/v1", "Deployment", away, name))
        for version, kind in RIGHTS:
            assert await cluster.get(version, kind, away, name) is not None, "its pod still drains"
        await cluster.ended("picker-a", away)

        async def gone() -> bool:
            found = [await cluster.get(v, k, away, name) for v, k in MADE]
            return not any(found) and await cluster.get("v1", "Secret", away, f"{name}-tls") is None

        await eventually(gone)


async def bound(cluster: Cluster, user: str, rules: Any, namespace: str, name: str) -> None:
    """Grants rules to a user in a namespace, or everywhere if it is empty."""
    scope = "" if namespace else "Cluster"
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    await cluster.api.apply(
        {"apiVersion": RBAC, "kind": f"{scope}Role", "metadata": meta, "rules": [one.as_rbac() for one in rules]}
    )
    await cluster.api.apply(
        {
            "apiVersion": RBAC,
            "kind": f"{scope}RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{scope}Role", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        }
    )


async def test_rights_go_when_the_pods_have_drained(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    """Also if the Picker, its Deployment and their operator went first."""
    await cluster.made_picker(home)
    there = f"poolpilot-{home}-default"
    access = from_kubeconfig(plane.kubeconfig)
    async with running_operator(access, home, pods, away):
        await eventually(lambda: cluster.get(RBAC, "RoleBinding", away, there))
        # It is made after the rights, and would else be found gone before it was there.
        await deployment(cluster, home)
        await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
        await cluster.delete("poolpilot.dev/v1alpha1", "Picker", home, "default")
        await eventually(lambda: without(cluster, "apps/v1", "Deployment", home, "poolpilot-default"))
    async with running_operator(access, home, pods, away) as operator:
        await eventually(lambda: _is_idle(operator))
        for version, kind in RIGHTS:
            assert await cluster.get(version, kind, home, "poolpilot-default") is not None
        assert await cluster.get(RBAC, "RoleBinding", away, there) is not None
        await cluster.ended("picker-a", home)
        for version, kind in RIGHTS:
            await eventually(lambda v=version, k=kind: without(cluster, v, k, home, "poolpilot-default"))
        await eventually(lambda: without(cluster, RBAC, "Role", away, there))


async def test_a_namespace_that_is_no_longer_served_stays_readable_until_the_rollout_is_done(
    plane: ControlPlane, cluster: Cluster, pods: PickerPods, home: str, away: str
) -> None:
    await cluster.made_picker(home)
    there = f"poolpilot-{home}-default"
    async with running_operator(from_kubeconfig(plane.kubeconfig), home, pods, away) as operator:
        await eventually(lambda: cluster.get(RBAC, "RoleBinding", away, there))
        await cluster.ready_pod((home, "default"), "picker-a", "10.244.0.11")
        await cluster.made_picker(home, pools={"namespaces": [home]})

        async def told_to() -> Any:
            made = await deployment(cluster, home)
            arguments = made["spec"]["template"]["spec"]["containers"][0]["args"]
            return made if f"--pool-namespaces={home}" in arguments else None

        made = await eventually(told_to)
        await eventually(lambda: _is_idle(operator))
        assert await cluster.get(RBAC, "Role", away, there) is not None, "the old pod still reads there"
        done = {"observedGeneration": made["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1}
        await cluster.api.set_status(made, done)
        await eventually(lambda: without(cluster, RBAC, "Role", away, there))
        assert await cluster.get(RBAC, "Role", home, "poolpilot-default") is not None


async def without(cluster: Cluster, version: str, kind: str, namespace: str, name: str) -> bool:
    return await cluster.get(version, kind, namespace, name) is None


async def _is_idle(operator: Operator) -> bool:
    return operator.reconciled["picker"] > 0 and operator.idle


@pytest.mark.parametrize("everywhere", [False, True])
async def test_its_own_rights_are_enough_and_no_more_is_granted(
    plane: ControlPlane,
    cluster: Cluster,
    pods: PickerPods,
    home: str,
    away: str,
    everywhere: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    user = f"operator-of-{home}"
    for namespace in ("",) if everywhere else (home, away):
        await bound(cluster, user, OPERATOR, namespace, f"{home}-operator")
    if everywhere:
        await bound(cluster, user, OPERATOR_CLUSTER, "", f"{home}-operator-cluster")
    await bound(cluster, user, OPERATOR_HOME, home, "operator-home")
    access = from_kubeconfig(plane.kubeconfig_of(user))
    await cluster.made_picker(home, tls={"mode": "SelfSigned"}, autoscaling={"maxReplicas": 3})
    await cluster.made_pool(away, "llama")
    await cluster.made_pool(away, "broken", endpointPickerRef=None)
    async with running_operator(access, home, pods, away, everywhere=everywhere, elect=True) as operator:
        await eventually(lambda: cluster.service(away, "llama-picker"))
        await told(cluster, home, "Programmed", "Programmed")
        name = f"poolpilot-picker:{home}:default"
        cluster_role = await cluster.get(RBAC, "ClusterRole", "", name)
        role = await cluster.get(RBAC, "Role", away, f"poolpilot-{home}-default")
        assert (cluster_role is not None, role is not None) == (everywhere, not everywhere)
        granted = (cluster_role or role or {})["rules"]
        assert {verb for rule in granted for verb in rule["verbs"]} == {"list", "watch"}
        await eventually(lambda: cluster.event(away, "broken", "EndpointPickerRefMissing"))
        await cluster.delete("poolpilot.dev/v1alpha1", "Picker", home, "default")

        async def left() -> bool:
            made = [one for store in operator.world.made.values() for one in store]
            return not [one for one in made if made_for(one) == (home, "default")]

        await eventually(left)
        assert not [status.problem for store in operator.stores for status in store.status if status.problem]
    assert "forbidden" not in caplog.text
