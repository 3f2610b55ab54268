"""What Helm makes of the charts: golden manifests, values that are refused, what every pod must have.

POOLPILOT_GOLDEN=write rewrites the golden files.
"""

from __future__ import annotations

import os
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
