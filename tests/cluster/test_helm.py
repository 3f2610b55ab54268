"""The whole product as a new user installs it: chart, labelled pool, Envoy; then every day's changes; then its end.

The tests build on each other, in this order, on one release.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from cluster_load import ask, get
from cluster_site import CONFIG, POOL, Site, put_engines, put_envoy
from cluster_stage import ROOT, Space, until
from poolpilot_lab.client.pool import HttpClient
from poolpilot_operator import certificates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHART: Final = ROOT / "charts/poolpilot"
PICKER: Final = "app.kubernetes.io/component=picker"
OPERATOR: Final = "app.kubernetes.io/component=operator"
SYSTEM: Final = "poolpilot-system"
SERVICE: Final = "llama-picker"
OURS: Final = "poolpilot.dev/v1alpha1"
ANYBODYS: Final = "inferencepools,pickers,pods,services,deployments,configmaps,secrets,serviceaccounts"
RELOADED: Final = 'poolpilot_config_loads_total{result="accepted"} 2.0'


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
        "poddisruptionbudgets,networkpolicies,horizontalpodautoscalers,servicemonitors,certificates,pickers"
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
    await site.space.apply(foreign)
    made = await site.space.get("service", "foreign")
    await site.space.apply(other)

    async def told() -> bool:
        described = await site.space.kubectl("describe", "inferencepool", "other")
        unhealthy = (await system.get("picker", "default"))["status"].get("unhealthyPools", [])
        return "foreign" in described.partition("Events:")[2] and [one["name"] for one in unhealthy] == ["other"]

    await until(told, "neither the pool nor its Picker says what is wrong")
    described = await site.space.kubectl("describe", "inferencepool", "other")
    [event] = [line for line in described.partition("Events:")[2].splitlines() if "foreign" in line]
    assert event.split()[:2] == ["Warning", "ServiceNotOurs"] and "delete it, or name another Service" in event
    conditions, _, pools = (await system.kubectl("describe", "picker", "default")).partition("Unhealthy Pools:")
    assert all(f"Type:                  {name}" in conditions for name in ("Accepted", "Programmed", "Ready"))
    assert "ServiceNotOurs" in pools and f"Service {site.space.name}/foreign exists and was not made by" in pools
    heading, row = (await system.kubectl("get", "pickers", "-o", "wide")).splitlines()
    assert heading.split() == ["NAME", "POOLS", "HEALTHY", "REPLICAS", "READY", "REASON", "PLACEMENT", "AGE"]
    assert row.split()[:-1] == ["default", "2", "1", "1", "True", "Ready", "Shared"]
    kept = await site.space.get("service", "foreign")
    assert kept["metadata"]["uid"] == made["metadata"]["uid"]
    assert kept["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"], "not touched at all"
    await site.space.kubectl("delete", "inferencepool/other", "service/foreign")


def adapter(name: str, **spec: Any) -> dict[str, Any]:
    """On one endpoint."""
    wanted = {"poolRef": {"name": POOL}, "source": {"path": f"/adapters/{name}"}, "endpoints": 1, **spec}
    return {"apiVersion": OURS, "kind": "LoraAdapter", "metadata": {"name": name}, "spec": wanted}


async def test_adapters_are_placed_served_and_placed_again(site: Site) -> None:
    """Five on three engines with two slots each; an engine goes, and what it had is served again."""
    space, names = site.space, [f"lora-{number}" for number in range(5)]
    await space.apply(*map(adapter, names))

    async def places() -> dict[str, str]:
        """Adapter → pod, of those that say that they are ready."""
        found = await space.list("loraadapters")
        said = {one["metadata"]["name"]: one.get("status", {}) for one in found}
        return {
            name: status["endpoints"][0]["pod"]
            for name, status in said.items()
            if any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
        }

    async def all_served() -> bool:
        """Each by the pod that its status names, which is there."""
        where, ready = await places(), await space.ready(POOL)
        if set(where) != set(names) or not set(where.values()) <= set(ready) or len(ready) != 3:
            return False
        with contextlib.closing(HttpClient(site.host, site.port)) as client:
            return [(await ask(client, name, "hello")).pod for name in names] == [where[name] for name in names]

    await until(all_served, "not every adapter is served where it is said to be")
    where = await places()
    assert sorted(Counter(where.values()).values()) == [1, 2, 2]
    await space.kubectl("delete", "pod", where["lora-0"], "--wait=false")
    await until(all_served, "not every adapter is served again")
    assert sorted(Counter((await places()).values()).values()) == [1, 2, 2]
    assert where["lora-0"] not in (await places()).values()
    listed = {line.split()[0]: line.split()[1:6] for line in (await space.kubectl("get", "loraadapters")).splitlines()}
    assert listed["lora-0"] == [POOL, "lora-0", "1", "1", "True"]

    # The name is taken by the base model.
    await space.apply(adapter("broken", adapterName=POOL))

    async def told() -> bool:
        described = await space.kubectl("describe", "loraadapter", "broken")
        return "LoadFailed" in described and "the engine's base model is called 'llama' too" in described

    await until(told, "what is wrong with an adapter is not told")
    await space.kubectl("delete", "loraadapters", "--all")

    async def unloaded() -> bool:
        return not await space.has("configmap", f"poolpilot-adapters.{POOL}")

    await until(unloaded, "adapters stay")


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
    _, metrics = await get(picker["status"]["podIP"], "/metrics", 9090)
    assert RELOADED in metrics, "by one reload after the first"
    async with site.load() as load:
        await load.more(100)
    assert load.failures == []
    counts = sorted(load.answered.values())
    assert set(load.answered) == set(await site.space.ready(POOL)) and counts[-1] - counts[0] <= 10, "by turns"
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
        "tls": {"mode": "CertManager", "issuerRef": {"name": "ca"}},
    }
    # As cert-manager would: none is here.
    data = certificates.made(certificates.names("poolpilot-full", SYSTEM), datetime.now(UTC))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "poolpilot-full-tls"},
    }
    await system.apply({**secret, "data": data})
    picker = {"apiVersion": OURS, "kind": "Picker", "metadata": {"name": "full"}}
    await system.apply({**picker, "spec": spec})
    own, there = "poolpilot-full", f"poolpilot-{SYSTEM}-full"
    made = [
        (system, "hpa", own),
        (system, "deployment", own),
        (system, "certificate", own),
        (system, "servicemonitor", own),
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
    picker = {"apiVersion": OURS, "kind": "Picker", "metadata": {"name": "beside"}}
    spec = {"placement": "PerNamespace", "pools": {"namespaces": [site.space.name]}}
    by_others = {"mode": "CertManager", "issuerRef": {"name": "ca"}}
    await system.apply({**picker, "spec": {**spec, "tls": by_others}})
    pool = await site.space.get("inferencepool", POOL)
    metadata = {"name": "near", "labels": {"poolpilot.dev/picker": "beside"}}
    ref = {"name": "near-picker", "port": {"number": 9002}}
    near = {name: pool[name] for name in ("apiVersion", "kind")} | {"metadata": metadata}
    await site.space.apply({**near, "spec": {**pool["spec"], "endpointPickerRef": ref}})
    name = f"poolpilot-{SYSTEM}-beside"
    await until(lambda: site.space.has("certificate", name), "no certificate is asked for")
    await system.apply({**picker, "spec": {**spec, "tls": {"mode": "SelfSigned"}}})
    await until(lambda: site.space.has("secret", f"{name}-tls"), "no certificate comes")
    assert not await site.space.has("certificate", name), "it would go on writing into the Secret"
    await site.space.available(name)
    await site.space.kubectl("delete", "inferencepool", "near")
    for kind, one in (
        *((kind, name) for kind in ("deployment", "poddisruptionbudget", "networkpolicy", "role", "serviceaccount")),
        ("secret", f"{name}-tls"),
        ("servicemonitor", name),
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
    # A user's own Pickers stay, and what runs for them goes, also for a pool.
    theirs, certified = [
        {"apiVersion": OURS, "kind": "Picker", "metadata": {"name": n}} for n in ("theirs", "certified")
    ]
    only = {"pools": {"namespaces": [site.space.name]}, "autoscaling": {"maxReplicas": 2}}
    by_others = {"mode": "CertManager", "issuerRef": {"name": "ca"}}
    metadata = {"name": "kept", "labels": {"poolpilot.dev/picker": "theirs"}}
    ref = {"name": "kept-picker", "port": {"number": 9002}}
    kept = {name: before[name] for name in ("apiVersion", "kind")} | {"metadata": metadata}
    await system.apply({**theirs, "spec": only}, {**certified, "spec": {"tls": by_others}})
    await site.space.apply({**kept, "spec": {**before["spec"], "endpointPickerRef": ref}})
    await until(lambda: site.space.has("rolebinding", f"poolpilot-{SYSTEM}-theirs"), "there are no rights")
    await until(lambda: site.space.has("endpointslice", "kept-picker-poolpilot"), "the pool is not served")
    await until(lambda: system.has("certificate", "poolpilot-certified"), "no certificate is asked for")
    await system.available("poolpilot-theirs")
    assert await ours(site.space) and await ours(system)
    await system.helm("uninstall", "poolpilot", "--wait", "--timeout=3m")
    for kind in ("inferencepools.inference.networking.k8s.io", "pickers.poolpilot.dev"):
        await system.kubectl("get", "crd", kind)
    after = await site.space.get("inferencepool", POOL)
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and after["spec"] == before["spec"]

    async def gone() -> bool:
        return (await ours(site.space), await ours(system)) == ([], [])

    # What belongs to objects of the release is collected after these: EndpointSlices of its Service, pods of a Job.
    await until(gone, "something of ours stays")
    for space in (site.space, system):
        for one in json.loads(await space.kubectl("get", ANYBODYS, "-o", "json"))["items"]:
            assert not [name for name in one["metadata"].get("finalizers", ()) if "poolpilot" in name]
    assert [one["metadata"]["name"] for one in await system.list("pickers")] == ["certified", "theirs"]
    await system.kubectl("delete", "pickers", "--all")
    left = await system.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert [one for one in left.split() if "poolpilot" in one] == []
