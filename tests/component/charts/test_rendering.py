"""What Helm makes of the charts: golden manifests, values that are refused, what every pod must have.

POOLPILOT_GOLDEN=write rewrites the golden files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from chart_variants import VARIANTS
from helm import CHARTS
from poolpilot_operator import rights
from poolpilot_operator.main import parser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helm import Helm

GOLDEN = Path(__file__).parents[2] / "data/charts"
IDS = ["-".join(one) for one in VARIANTS]
NEWEST = "1.37.2"


def shown(objects: list[dict[str, Any]]) -> str:
    """Without what is tested elsewhere: definitions, and rules of Roles."""
    for one in objects:
        if one["kind"] == "CustomResourceDefinition":
            one["spec"] = "…"
        if "rules" in one and one["kind"].endswith("Role"):
            one["rules"] = "…"
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120)


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_manifests_are_the_golden_ones(helm: Helm, chart: str, variant: str) -> None:
    made = shown(helm.rendered(chart, VARIANTS[chart, variant]))
    path = GOLDEN / f"{chart}-{variant}.yaml"
    if os.environ.get("POOLPILOT_GOLDEN") == "write":
        path.write_text(made)
    assert made == path.read_text(), f"{path}: look at it, then POOLPILOT_GOLDEN=write"


def test_every_golden_file_has_its_variant() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(IDS)


@pytest.mark.parametrize("chart", ["poolpilot", "poolpilot-crds", "poolpilot-standalone"])
def test_helm_finds_no_fault(helm: Helm, chart: str) -> None:
    values = VARIANTS[chart, "selector"] if chart == "poolpilot-standalone" else None
    said = helm.run("lint", "--strict", "--quiet", str(CHARTS / chart), values=values)
    assert said.code == 0, said.out + said.errors


@pytest.mark.parametrize(
    "version", ["1.31.0", "1.32.0", "1.33.0", "1.34.0", "1.35.0", "1.36.0", NEWEST, "1.31.4-gke.100"]
)
@pytest.mark.parametrize("chart", ["poolpilot", "poolpilot-standalone"])
def test_the_kubernetes_versions_that_are_supported(helm: Helm, chart: str, version: str) -> None:
    values = VARIANTS[chart, "selector"] if chart == "poolpilot-standalone" else None
    assert helm.rendered(chart, values, "--kube-version", version)


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    said = helm.run("template", "x", str(CHARTS / "poolpilot"), "--kube-version", "1.30.9")
    assert said.code != 0 and ">=1.31.0-0" in said.errors and "1.30.9" in said.errors


# ── values that are refused ──────────────────────────────────────────────────

REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("poolpilot", {"replicas": "three"}, ["/replicas", "got string, want integer"]),
    ("poolpilot", {"replicas": -1}, ["/replicas", "minimum"]),
    ("poolpilot", {"replcas": 3}, ["'replcas' not allowed"]),
    ("poolpilot", {"image": {"name": "x"}}, ["/image", "'name' not allowed"]),
    ("poolpilot", {"image": {"digest": "latest"}}, ["/image/digest", "does not match pattern"]),
    ("poolpilot", {"scope": "Cluster"}, ["/scope", "'cluster', 'namespace'"]),
    ("poolpilot", {"scope": "namespace", "watchNamespaces": ["Team_A"]}, ["/watchNamespaces/0"]),
    ("poolpilot", {"watchNamespaces": ["a"]}, ["watchNamespaces: is read with scope: namespace"]),
    ("poolpilot", {"replicas": 2, "leaderElection": False}, ["need leaderElection: true"]),
    ("poolpilot", {"serviceAccount": {"create": False}}, ["serviceAccount.name is needed"]),
    ("poolpilot", {"prometheusUrl": "prometheus:9090"}, ["/prometheusUrl"]),
    ("poolpilot", {"serviceMonitor": {"interval": "30"}}, ["/serviceMonitor/interval"]),
    ("poolpilot", {"resources": {"requests": ["cpu"]}}, ["/resources/requests"]),
    ("poolpilot", {"gateways": {"envoyGateway": [{"namespace": "a"}]}}, ["httpRoute", "missing properties"]),
    (
        "poolpilot",
        {"gateways": {"envoyGateway": [{"namespace": "a", "httpRoute": "b", "gateway": "c", "pickerService": "d"}]}},
        ["picker.spec.tls.mode: Disabled", "it is SelfSigned"],
    ),
    (
        "poolpilot",
        {
            "picker": {"spec": {"tls": {"mode": "Disabled"}}},
            "gateways": {
                "envoyGateway": [
                    {"namespace": "a", "httpRoute": "b", "gateway": "c", "pickerService": "d"},
                    {"namespace": "a", "httpRoute": "e", "gateway": "c", "pickerService": "f", "bufferLimit": "1Mi"},
                ]
            },
        },
        ["Gateway a/c are for all its routes", "32Mi and 1Mi"],
    ),
    ("poolpilot", {"assignedUsers": "yes"}, ["/assignedUsers", "'auto', 'always', 'never'"]),
    ("poolpilot-crds", {"foo": 1}, ["'foo' not allowed"]),
    ("poolpilot-standalone", {}, ["give endpoints", "or selector", "--set selector.app=vllm"]),
    (
        "poolpilot-standalone",
        {"selector": {"a": "b"}, "endpoints": [{"address": "10.0.0.1", "port": 1}]},
        ["endpoints and selector exclude each other"],
    ),
    ("poolpilot-standalone", {"endpoints": ["10.0.0.1:8000"]}, ["/endpoints/0", "want object"]),
    ("poolpilot-standalone", {"endpoints": [{"address": "10.0.0.1"}]}, ["'port'"]),
    ("poolpilot-standalone", {"selector": {"a": "b"}, "targetPorts": [0]}, ["/targetPorts/0"]),
    ("poolpilot-standalone", {"selector": {"a": "b"}, "policy": "best"}, ["/policy", "'predicted-finish'"]),
    ("poolpilot-standalone", {"selector": {"a": "b"}, "serviceMonitor": {"enabled": True}}, ["'serviceMonitor'"]),
]


@pytest.mark.parametrize(("chart", "values", "words"), REFUSED, ids=[str(one[1])[:60] for one in REFUSED])
def test_wrong_values_are_refused_by_name(helm: Helm, chart: str, values: dict[str, Any], words: list[str]) -> None:
    said = helm.refused(chart, values)
    for word in words:
        assert word in said, said


# ── what must hold of all variants ───────────────────────────────────────────


def pods(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in objects:
        if one["kind"] == "Pod":
            yield one["spec"]
        elif "template" in one.get("spec", {}):
            yield one["spec"]["template"]["spec"]


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_pods_are_restricted(helm: Helm, chart: str, variant: str) -> None:
    """As the Pod Security Standard of that name asks, and more."""
    for pod in pods(helm.rendered(chart, VARIANTS[chart, variant])):
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork") and not pod.get("hostPID")
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
        assert all(set(volume) & {"emptyDir", "configMap", "secret"} for volume in pod.get("volumes", ()))


OPENSHIFT = ("--api-versions", "security.openshift.io/v1")


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_pods_name_no_user_where_the_cluster_gives_them_one(helm: Helm, chart: str, variant: str) -> None:
    """OpenShift's restricted-v2 refuses every number that is not of the namespace's range; the flag is for pickers."""
    values = VARIANTS[chart, variant]
    for objects in (
        helm.rendered(chart, values, *OPENSHIFT),
        helm.rendered(chart, values if chart == "poolpilot-crds" else {**values, "assignedUsers": "always"}),
    ):
        for pod in pods(objects):
            assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
            if pod["containers"][0]["name"] == "operator":
                assert parser().parse_args(pod["containers"][0]["args"]).picker_user == "assigned"
    if chart != "poolpilot-crds":
        for pod in pods(helm.rendered(chart, {**values, "assignedUsers": "never"}, *OPENSHIFT)):
            assert pod["securityContext"]["runAsUser"] == 65532


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_pods_do_not_depend_on_what_else_their_namespace_has(helm: Helm, chart: str, variant: str) -> None:
    """Variables of thousands of Services are too long for a command; an account may have its token switched off."""
    for pod in pods(helm.rendered(chart, VARIANTS[chart, variant])):
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is (
            chart == "poolpilot" or bool(VARIANTS[chart, variant].get("selector"))
        )


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_no_budget_keeps_a_node_that_has_a_broken_pod(helm: Helm, chart: str, variant: str) -> None:
    """With one replica, and it not ready, nothing may be evicted otherwise."""
    for one in helm.rendered(chart, VARIANTS[chart, variant]):
        if one["kind"] == "PodDisruptionBudget":
            assert one["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_pods_of_hooks_get_no_proxy_of_a_mesh_which_would_never_end(helm: Helm) -> None:
    objects = helm.rendered("poolpilot")
    [job] = [one["spec"]["template"] for one in objects if one["kind"] == "Job"]
    [test] = [one for one in objects if one["kind"] == "Pod"]
    for one in (job, test):
        assert one["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert one["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"


def test_definitions_of_others_are_no_difference_for_argo_cd_once_the_cluster_has_them(helm: Helm) -> None:
    """It renders with what the cluster serves: after the first time they are not in the manifests any more."""
    found = [one for one in helm.rendered("poolpilot") if one["kind"] == "CustomResourceDefinition"]
    assert len(found) == 3
    for one in found:
        annotations = one["metadata"]["annotations"]
        assert annotations["argocd.argoproj.io/sync-options"] == "Prune=false"
        assert annotations["argocd.argoproj.io/compare-options"] == "IgnoreExtraneous"


def test_routes_of_one_gateway_share_what_is_once_for_a_gateway(helm: Helm) -> None:
    routes = [
        {"namespace": "a", "httpRoute": route, "gateway": gateway, "pickerService": f"{route}-picker"}
        for route, gateway in (("b", "one"), ("c", "one"), ("d", "two"))
    ]
    values = {"picker": {"spec": {"tls": {"mode": "Disabled"}}}, "gateways": {"envoyGateway": routes}}
    objects = helm.rendered("poolpilot", values)
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "ClientTrafficPolicy"]
    assert names == ["one-poolpilot", "two-poolpilot"]
    assert sum(one["kind"] == "EnvoyExtensionPolicy" for one in objects) == 3


def test_ports_of_the_sidecar_are_named_by_their_numbers_where_names_are_not_known(helm: Helm) -> None:
    """By Services before 1.32, and by some network plugins still."""
    objects = helm.rendered("poolpilot-standalone", VARIANTS["poolpilot-standalone", "selector"])
    [service] = [one for one in objects if one["kind"] == "Service"]
    [policy] = [one for one in objects if one["kind"] == "NetworkPolicy"]
    [pod] = pods(objects)
    numbers = {
        port["name"]: port["containerPort"]
        for one in (*pod["initContainers"], *pod["containers"])
        for port in one.get("ports", ())
    }
    assert {one["name"]: one["targetPort"] for one in service["spec"]["ports"]} == {"http": "http", "metrics": 9090}
    assert [one["port"] for one in policy["spec"]["ingress"][0]["ports"]] == [numbers["http"], numbers["metrics"]]


@pytest.mark.parametrize("release", ["llm.v2", "poolpilot.v2", "a" * 53])
@pytest.mark.parametrize("chart", ["poolpilot", "poolpilot-standalone"])
def test_services_have_names_that_a_server_takes_whatever_the_release_is_called(
    helm: Helm, chart: str, release: str
) -> None:
    values = VARIANTS[chart, "selector"] if chart == "poolpilot-standalone" else None
    names = [
        one["metadata"]["name"] for one in helm.rendered(chart, values, release=release) if one["kind"] == "Service"
    ]
    assert names and all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names), names


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_every_object_is_labelled_and_says_where_it_belongs(helm: Helm, chart: str, variant: str) -> None:
    values = VARIANTS[chart, variant]
    objects = helm.rendered(chart, values)
    for one in objects:
        if one["kind"] == "CustomResourceDefinition":
            continue
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "release" and labels["app.kubernetes.io/managed-by"] == "Helm"
        assert values.get("commonLabels", {}).items() <= labels.items()
        assert ("namespace" in one["metadata"]) is not one["kind"].startswith("Cluster")
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))


def rules_of(objects: list[dict[str, Any]], kind: str, suffix: str) -> list[dict[str, Any]]:
    [role] = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def test_rights_of_an_operator_for_all_namespaces(helm: Helm) -> None:
    objects = helm.rendered("poolpilot")
    wanted = [rule.as_rbac() for rule in (*rights.OPERATOR, *rights.OPERATOR_CLUSTER)]
    assert rules_of(objects, "ClusterRole", "operator-home") == wanted
    assert rules_of(objects, "Role", "operator-lease") == [rule.as_rbac() for rule in rights.OPERATOR_HOME]


def test_an_operator_for_namespaces_gets_nothing_of_the_cluster(helm: Helm) -> None:
    objects = helm.rendered("poolpilot", VARIANTS["poolpilot", "namespaced"])
    assert not [one for one in objects if one["kind"].startswith("Cluster")]
    roles = {
        one["metadata"]["namespace"]: one["rules"]
        for one in objects
        if one["kind"] == "Role" and one["metadata"]["name"] == "release-poolpilot-operator-home"
    }
    wanted = [rule.as_rbac() for rule in rights.OPERATOR]
    assert roles == {"home": wanted, "team-a": wanted, "team-b": wanted}
    deployment = next(one for one in objects if one["kind"] == "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert "--watch-namespaces=home,team-a,team-b" in container["args"]


def test_people_get_rights_where_they_have_them_by_the_roles_of_kubernetes(helm: Helm) -> None:
    added = {
        name: [
            (one["metadata"]["name"], one["rules"])
            for one in helm.rendered("poolpilot", VARIANTS["poolpilot", "aggregated"])
            if one["metadata"].get("labels", {}).get(f"rbac.authorization.k8s.io/aggregate-to-{name}") == "true"
        ]
        for name in ("view", "edit", "admin")
    }
    [(name, [rule])] = added["view"]
    assert name == "release-poolpilot-home-view" and rule["verbs"] == ["get", "list", "watch"]
    assert added["edit"] == added["admin"] and len(added["edit"]) == 2
    [rule] = added["edit"][1][1]
    # Statuses are the operator's.
    assert rule["resources"] == ["pickers", "pickers/scale", "loraadapters"]


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=IDS)
def test_nobody_may_raise_his_own_rights(helm: Helm, chart: str, variant: str) -> None:
    for one in helm.rendered(chart, VARIANTS[chart, variant]):
        if not one["kind"].endswith("Role"):
            continue
        for rule in one["rules"]:
            assert not {"*", "escalate", "bind", "impersonate"} & {
                *rule["verbs"],
                *rule["resources"],
                *rule["apiGroups"],
            }
            if "secrets" in rule["resources"]:
                assert not {"list", "watch"} & set(rule["verbs"])


def test_upstreams_definitions_come_where_there_are_none(helm: Helm) -> None:
    """Without a cluster to look at, the versions that it serves tell; so GitOps tools do not overwrite any either."""
    sources = [yaml.safe_load(path.read_text()) for path in (CHARTS / "poolpilot/upstream-crds").iterdir()]
    made = [one for one in helm.rendered("poolpilot") if one["kind"] == "CustomResourceDefinition"]
    for one in made:
        annotations = one["metadata"]["annotations"]
        assert annotations.pop("helm.sh/resource-policy") == "keep"
        assert annotations.pop("argocd.argoproj.io/sync-options") == "Prune=false"
        assert annotations.pop("argocd.argoproj.io/compare-options") == "IgnoreExtraneous"
    for one in sources:
        one["metadata"].setdefault("annotations", {})
    assert {one["metadata"]["name"]: one for one in made} == {one["metadata"]["name"]: one for one in sources}
    served = "inference.networking.k8s.io/v1/InferencePool"
    kinds = {
        one["spec"]["names"]["kind"]
        for one in helm.rendered("poolpilot", None, "--api-versions", served)
        if one["kind"] == "CustomResourceDefinition"
    }
    assert kinds == {"InferenceObjective", "InferenceModelRewrite"}
    never = helm.rendered("poolpilot", {"upstreamCRDs": "never"})
    assert not [one for one in never if one["kind"] == "CustomResourceDefinition"]


@pytest.mark.parametrize("variant", [variant for chart, variant in VARIANTS if chart == "poolpilot"])
def test_the_operator_takes_its_flags(helm: Helm, variant: str) -> None:
    """Of the program itself: a chart must not give flags that its program refuses."""
    values = VARIANTS["poolpilot", variant]
    [deployment] = [one for one in helm.rendered("poolpilot", values) if one["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    given = parser().parse_args(container["args"])
    assert given.namespace == "home" and given.admin_port == container["ports"][0]["containerPort"]
    assert given.watch_namespaces == (("home", "team-a", "team-b") if values.get("scope") == "namespace" else ())
    assert given.leader_election is values.get("leaderElection", True)
    assert given.prometheus_url == values.get("prometheusUrl", "")
    assert given.picker_name_default == values.get("picker", {}).get("name", "default")


def test_two_releases_in_two_namespaces_share_no_name(helm: Helm) -> None:
    first, second = (
        {
            (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
            for one in helm.rendered("poolpilot", {"upstreamCRDs": "never"}, release="same", namespace=namespace)
        }
        for namespace in ("one", "two")
    )
    assert not first & second
