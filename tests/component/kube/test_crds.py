"""The CRDs on a real API server: what it takes, what it refuses and in which words, what it fills in and prints."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from control_planes import definitions
from poolpilot_lab.control_plane.api import Api, ApiError
from poolpilot_picker.config.policies import DEFAULT_POLICY, POLICIES
from poolpilot_picker.config.seat import MOST_WORKERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

CASES = yaml.safe_load((Path(__file__).parents[2] / "data/vectors/small.yaml").read_text())["inferencepool_cel"]
VERSIONS = {
    "InferencePool": "inference.networking.k8s.io/v1",
    "InferenceObjective": "llm-d.ai/v1alpha2",
    "InferenceModelRewrite": "llm-d.ai/v1alpha2",
    "Picker": "poolpilot.dev/v1alpha1",
    "LoraAdapter": "poolpilot.dev/v1alpha1",
}
POOL_REF = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "pool"}
SPECS: dict[str, dict[str, Any]] = {
    "InferencePool": {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    },
    "InferenceObjective": {"poolRef": {"name": "pool"}, "priority": -3},
    "InferenceModelRewrite": {
        "poolRef": {"name": "pool"},
        "rules": [{"matches": [{"model": {"value": "a"}}], "targets": [{"modelRewrite": "b", "weight": 1}]}],
    },
    "Picker": {},
    "LoraAdapter": {"poolRef": {"name": "pool"}, "source": {"repository": "team/sql-lora"}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(plane: ControlPlane) -> AsyncIterator[Api]:
    """A client of an API server that has all our CRDs."""
    async with plane.api() as client:
        await client.define(definitions())
        yield client


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """The valid object of a kind with some fields of its spec replaced; None takes one out."""
    wanted = {**copy.deepcopy(SPECS[kind]), **spec}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": {"name": name}, "spec": wanted}


def cel_case(case: dict[str, Any]) -> dict[str, Any]:
    """The InferencePool that a recorded case describes."""
    name = "case"
    if "target_ports" in case:
        return manifest("InferencePool", name, targetPorts=[{"number": port} for port in case["target_ports"]])
    match case["case"]:
        case "valid base":
            return manifest("InferencePool", name)
        case "appProtocol kubernetes.io/h2c":
            return manifest("InferencePool", name, appProtocol="kubernetes.io/h2c")
        case "endpointPickerRef kind '' and no port":
            # A Go client leaves an empty kind out.
            return manifest("InferencePool", name, endpointPickerRef={"name": "picker"})
        case "endpointPickerRef kind Service and no port":
            return manifest("InferencePool", name, endpointPickerRef={"name": "picker", "kind": "Service"})
    raise AssertionError(f"nothing is known of the case {case}")


@pytest.mark.parametrize("case", CASES, ids=[str(case.get("case") or case["target_ports"]) for case in CASES])
async def test_recorded_validation_of_pools(api: Api, case: dict[str, Any]) -> None:
    pool = cel_case(case)
    if case["ok"]:
        await api.create(pool)
        await api.delete(pool)
        return
    with pytest.raises(ApiError) as refused:
        await api.create(pool)
    assert refused.value.status == 422
    assert case["message"] in str(refused.value)


EXACTLY_ONE = "give exactly one of policy, inline and configMapRef"

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("InferencePool", {"selector": None}, "spec.selector: Required value"),
    ("InferencePool", {"selector": {}}, "spec.selector.matchLabels: Required value"),
    (
        "InferencePool",
        {"selector": {"matchLabels": {}}},
        "spec.selector.matchLabels in body should have at least 1 properties",
    ),
    (
        "InferencePool",
        {"selector": {"matchLabels": {f"label-{number}": "" for number in range(65)}}},
        "spec.selector.matchLabels: Too many: 65: must have at most 64 items",
    ),
    ("InferencePool", {"selector": {"matchLabels": {"a": "-"}}}, "spec.selector.matchLabels.a: Invalid value"),
    ("InferencePool", {"selector": {"matchLabels": {"a": "b" * 64}}}, "spec.selector.matchLabels.a: Too long"),
    ("InferencePool", {"targetPorts": []}, "spec.targetPorts in body should have at least 1 items"),
    (
        "InferencePool",
        {"targetPorts": [{"number": port} for port in range(1, 10)]},
        "spec.targetPorts: Too many: 9: must have at most 8 items",
    ),
    (
        "InferencePool",
        {"targetPorts": [{"number": 65_536}]},
        "spec.targetPorts[0].number in body should be less than or equal to 65535",
    ),
    (
        "InferencePool",
        {"appProtocol": "grpc"},
        'Unsupported value: "grpc": supported values: "http", "kubernetes.io/h2c"',
    ),
    (
        "InferencePool",
        {"endpointPickerRef": {"name": "a", "port": {"number": 1}, "failureMode": "Open"}},
        'Unsupported value: "Open": supported values: "FailOpen", "FailClose"',
    ),
    ("InferencePool", {"endpointPickerRef": {"port": {"number": 1}}}, "spec.endpointPickerRef.name: Required value"),
    (
        "InferencePool",
        {"endpointPickerRef": {"name": "a", "kind": "", "port": {"number": 1}}},
        "spec.endpointPickerRef.kind in body should be at least 1 chars long",
    ),
    ("InferenceObjective", {"poolRef": None}, "spec.poolRef: Required value"),
    ("InferenceObjective", {"poolRef": {"name": ""}}, "spec.poolRef.name in body should be at least 1 chars long"),
    ("InferenceObjective", {"priority": "high"}, 'spec.priority: Invalid value: "string"'),
    ("InferenceModelRewrite", {"rules": None}, "spec.rules: Required value"),
    (
        "InferenceModelRewrite",
        {"rules": [{"targets": []}]},
        "spec.rules[0].targets in body should have at least 1 items",
    ),
    (
        "InferenceModelRewrite",
        {"rules": [{"matches": [{}]}]},
        "spec.rules[0].matches[0].model: Required value",
    ),
    (
        "InferenceModelRewrite",
        {"rules": [{"matches": [{"model": {"type": "Prefix", "value": "a"}}]}]},
        'spec.rules[0].matches[0].model.type: Unsupported value: "Prefix": supported values: "Exact"',
    ),
    (
        "InferenceModelRewrite",
        {"rules": [{"targets": [{"modelRewrite": "b", "weight": 0}]}]},
        "spec.rules[0].targets[0].weight in body should be greater than or equal to 1",
    ),
    ("Picker", {"config": {}}, EXACTLY_ONE),
    ("Picker", {"config": {"policy": "random", "inline": "kind: EndpointPickerConfig"}}, EXACTLY_ONE),
    ("Picker", {"config": {"policy": "best"}}, 'spec.config.policy: Unsupported value: "best"'),
    (
        "Picker",
        {"pools": {"select": "All"}},
        "spec.pools.namespaces: Invalid value: select: All needs namespaces: a Picker does not take every pool",
    ),
    ("Picker", {"pools": {"namespaces": ["a", "a"]}}, 'spec.pools.namespaces[1]: Duplicate value: "a"'),
    ("Picker", {"replicas": 65}, "spec.replicas in body should be less than or equal to 64"),
    (
        "Picker",
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "autoscaling.maxReplicas must not be less than autoscaling.minReplicas",
    ),
    ("Picker", {"tls": {"mode": "Secret"}}, "mode: Secret needs secretRef, a Secret of type kubernetes.io/tls"),
    ("Picker", {"tls": {"secretRef": {"name": "a"}}}, "secretRef is read only with mode: Secret"),
    ("Picker", {"tls": {"mode": "CertManager"}}, "mode: CertManager needs issuerRef"),
    ("Picker", {"tls": {"issuerRef": {"name": "a"}}}, "issuerRef is read only with mode: CertManager"),
    ("Picker", {"resources": {"requests": {"cpu": "much"}}}, "spec.resources.requests.cpu: Invalid value"),
    ("LoraAdapter", {"source": None}, "spec.source: Required value"),
    ("LoraAdapter", {"source": {}}, "spec.source: Invalid value: give exactly one of path and repository"),
    ("LoraAdapter", {"source": {"path": "/a", "repository": "a/b"}}, "give exactly one of path and repository"),
    ("LoraAdapter", {"source": {"path": "relative"}}, "spec.source.path: Invalid value"),
    ("LoraAdapter", {"adapterName": "two words"}, "spec.adapterName: Invalid value"),
    ("LoraAdapter", {"endpoints": 0}, "spec.endpoints in body should be greater than or equal to 1"),
]


@pytest.mark.parametrize(
    ("kind", "spec", "message"), INVALID, ids=[f"{kind} {number}" for number, (kind, _, _) in enumerate(INVALID)]
)
async def test_what_is_refused(api: Api, kind: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        await api.create(manifest(kind, "wrong", **spec))
    assert refused.value.status == 422
    # Older and newer servers quote the value of a rule or not.
    assert message in str(refused.value)


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("InferencePool", {"endpointPickerRef": None}),
    ("InferencePool", {"endpointPickerRef": {"name": "a", "kind": "Picker", "group": "poolpilot.dev"}}),
    ("InferencePool", {"selector": {"matchLabels": {"a": ""}}}),
    ("InferenceObjective", {"priority": None}),
    ("InferenceModelRewrite", {"rules": []}),
    ("InferenceModelRewrite", {"rules": [{"targets": [{"modelRewrite": "b"}, {"modelRewrite": "c"}]}]}),
    ("InferenceModelRewrite", {"rules": [{}]}),
    *(("Picker", {"config": {"policy": policy}}) for policy in POLICIES),
    ("Picker", {"config": {"configMapRef": {"name": "a"}}, "workers": MOST_WORKERS, "replicas": 0}),
    ("Picker", {"pools": {"select": "All", "namespaces": ["a", "b"]}}),
    ("Picker", {"autoscaling": {"maxReplicas": 3}, "resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}),
    ("Picker", {"tls": {"mode": "Secret", "secretRef": {"name": "a"}}}),
    ("Picker", {"tls": {"mode": "CertManager", "issuerRef": {"name": "a"}}}),
    ("LoraAdapter", {"source": {"path": "/adapters/sql"}, "endpoints": 2, "pinned": True}),
]


@pytest.mark.parametrize(
    ("kind", "spec"), ACCEPTED, ids=[f"{kind} {number}" for number, (kind, _) in enumerate(ACCEPTED)]
)
async def test_what_is_accepted(api: Api, kind: str, spec: dict[str, Any]) -> None:
    one = manifest(kind, "right", **spec)
    await api.create(one)
    await api.delete(one)


FILLED_IN: dict[str, dict[str, Any]] = {
    "InferencePool": {
        **SPECS["InferencePool"],
        "appProtocol": "http",
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": "picker",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        },
    },
    "InferenceObjective": {"poolRef": POOL_REF, "priority": -3},
    "InferenceModelRewrite": {
        "poolRef": POOL_REF,
        "rules": [
            {
                "matches": [{"model": {"type": "Exact", "value": "a"}}],
                "targets": [{"modelRewrite": "b", "weight": 1}],
            }
        ],
    },
    "Picker": {
        "config": {"policy": DEFAULT_POLICY},
        "placement": "Shared",
        "pools": {"select": "Labelled"},
        "replicas": 1,
        "tls": {"mode": "SelfSigned"},
        "workers": 1,
    },
    "LoraAdapter": {**SPECS["LoraAdapter"], "poolRef": POOL_REF, "pinned": False},
}


@pytest.mark.parametrize("kind", SPECS)
async def test_defaults(api: Api, kind: str) -> None:
    one = manifest(kind, "defaults")
    made = await api.create(one)
    await api.delete(one)
    assert made["spec"] == FILLED_IN[kind]
    assert "status" not in made


@pytest.mark.parametrize(("kind", "first"), [("InferenceObjective", "Ready"), ("InferenceModelRewrite", "Accepted")])
async def test_conditions_begin_as_pending(api: Api, kind: str, first: str) -> None:
    one = manifest(kind, "pending")
    await api.create(one)
    told = await api.set_status(one, {})
    await api.delete(one)
    pending = {
        "type": first,
        "status": "Unknown",
        "reason": "Pending",
        "message": "Waiting for controller",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }
    assert told["status"]["conditions"] == [pending]
    [definition] = [one for one in definitions() if one["spec"]["names"]["kind"] == kind]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert schema["conditions"]["default"] == [pending]


async def test_a_pools_status_belongs_to_its_gateways(api: Api) -> None:
    pool = manifest("InferencePool", "status")
    await api.create(pool)
    parent = {"parentRef": {"name": "gateway"}, "controllerName": "example.com/gateways"}
    told = await api.set_status(pool, {"parents": [parent]})
    assert told["status"]["parents"][0]["parentRef"] == {
        "group": "gateway.networking.k8s.io",
        "kind": "Gateway",
        "name": "gateway",
    }
    # An apply of the spec leaves the status alone.
    applied = await api.apply({**pool, "status": {"parents": []}})
    assert applied["status"] == told["status"]
    with pytest.raises(ApiError, match="controllerName: Invalid value"):
        await api.set_status(pool, {"parents": [{**parent, "controllerName": "no-path"}]})
    with pytest.raises(ApiError, match="Too many: 33: must have at most 32 items"):
        await api.set_status(pool, {"parents": [parent] * 33})
    await api.delete(pool)


async def test_an_adapter_stays_what_it_is(api: Api) -> None:
    adapter = manifest("LoraAdapter", "fixed", adapterName="sql")
    await api.apply(adapter)
    await api.apply(manifest("LoraAdapter", "fixed", adapterName="sql", endpoints=3))
    with pytest.raises(ApiError, match=r"spec\.poolRef: .*poolRef cannot change; make another LoraAdapter"):
        await api.apply(manifest("LoraAdapter", "fixed", adapterName="sql", poolRef={"name": "other"}))
    with pytest.raises(ApiError, match="adapterName cannot change; make another LoraAdapter for another name"):
        await api.apply(manifest("LoraAdapter", "fixed", adapterName="python"))
    await api.delete(adapter)


async def test_pickers_scale(api: Api) -> None:
    picker = manifest("Picker", "scaled", replicas=3)
    await api.apply(picker)
    await api.set_status(picker, {"replicas": 2, "selector": "app=picker"})
    said = await api.call("GET", "/apis/poolpilot.dev/v1alpha1/namespaces/default/pickers/scaled/scale")
    scale = msgspec.json.decode(said)
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "app=picker"}
    await api.delete(picker)


async def test_conditions_are_keyed_by_their_type(api: Api) -> None:
    picker = manifest("Picker", "conditions")
    await api.apply(picker)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await api.set_status(picker, {"conditions": [condition]})
    with pytest.raises(ApiError, match="Duplicate value"):
        await api.set_status(picker, {"conditions": [condition, condition]})
    unhealthy = [{"namespace": "a", "name": str(number), "reason": "NoEndpoints"} for number in range(65)]
    await api.set_status(picker, {"unhealthyPools": unhealthy[:64]})
    with pytest.raises(ApiError, match="Too many: 65: must have at most 64 items"):
        await api.set_status(picker, {"unhealthyPools": unhealthy})
    await api.delete(picker)


async def test_short_names_and_what_the_server_says_of_the_definitions(api: Api) -> None:
    for definition in definitions():
        name = definition["metadata"]["name"]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        said = msgspec.json.decode(await api.call("GET", path))
        conditions = {one["type"]: one for one in said["status"]["conditions"]}
        assert conditions["Established"]["status"] == "True"
        assert conditions["NamesAccepted"]["status"] == "True"
        assert "NonStructuralSchema" not in conditions
        assert conditions.get("KubernetesAPIApprovalPolicyConformant", {"status": "True"})["status"] == "True"
        assert said["spec"]["names"].get("shortNames", []) == definition["spec"]["names"].get("shortNames", [])
