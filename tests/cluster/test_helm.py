"""The whole product as a new user installs it: chart, labelled pool, Envoy; then every day's changes; then its end.

The tests build on each other, in this order, on one release.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from cluster_audit import Asked
from cluster_load import get
from cluster_site import POOL, Site, put_engines, put_envoy
from cluster_stage import ROOT, Space, until
from poolpilot_kube.names import LEGACY_GROUP
from poolpilot_operator import rights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHART: Final = ROOT / "charts/poolpilot"
PICKER: Final = "app.kubernetes.io/component=picker"
OPERATOR: Final = "app.kubernetes.io/component=operator"
CONFIG: Final = """\
apiVersion: poolpilot.dev/v1alpha1
kind: EndpointPickerConfig
poolpilot:
  receipts:
    header: true
"""
SYSTEM: Final = "poolpilot-system"
SERVICE: Final = "llama-picker"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(cluster: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    """The namespace of the release."""
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    values.write_text(json.dumps({"picker": {"spec": {"config": {"inline": CONFIG}}}}))
    where = ["--namespace", SYSTEM, "--create-namespace"]
    await cluster.helm("install", "poolpilot", str(CHART), *where, f"--values={values}", "--wait", "--timeout=3m")
    yield Space(cluster, SYSTEM)
    # Where a test before the last failed: nobody else's pools must be served by it.
    await cluster.helm("uninstall", "poolpilot", "--namespace", SYSTEM, "--ignore-not-found", "--wait", "--timeout=3m")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(system: Space, cluster: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Engines, a pool without a label, and Envoy that knows the pool's Service by name."""
    space = await cluster.space("serving")
    await put_engines(space)
    picker = f"--picker={SERVICE}.{space.name}.svc.cluster.local:9002"
    yield Site(space, await put_envoy(space, tmp_path_factory.mktemp("envoy"), picker, "--picker-tls"))
    await cluster.kubectl("delete", "namespace", space.name, "--wait=false")


async def pods(space: Space, selector: str) -> list[dict[str, Any]]:
    return await space.list("pods", "-l", selector)


async def ours(space: Space) -> list[str]:
    """What the release and its operator made in a namespace."""
    kinds = (
        "deployments,services,serviceaccounts,configmaps,secrets,roles,rolebindings,endpointslices,leases,jobs,pods,"
        "poddisruptionbudgets,networkpolicies,horizontalpodautoscalers,pickers"
    )
    listed = json.loads(await space.kubectl("get", kinds, "-o", "json"))["items"]
    return [
        f"{one['kind']}/{one['metadata']['name']}"
        for one in listed
        if "deletionTimestamp" not in one["metadata"]
        and any("poolpilot" in f"{key}{value}" for key, value in one["metadata"].get("labels", {}).items())
    ]


async def test_nothing_happens_to_a_pool_that_does_not_ask(site: Site) -> None:
    before = await site.space.get("inferencepool", POOL)
    await site.space.available(POOL)
    assert not await site.space.has("service", SERVICE)
    after = await site.space.get("inferencepool", POOL)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert await site.answers(503)


async def test_a_labelled_pool_is_served(site: Site) -> None:
    await site.space.kubectl("label", "inferencepool", POOL, "poolpilot.dev/picker=default")
    await until(site.answers, "nothing is answered", 120)
    assert set(await site.answered()) == set(await site.space.ready(POOL)), "every engine is used"


async def test_kubectl_explains(site: Site, system: Space) -> None:
    """How things are, and what is wrong with a pool that cannot be served: its Service is somebody else's."""

    async def listed() -> bool:
        name, *values, _ = (await system.kubectl("get", "pickers", "--no-headers")).split()
        return (name, values) == ("default", ["1", "1", "1", "True"])

    await until(listed, "the Picker does not say that it serves the pool")
    pool = await site.space.get("inferencepool", POOL)
    other = {
        "apiVersion": pool["apiVersion"],
        "kind": pool["kind"],
        "metadata": {"name": "other", "labels": {"poolpilot.dev/picker": "default"}},
        "spec": {**pool["spec"], "endpointPickerRef": {"name": "foreign", "port": {"number": 9002}}},
    }
    ports = [{"name": "http", "port": 80}]
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "foreign"}, "spec": {"ports": ports}}
    await site.space.apply(foreign, other)

    async def told() -> bool:
        described = await site.space.kubectl("describe", "inferencepool", "other")
        unhealthy = (await system.get("picker", "default"))["status"].get("unhealthyPools", [])
        return "foreign" in described.partition("Events:")[2] and [one["name"] for one in unhealthy] == ["other"]

    await until(told, "neither the pool nor its Picker says what is wrong")
    kept = await site.space.get("service", "foreign")
    assert kept["spec"]["ports"][0]["port"] == 80 and "ownerReferences" not in kept["metadata"]
    await site.space.kubectl("delete", "inferencepool/other", "service/foreign")


async def test_scaling_under_load_fails_nothing(site: Site) -> None:
    await site.check_scaling()


async def test_a_rolling_restart_of_the_engines_fails_nothing(site: Site) -> None:
    await site.check_restart(site.space, POOL, f"app={POOL}")


@pytest.mark.parametrize("selector", [PICKER, OPERATOR], ids=["picker", "operator"])
async def test_a_rolling_restart_of_ours_fails_nothing(selector: str, site: Site, system: Space) -> None:
    [deployment] = [one["metadata"]["name"] for one in await system.list("deployments", "-l", selector)]
    await site.check_restart(system, deployment, selector)


async def test_an_upgrade_to_round_robin_is_a_reload(site: Site, system: Space) -> None:
    before = [one["metadata"]["uid"] for one in await pods(system, PICKER)]
    policy = ["--set", "picker.spec.config.policy=round-robin"]
    await system.helm("upgrade", "poolpilot", str(CHART), *policy, "--wait", "--timeout=3m")
    [picker] = await pods(system, PICKER)

    async def turned() -> bool:
        status, text = await get(picker["status"]["podIP"], "/debug/config", 9090)
        return status == 200 and "round-robin" in text

    await until(turned, "the picker does not take the new policy")
    async with site.load() as load:
        await load.more(100)
    assert load.failures == []
    counts = sorted(load.answered.values())
    assert len(counts) == 2 and counts[1] - counts[0] <= 10, "two engines take turns"
    assert [one["metadata"]["uid"] for one in await pods(system, PICKER)] == before, "no pod was restarted"
    await system.helm("rollback", "poolpilot", "--wait", "--timeout=3m")
    await until(lambda: has_receipts(site), "the first configuration does not come back")


async def has_receipts(site: Site) -> bool:
    try:
        await site.answered(1)
    except KeyError:
        return False
    return True


async def test_a_picker_with_everything_comes_and_goes(site: Site, system: Space) -> None:
    """Rights in one namespace only, an autoscaler, a budget; then none of them; then nothing."""
    spec = {
        "pools": {"namespaces": [site.space.name]},
        "replicas": 2,
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2},
        "tls": {"mode": "SelfSigned"},
    }
    picker = {"apiVersion": "poolpilot.dev/v1alpha1", "kind": "Picker", "metadata": {"name": "full"}}
    await system.apply({**picker, "spec": spec})
    own, there = "poolpilot-full", f"poolpilot-{SYSTEM}-full"
    made = [
        (system, "hpa", own),
        (system, "deployment", own),
        (site.space, "role", there),
        (site.space, "rolebinding", there),
    ]
    for where, kind, name in made:
        await until(lambda where=where, kind=kind, name=name: where.has(kind, name), f"there is no {kind}")
    await system.available("poolpilot-full")
    await system.apply({**picker, "spec": {**spec, "autoscaling": None, "tls": {"mode": "Disabled"}}})

    async def gone(where: Space, kind: str, name: str) -> bool:
        return not await where.has(kind, name)

    await until(lambda: gone(*made[0]), "the autoscaler stays")
    await system.kubectl("delete", "picker", "full")
    for one in made:
        await until(lambda one=one: gone(*one), f"the {one[1]} stays")


async def test_pickers_beside_their_pools_come_and_go(site: Site, system: Space) -> None:
    """Nothing owns what they need in a pool's namespace: the operator removes it, the pods first."""
    picker = {"apiVersion": "poolpilot.dev/v1alpha1", "kind": "Picker", "metadata": {"name": "beside"}}
    spec = {"placement": "PerNamespace", "pools": {"namespaces": [site.space.name]}, "tls": {"mode": "SelfSigned"}}
    await system.apply({**picker, "spec": spec})
    pool = await site.space.get("inferencepool", POOL)
    metadata = {"name": "near", "labels": {"poolpilot.dev/picker": "beside"}}
    ref = {"name": "near-picker", "port": {"number": 9002}}
    near = {name: pool[name] for name in ("apiVersion", "kind")} | {"metadata": metadata}
    await site.space.apply({**near, "spec": {**pool["spec"], "endpointPickerRef": ref}})
    name = f"poolpilot-{SYSTEM}-beside"
    await until(lambda: site.space.has("deployment", name), "no picker comes")
    await site.space.available(name)
    await site.space.kubectl("delete", "inferencepool", "near")
    for kind, one in (
        *((kind, name) for kind in ("deployment", "poddisruptionbudget", "networkpolicy", "role", "serviceaccount")),
        ("secret", f"{name}-tls"),
    ):

        async def gone(kind: str = kind, one: str = one) -> bool:
            return not await site.space.has(kind, one)

        await until(gone, f"the {kind} stays", 120)
    await system.kubectl("delete", "picker", "beside")


async def test_what_somebody_changes_of_ours_is_set_back(site: Site, system: Space) -> None:
    await system.kubectl("delete", "lease", "poolpilot-operator")
    await until(lambda: system.has("lease", "poolpilot-operator"), "the operator takes no new Lease")
    change = {"spec": {"ports": [{"port": 9002, "appProtocol": "http"}]}}
    await site.space.kubectl("patch", "service", SERVICE, "--type=merge", "-p", json.dumps(change))

    async def repaired() -> bool:
        [port] = (await site.space.get("service", SERVICE))["spec"]["ports"]
        return port.get("appProtocol") == "kubernetes.io/h2c"

    await until(repaired, "the Service stays as it was made")


async def test_an_uninstall_leaves_what_is_not_ours(site: Site, system: Space, cluster: Stage) -> None:
    before = await site.space.get("inferencepool", POOL)
    # A user's own Picker stays, and what runs for it goes.
    theirs = {"apiVersion": "poolpilot.dev/v1alpha1", "kind": "Picker", "metadata": {"name": "theirs"}}
    await system.apply({**theirs, "spec": {"pools": {"namespaces": [site.space.name]}}})
    await until(lambda: site.space.has("rolebinding", f"poolpilot-{SYSTEM}-theirs"), "there are no rights")
    await system.available("poolpilot-theirs")
    assert await ours(site.space) and await ours(system)
    await system.helm("uninstall", "poolpilot", "--wait", "--timeout=3m")
    for kind in ("inferencepools.inference.networking.k8s.io", "pickers.poolpilot.dev"):
        await system.kubectl("get", "crd", kind)
    after = await site.space.get("inferencepool", POOL)
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"] == before["spec"]
    assert "finalizers" not in after["metadata"]
    assert (await ours(site.space), await ours(system)) == ([], [])
    assert "finalizers" not in (await system.get("picker", "theirs"))["metadata"]
    await system.kubectl("delete", "picker", "theirs")
    left = await system.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert [one for one in left.split() if "poolpilot" in one] == []


# ── rights ───────────────────────────────────────────────────────────────────

OPERATOR_RULES: Final = (*rights.OPERATOR, *rights.OPERATOR_HOME, *rights.OPERATOR_CLUSTER)
NOT_HERE: Final = {"cert-manager.io", "monitoring.coreos.com"}
"""Groups of kinds that this cluster does not have."""

SELDOM: Final = {
    # The release brings its Lease: only where somebody deleted it.
    Asked("coordination.k8s.io", "leases", "create"),
    # Adapters have tests of their own.
    Asked("poolpilot.dev", "loraadapters/status", "patch"),
}
"""Rights that are needed on other days."""


def granted(rules: tuple[rights.Rule, ...]) -> set[Asked]:
    return {
        Asked(rule.group, resource, verb)
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
        if rule.group not in NOT_HERE
    }


async def test_every_right_was_used(site: Site, cluster: Stage) -> None:
    """From the API server's own log of all that the release did, from its first start to its end, and nothing else."""
    entries = cluster.audit.entries(SYSTEM)
    everyone = [*entries, *cluster.audit.entries(site.space.name)]
    assert [one for one in everyone if one.forbidden] == [], "also by pods that drain, and by an operator that ends"
    used = {
        account: {one.asked for one in entries if one.account == account}
        for account in ("poolpilot-operator", "poolpilot-default", "poolpilot-full")
    }
    picker = used["poolpilot-default"] | used["poolpilot-full"]
    # Without its older group in the cluster there is nothing to watch.
    legacy = {Asked(LEGACY_GROUP, kind, "watch") for kind in ("inferenceobjectives", "inferencemodelrewrites")}
    assert granted(rights.PICKER) - picker == legacy
    # The operator holds what it grants.
    handed_on = granted(rights.PICKER)
    assert granted(OPERATOR_RULES) - handed_on - used["poolpilot-operator"] <= SELDOM
    assert not used["poolpilot-operator"] - granted(OPERATOR_RULES) and not picker - granted(rights.PICKER)
