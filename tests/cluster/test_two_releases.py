"""Two releases, each for its own namespace alone: nobody's objects are touched; and one loses its leader."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from cluster_load import get
from cluster_stage import ROOT, Space, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHART: Final = ROOT / "charts/poolpilot"
OPERATOR: Final = "app.kubernetes.io/component=operator"


def pool(name: str) -> dict[str, Any]:
    """A labelled pool without pods."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "labels": {"poolpilot.dev/picker": "default"}},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": f"{name}-picker", "port": {"number": 9002}},
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def spaces(cluster: Stage) -> AsyncIterator[tuple[Space, Space, Space]]:
    """Two with a release, the first with two operators, and one without."""
    made = [await cluster.space(name) for name in ("red", "blue", "grey")]
    for space, replicas in ((made[0], 2), (made[1], 1)):
        values = f"scope=namespace,replicas={replicas}"
        await space.helm("install", "poolpilot", str(CHART), "--set", values, "--wait", "--timeout=3m")
    for space in made:
        await space.apply(pool("llama"))
    yield made[0], made[1], made[2]
    await asyncio.gather(*(space.helm("uninstall", "poolpilot", "--wait", "--timeout=3m") for space in made[:2]))
    await cluster.kubectl("delete", "namespace", *(space.name for space in made), "--wait=false")


async def endpoints(space: Space, service: str) -> set[str]:
    """Namespaces of the picker pods behind a Service."""
    slices = await space.list("endpointslices", "-l", f"kubernetes.io/service-name={service}")
    return {point["targetRef"]["namespace"] for one in slices for point in one.get("endpoints") or ()}


async def test_each_serves_its_own_namespace(spaces: tuple[Space, Space, Space]) -> None:
    red, blue, grey = spaces
    for space in (red, blue):

        async def served(space: Space = space) -> bool:
            return await endpoints(space, "llama-picker") == {space.name}

        await until(served, f"the pool of {space.name} is not served by its own pickers")
    assert not await grey.has("service", "llama-picker")
    for kind in ("clusterroles", "clusterrolebindings"):
        names = await red.stage.kubectl("get", kind, "-o", "name")
        assert [one for one in names.split() if "poolpilot" in one] == []
    for space in (red, blue):
        entries = space.stage.audit.entries(space.name)
        assert [one for one in entries if one.forbidden] == []
        assert {one.asked_in for one in entries} == {space.name}, "nobody asks for anything elsewhere"
    for space in spaces:
        assert await writers(space, "inferencepool", "llama") == {"kubectl-client-side-apply"}


async def writers(space: Space, kind: str, name: str) -> set[str]:
    """Who ever wrote to an object what it has now."""
    said = await space.kubectl("get", kind, name, "-o", "json", "--show-managed-fields")
    return {one["manager"] for one in json.loads(said)["metadata"]["managedFields"]}


RULES: Final = [
    ("", "services"),
    ("discovery.k8s.io", "endpointslices"),
    ("apps", "deployments"),
    ("poolpilot.dev", "pickers/status"),
    ("coordination.k8s.io", "leases"),
]


@pytest.mark.parametrize(("group", "resource"), RULES, ids=[resource for _, resource in RULES])
async def test_a_rule_that_is_missing_is_missed(group: str, resource: str, spaces: tuple[Space, Space, Space]) -> None:
    """Without it something does not happen, and happens as soon as it is there again."""
    _, blue, _ = spaces
    blue.stage.audit.expected.add((blue.name, group, resource))
    roles = [one for one in await blue.list("roles") if "operator" in one["metadata"]["name"]]
    kept = [one for one in roles if any(grants(rule, group, resource) for rule in one["rules"])]
    for role in kept:
        await put_rules(blue, role, [rule for rule in role["rules"] if not grants(rule, group, resource)])
    name = f"without-{resource.replace('/', '-')}"
    await blue.apply(pool(name))
    replicas = 1 + (await blue.get("picker", "default"))["spec"]["replicas"] % 2
    await blue.kubectl("patch", "picker", "default", "--type=merge", "-p", json.dumps({"spec": {"replicas": replicas}}))

    async def missed() -> bool:
        entries = blue.stage.audit.entries(blue.name)
        return any(one.forbidden and (one.asked.group, one.asked.resource) == (group, resource) for one in entries)

    async def done() -> bool:
        """What the right is for."""
        match resource:
            case "services":
                return await blue.has("service", f"{name}-picker")
            case "endpointslices":
                return bool(await endpoints(blue, f"{name}-picker"))
            case "deployments":
                return (await blue.get("deployment", "poolpilot-default"))["spec"]["replicas"] == replicas
            case "pickers/status":
                picker = await blue.get("picker", "default")
                return picker["status"]["observedGeneration"] == picker["metadata"]["generation"]
        return await leads(blue)

    async def failed() -> bool:
        return await missed() and not await done()

    # A leader that cannot renew its Lease goes on for 10 s.
    await until(failed, f"nobody misses {resource}")
    for role in kept:
        await put_rules(blue, role, role["rules"])

    async def served() -> bool:
        return await done() and await endpoints(blue, f"{name}-picker") == {blue.name}

    await until(served, "the pool is not served although every right is back", 90)
    await blue.kubectl("delete", "inferencepool", name)


async def put_rules(space: Space, role: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    await space.kubectl("patch", "role", role["metadata"]["name"], "--type=merge", "-p", json.dumps({"rules": rules}))


async def leads(space: Space) -> bool:
    """Whether the one operator there is says that it may write."""
    [pod] = await space.list("pods", "-l", OPERATOR)
    _, text = await get(pod["status"]["podIP"], "/metrics", 8080)
    return "poolpilot_operator_leader 1" in text


def grants(rule: dict[str, Any], group: str, resource: str) -> bool:
    return group in rule["apiGroups"] and resource in rule["resources"]


async def holder(space: Space) -> str:
    """The pod that leads."""
    lease = await space.get("lease", "poolpilot-operator")
    return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]


async def test_a_standby_takes_over_when_the_leader_dies(spaces: tuple[Space, Space, Space]) -> None:
    red, *_ = spaces
    await red.available("poolpilot-operator")
    before = await holder(red)
    assert before in {one["metadata"]["name"] for one in await red.list("pods", "-l", OPERATOR)}
    await red.kubectl("delete", "pod", before, "--grace-period=0", "--force")
    await red.apply(pool("second"))

    async def served() -> bool:
        return await red.has("service", "second-picker") and await holder(red) not in ("", before)

    # A Lease lasts 15 s.
    await until(served, "no standby takes over", 60)
    await red.kubectl("delete", "inferencepool", "second")
