"""The charts on a real API server: variants taken, releases installed, upgraded and gone, nobody's object touched."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from chart_variants import VARIANTS
from control_planes import definitions
from doctor_stage import FOREIGN, OURS, POOLS, Stage, open_definition
from go_tools import skipped_without_go
from helm import CHARTS
from poolpilot_kube.access import access
from poolpilot_kube.doctor.command import examined
from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.gotools import TOOLS, source_folder

if TYPE_CHECKING:
    from helm import Helm
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOCS = Path(__file__).parents[3] / "docs"
ENVOY_GATEWAY = "github.com/envoyproxy/gateway"
PLURALS = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "GatewayClass": "gatewayclasses",
    "NetworkPolicy": "networkpolicies",
    "EnvoyExtensionPolicy": "envoyextensionpolicies",
    "BackendTrafficPolicy": "backendtrafficpolicies",
    "ClientTrafficPolicy": "clienttrafficpolicies",
    "EnvoyPatchPolicy": "envoypatchpolicies",
}


async def namespace(api: Api, name: str) -> str:
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


async def crds(api: Api) -> dict[str, bytes]:
    """Every CRD as etcd has it, but for the order of its parts."""
    listed = json.loads(await api.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))
    return {one["metadata"]["name"]: msgspec.json.encode(one) for one in listed["items"]}


async def refused(api: Api, manifest: dict[str, Any]) -> str | None:
    """What the server says of an object that it would not take; fields that it does not know included."""
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    query = "fieldManager=test&dryRun=All&fieldValidation=Strict"
    try:
        await api.call(
            "PATCH",
            f"{root}{where}/{plural}/{metadata['name']}?{query}",
            manifest,
            content_type="application/apply-patch+yaml",
        )
    except ApiError as error:
        return str(error)
    return None


# ── installed for real, before the kinds are defined by anybody else ─────────


async def test_a_release_comes_and_goes_and_upstreams_definitions_stay_byte_for_byte(here: Helm, api: Api) -> None:
    """The cluster has InferencePools of another release of upstream; those that it lacks come with the chart."""
    pools = next(one for one in definitions() if one["spec"]["names"]["kind"] == "InferencePool")
    pools["metadata"]["annotations"]["inference.networking.k8s.io/bundle-version"] = "v1.2.0"
    pools["spec"]["names"]["shortNames"] = ["theirs"]
    await api.define([pools])
    name = "inferencepools.inference.networking.k8s.io"
    theirs = (await crds(api))[name]
    team = await namespace(api, "team")
    stage = Stage(api, team)
    await stage.pool(picker=None)
    pool = await api.get(POOLS, "InferencePool", "llama", team)

    flags = ("--namespace", "pp", "--create-namespace")
    said = here.run("install", "poolpilot", str(CHARTS / "poolpilot"), *flags)
    assert said.code == 0, said.errors
    assert "There are InferencePools, and none asks for the Picker" in said.out
    installed = await crds(api)
    assert installed[name] == theirs
    assert {one["metadata"]["name"] for one in definitions()} <= set(installed)
    picker = await api.get(OURS, "Picker", "default", "pp")
    assert picker["spec"]["config"] == {"policy": "predicted-finish"}

    await stage.pool()
    values = {"picker": {"spec": {"config": {"policy": "round-robin"}}}, "logLevel": "debug"}
    said = here.run("upgrade", "poolpilot", str(CHARTS / "poolpilot"), *flags, values=values)
    assert said.code == 0, said.errors
    assert "1 InferencePool with the label poolpilot.dev/picker=default will be served at once" in said.out
    picker = await api.get(OURS, "Picker", "default", "pp")
    assert picker["spec"]["config"] == {"policy": "round-robin"} and picker["metadata"]["generation"] == 2
    said = here.run("rollback", "poolpilot", "1", "--namespace", "pp")
    assert said.code == 0, said.errors
    picker = await api.get(OURS, "Picker", "default", "pp")
    assert picker["spec"]["config"] == {"policy": "predicted-finish"}

    # Nothing runs pods here, so the hook's Job cannot; what it does is tested below.
    said = here.run("uninstall", "poolpilot", "--namespace", "pp", "--no-hooks")
    assert said.code == 0, said.errors
    assert await crds(api) == installed
    for kind, version, plural in (("Picker", OURS, "pickers"), ("Deployment", "apps/v1", "deployments")):
        left = json.loads(await api.call("GET", f"/apis/{version}/namespaces/pp/{plural}"))["items"]
        assert left == [], kind
    after = await api.get(POOLS, "InferencePool", "llama", team)
    assert after["metadata"]["uid"] == pool["metadata"]["uid"] and after["spec"] == pool["spec"]
    assert "finalizers" not in after["metadata"]


async def test_the_chart_of_definitions_takes_ours_over_and_leaves_them_behind(here: Helm, api: Api) -> None:
    before = await crds(api)
    ours = {name for name in before if name.endswith(".poolpilot.dev")}
    assert len(ours) == 2, "installed by the release before"
    chart, flags = str(CHARTS / "poolpilot-crds"), ("--namespace", "pp", "--take-ownership", "--force-conflicts")
    said = here.run("install", "poolpilot-crds", chart, *flags)
    assert said.code == 0, said.errors
    managed = await crds(api)
    assert {name for name in before if managed[name] != before[name]} == ours, "those of others are not touched"
    said = here.run("upgrade", "poolpilot-crds", chart, "--namespace", "pp")
    assert said.code == 0, said.errors
    await Stage(api, "pp").picker("kept")
    said = here.run("uninstall", "poolpilot-crds", "--namespace", "pp")
    assert said.code == 0 and "resource policy" in said.out + said.errors
    assert set(await crds(api)) == set(before)
    await api.get(OURS, "Picker", "kept", "pp")


async def test_a_configuration_gives_way_to_a_policy(here: Helm, api: Api) -> None:
    """As docs/operations.md tells: with --reuse-values null takes nothing away."""
    chart = str(CHARTS / "poolpilot")
    config = "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\n"
    values = {"scope": "namespace", "picker": {"spec": {"config": {"inline": config}}}}
    flags = ("same", chart, "--namespace", "inlined")
    assert here.run("install", *flags, "--create-namespace", values=values).code == 0
    change = ("--set", "picker.spec.config.inline=null", "--set", "picker.spec.config.policy=round-robin")
    said = here.run("upgrade", *flags, "--reuse-values", *change)
    assert said.code != 0 and "give exactly one of policy, inline and configMapRef" in said.errors
    said = here.run("upgrade", *flags, "--reset-then-reuse-values", *change)
    assert said.code == 0, said.errors
    picker = await api.get(OURS, "Picker", "default", "inlined")
    assert picker["spec"]["config"] == {"policy": "round-robin"}
    assert here.run("uninstall", "same", "--namespace", "inlined", "--no-hooks").code == 0


async def test_two_releases_in_two_namespaces(here: Helm, api: Api) -> None:
    """Neither takes anything of the other, and one stays whole when the other goes."""
    chart, values = str(CHARTS / "poolpilot"), {"scope": "namespace"}
    for name in ("one", "two"):
        said = here.run("install", "same", chart, "--namespace", name, "--create-namespace", values=values)
        assert said.code == 0, said.errors
        assert f"that ask for it in: {name}." in said.out
    roles = json.loads(await api.call("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"))["items"]
    assert not [one["metadata"]["name"] for one in roles if "poolpilot" in one["metadata"]["name"]]
    assert here.run("uninstall", "same", "--namespace", "one", "--no-hooks").code == 0
    await api.get("apps/v1", "Deployment", "same-poolpilot-operator", "two")
    await api.get(OURS, "Picker", "default", "two")


async def test_a_tenant_without_any_right_of_the_cluster_installs_in_his_namespaces(
    helm: Helm, api: Api, plane: ControlPlane
) -> None:
    """He may do all in two namespaces, and not even see definitions or other namespaces."""
    group = "rbac.authorization.k8s.io"
    for name in ("tenant", "tenant-b"):
        binding = Stage(api, await namespace(api, name)).named(f"{group}/v1", "RoleBinding", "tenant")
        subjects = [{"kind": "User", "name": "tenant", "apiGroup": group}]
        role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": group}
        await api.apply({**binding, "roleRef": role, "subjects": subjects})
    his = replace(helm, kubeconfig=plane.kubeconfig_of("tenant", ["system:authenticated"]))
    flags = ("--namespace", "tenant", "--skip-crds")
    values = {"scope": "namespace", "watchNamespaces": ["tenant-b"], "upstreamCRDs": "never"}
    async with asyncio.timeout(60):
        while (said := his.run("install", "his", str(CHARTS / "poolpilot"), *flags, values=values)).code != 0:
            # The server's own view of its rules comes a moment later.
            assert "forbidden" in said.errors and "customresourcedefinitions" not in said.errors, said.errors
    assert "that ask for it in: tenant, tenant-b." in said.out
    said = his.run("upgrade", "his", str(CHARTS / "poolpilot"), "--namespace", "tenant", values=values)
    assert said.code == 0, said.errors
    said = his.run("uninstall", "his", "--namespace", "tenant", "--no-hooks")
    assert said.code == 0, said.errors
    said = his.run("install", "his", str(CHARTS / "poolpilot"), "--namespace", "tenant", values={"scope": "cluster"})
    assert said.code != 0 and "forbidden" in said.errors


async def test_a_release_gives_its_lease_up_and_takes_it_again(here: Helm, api: Api) -> None:
    """The server has filled in a rolling update by then, which it does not take beside Recreate."""
    release = ("turns", str(CHARTS / "poolpilot"), "--namespace", "turns")
    said = here.run("install", *release, "--create-namespace", values={"scope": "namespace"})
    assert said.code == 0, said.errors
    for elects, strategy in ((False, "Recreate"), (False, "Recreate"), (True, "RollingUpdate")):
        said = here.run("upgrade", *release, values={"scope": "namespace", "leaderElection": elects})
        assert said.code == 0, said.errors
        found = await api.get("apps/v1", "Deployment", "turns-poolpilot-operator", "turns")
        assert found["spec"]["strategy"]["type"] == strategy
    assert here.run("uninstall", "turns", "--namespace", "turns", "--no-hooks").code == 0


# ── every variant ────────────────────────────────────────────────────────────


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kinds(api: Api) -> Api:
    """With ours, real ones of Envoy Gateway, and open ones of other projects."""
    with skipped_without_go():
        source = await source_folder(TOOLS / "envoy-gateway", ENVOY_GATEWAY)
    folder = source / "charts/gateway-helm/charts/crds/crds"
    texts = [
        path.read_text() for path in (*sorted(folder.glob("gatewayapi-crds.yaml")), *folder.glob("generated/*.yaml"))
    ]
    found = [
        one for text in texts for one in yaml.safe_load_all(text) if one and one["kind"] == "CustomResourceDefinition"
    ]
    real = {one["metadata"]["name"] for one in found}
    assert {"envoyextensionpolicies.gateway.envoyproxy.io", "httproutes.gateway.networking.k8s.io"} <= real
    others = [open_definition(*kind) for kind in FOREIGN if f"{kind[3]}.{kind[0]}" not in real]
    # One version of each: two of one group and kind are two definitions here.
    await api.define([*definitions(), *found, *others])
    for name in ("home", "team-a", "team-b", "serving", "edge"):
        await namespace(api, name)
    return api


@pytest.mark.parametrize(("chart", "variant"), VARIANTS, ids=["-".join(one) for one in VARIANTS])
async def test_the_server_takes_every_object_of_every_variant(helm: Helm, kinds: Api, chart: str, variant: str) -> None:
    """As `kubectl apply --dry-run=server`, and no field that it does not know."""
    for manifest in helm.rendered(chart, VARIANTS[chart, variant]):
        said = await refused(kinds, manifest)
        assert said is None, said
        if manifest["kind"] == "ServiceAccount":
            # A pod is taken only where its account is there.
            await kinds.apply(manifest)


async def test_a_field_that_the_server_does_not_know_is_found(helm: Helm, kinds: Api) -> None:
    """The test above can fail."""
    manifests = {one["kind"]: one for one in helm.rendered("poolpilot", VARIANTS["poolpilot", "envoy-gateway"])}
    manifests["Deployment"]["spec"]["template"]["spec"]["containers"][0]["probe"] = {}
    manifests["EnvoyExtensionPolicy"]["spec"]["extProc"][0]["processingMode"]["request"]["body"] = "Full"
    manifests["Picker"]["spec"]["config"] = {"policy": "best"}
    for kind, word in (("Deployment", "probe"), ("EnvoyExtensionPolicy", "Full"), ("Picker", "best")):
        said = await refused(kinds, manifests[kind])
        assert said is not None and word in said


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest.get("spec", {})
    return [spec] if manifest["kind"] == "Pod" else [spec["template"]["spec"]] if "template" in spec else []


async def test_pods_pass_the_strictest_admission(helm: Helm, kinds: Api) -> None:
    """Pod Security Standard "restricted", enforced by the server itself."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    await kinds.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": label}})
    strict = Stage(kinds, "strict")
    await kinds.apply(strict.named("v1", "ServiceAccount", "default"))
    specs = [
        {**spec, "serviceAccountName": "default", "restartPolicy": "Always", "priorityClassName": ""}
        for (chart, _), values in VARIANTS.items()
        for manifest in helm.rendered(chart, values)
        for spec in pods(manifest)
    ]
    assert len(specs) >= len(VARIANTS)
    for spec in specs:
        said = await refused(kinds, {**strict.named("v1", "Pod", "one"), "spec": spec})
        assert said is None, said
    container = {**specs[0]["containers"][0], "securityContext": {}}
    said = await refused(kinds, {**strict.named("v1", "Pod", "one"), "spec": {**specs[0], "containers": [container]}})
    assert said is not None and "violates PodSecurity" in said


# ── pages ────────────────────────────────────────────────────────────────────


def blocks(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["install.md", "gateways.md"])
async def test_what_the_pages_tell_people_to_apply_is_taken(helm: Helm, kinds: Api, page: str) -> None:
    """Objects by the server, values by Helm: nobody should find out by trying that a page is wrong."""
    taken = 0
    for block in blocks(page):
        values = re.match(r"# values of (\S+)", block)
        if values is not None:
            for manifest in helm.rendered(values[1].rstrip(":"), yaml.safe_load(block)):
                if manifest["kind"] not in {"Pod", "Job"}:
                    said = await refused(kinds, manifest)
                    assert said is None, said
            taken += 1
        for manifest in yaml.safe_load_all(block):
            if "apiVersion" in manifest:
                said = await refused(kinds, manifest)
                assert said is None, said
                taken += 1
    assert taken >= 2, "a page without examples is not what this is for"


# ── hooks, under their own rights ────────────────────────────────────────────


async def hook(helm: Helm, api: Api, name: str, values: dict[str, Any]) -> tuple[list[str], str]:
    """Account and rights of a hook are made; its command, and the user that it runs as."""
    objects = [one for one in helm.rendered("poolpilot", values) if one["metadata"]["name"].startswith(name)]
    runs = [one for one in objects if one["kind"] in {"Pod", "Job"}]
    for one in objects:
        if one not in runs:
            await api.apply(one)
    [made] = runs
    pod = made["spec"]["template"]["spec"] if made["kind"] == "Job" else made["spec"]
    [container] = pod["containers"]
    return [*container["command"], *container["args"]], f"system:serviceaccount:home:{pod['serviceAccountName']}"


async def allowed(plane: ControlPlane, user: str, namespaces: list[str]) -> Path:
    """A kubeconfig of the user, once the server knows the rights."""
    kubeconfig = plane.kubeconfig_of(user, ["system:authenticated"])
    async with asyncio.timeout(30):
        while "not-allowed" in {one.check for one in (await examined(access(kubeconfig), namespaces)).findings}:
            await asyncio.sleep(0.05)
    return kubeconfig


def run(argv: list[str], kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", *argv] if argv[0] == "poolpilot" else [sys.executable, *argv[1:]]
    return subprocess.run(
        program,
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=100,
    )


async def test_the_test_of_a_release_may_read_all_that_it_looks_at(helm: Helm, kinds: Api, plane: ControlPlane) -> None:
    stage = Stage(kinds, "home")
    await stage.sound()
    argv, user = await hook(helm, kinds, "release-poolpilot-test", {})
    kubeconfig = await allowed(plane, user, [])
    done = await asyncio.to_thread(run, argv, kubeconfig)
    assert "cannot be listed" not in done.stdout and "looked at" in done.stdout, done.stderr


async def test_in_namespaces_the_test_of_a_release_may_read_those(helm: Helm, kinds: Api, plane: ControlPlane) -> None:
    values = VARIANTS["poolpilot", "namespaced"]
    argv, user = await hook(helm, kinds, "few-test", {**values, "fullnameOverride": "few"})
    assert argv[-1] == "--namespace=home,team-a,team-b"
    kubeconfig = plane.kubeconfig_of(user, ["system:authenticated"])
    async with asyncio.timeout(30):
        while [
            one
            for one in (await examined(access(kubeconfig), ["home", "team-a", "team-b"])).findings
            if one.check == "not-allowed" and not one.about.startswith("customresource")
        ]:
            await asyncio.sleep(0.05)
    report = await examined(access(kubeconfig), ["serving"])
    assert "not-allowed" in {one.check for one in report.findings}, "nothing of other namespaces"


def made_by_an_operator(stage: Stage, picker: str = "default", operator: str = "home") -> list[dict[str, Any]]:
    labels = {
        "poolpilot.dev/operator": operator,
        "app.kubernetes.io/managed-by": "poolpilot",
        "poolpilot.dev/picker-namespace": "home",
        "poolpilot.dev/picker": picker,
    }
    service = stage.named("v1", "Service", f"{picker}-service", labels=labels)
    config = stage.named("v1", "ConfigMap", f"{picker}-config", labels=labels)
    slices = stage.named("discovery.k8s.io/v1", "EndpointSlice", f"{picker}-slice", labels=labels)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{picker}-of-{operator}", "labels": labels},
        "rules": [],
    }
    return [
        {**service, "spec": {"ports": [{"port": 9002}]}},
        {**config, "data": {}},
        {**slices, "addressType": "IPv4", "endpoints": []},
        role,
    ]


async def there(api: Api, manifest: dict[str, Any]) -> bool:
    metadata = manifest["metadata"]
    try:
        await api.get(manifest["apiVersion"], manifest["kind"], metadata["name"], metadata.get("namespace", ""))
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


async def test_clean_up_removes_what_its_operator_made_and_nothing_else(
    helm: Helm, kinds: Api, plane: ControlPlane
) -> None:
    """Also where no operator runs, and for Pickers of users, which stay; under the rights of its own account."""
    stage, team = Stage(kinds, "home"), Stage(kinds, "team-a")
    await stage.sound()
    await team.pool()
    account = stage.named(
        "v1", "ServiceAccount", "own", labels=made_by_an_operator(team, "own")[0]["metadata"]["labels"]
    )
    secret = {**stage.named("v1", "Secret", "own-tls", labels=account["metadata"]["labels"]), "type": "Opaque"}
    own = {**stage.named(OURS, "Picker", "own"), "spec": {}}
    mine = [*made_by_an_operator(team), *made_by_an_operator(team, "own"), account, secret]
    others = [own, *made_by_an_operator(team, "another", "elsewhere"), *(await foreign(team))]
    for one in (*mine, *others):
        await kinds.apply(one)
    argv, user = await hook(helm, kinds, "release-poolpilot-cleanup", {"cleanup": {"timeoutSeconds": 5}})
    kubeconfig = plane.kubeconfig_of(user, ["system:authenticated"])
    async with asyncio.timeout(60):
        while (done := await asyncio.to_thread(run, argv, kubeconfig)).returncode != 0:
            assert ": 403: " in done.stderr, done.stderr
    assert "the operator has left 4 objects after 5 s" in done.stdout
    assert "9 objects are left that the operator made; deleting them" in done.stdout
    assert [await there(kinds, one) for one in mine] == [False] * len(mine)
    assert [await there(kinds, one) for one in others] == [True] * len(others)
    assert not await there(kinds, stage.named(OURS, "Picker", "default"))
    await kinds.get(POOLS, "InferencePool", "llama", "team-a")
    again = await asyncio.to_thread(run, argv, kubeconfig)
    assert (again.returncode, again.stdout) == (0, ""), "nothing is there any more"


async def foreign(stage: Stage) -> list[dict[str, Any]]:
    """A Service that somebody else made."""
    service = stage.named("v1", "Service", "somebodys", labels={"app.kubernetes.io/managed-by": "Helm"})
    return [{**service, "spec": {"ports": [{"port": 80}]}}]


async def test_clean_up_without_rights_says_what_it_lacks(plane: ControlPlane, kinds: Api) -> None:
    nobody = plane.kubeconfig_of("nobody")
    argv = ["python", "-m", "poolpilot_kube.cleanup", "--namespace", "home", "--picker", "default"]
    done = await asyncio.to_thread(run, argv, nobody)
    assert done.returncode == 1 and "403" in done.stderr and "pickers" in done.stderr
