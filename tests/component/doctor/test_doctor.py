"""`poolpilot doctor` on a real API server: a sound set-up, and each check with a set-up that it finds fault with."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import poolpilot_kube.doctor
from control_planes import definitions
from doctor_stage import DESTINATION, ENVOY_GATEWAY, FOREIGN, OURS, POOLS, Stage, open_definition
from poolpilot_kube.access import access
from poolpilot_kube.doctor.check_tenants import tells_tenants_apart
from poolpilot_kube.doctor.command import examined
from poolpilot_kube.doctor.findings import Finding, Level, Report

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUMBERS = itertools.count()
PAGE = Path(__file__).parents[3] / "docs/doctor.md"
LEGACY = ("inference.networking.x-k8s.io", "v1alpha2", "InferencePool", "inferencepools")


def words(report: Report) -> set[tuple[str, Level]]:
    return {(finding.check, finding.level) for finding in report.findings}


# ── kinds, before there are any ──────────────────────────────────────────────


async def test_a_cluster_without_our_kinds_is_told_what_to_install(plane: ControlPlane, api: Api) -> None:
    found = access(plane.kubeconfig)
    assert words(await examined(found)) == {("pool-kind-missing", Level.ERROR), ("own-kind-missing", Level.ERROR)}
    await api.define([open_definition(*LEGACY)])
    assert words(await examined(found)) == {("pool-kind-old", Level.ERROR), ("own-kind-missing", Level.ERROR)}
    old = open_definition("poolpilot.dev", "v1alpha0", "Picker", "pickers")
    await api.define([old])
    [finding] = [one for one in (await examined(found)).findings if "pickers" in one.about]
    assert "no version v1alpha1" in finding.problem and "poolpilot-crds" in finding.change
    await api.delete(old)
    async with asyncio.timeout(30):
        while ("own-kind-missing", "pickers.poolpilot.dev") in {
            (one.check, one.about.split()[-1]) for one in (await examined(found)).findings
        } and b"v1alpha0" in await api.call("GET", "/apis"):
            await asyncio.sleep(0.05)


async def test_an_old_release_of_the_inference_extension_is_told(plane: ControlPlane, api: Api) -> None:
    pools = next(one for one in definitions() if one["spec"]["names"]["kind"] == "InferencePool")
    pools["metadata"]["annotations"]["inference.networking.k8s.io/bundle-version"] = "v0.5.1"
    await api.define([*definitions(), pools, *(open_definition(*kind) for kind in FOREIGN)])
    report = await examined(access(plane.kubeconfig))
    assert words(report) == {("pool-kind-version", Level.WARNING), ("no-picker", Level.WARNING)}
    await api.define(definitions())


# ── a sound set-up ───────────────────────────────────────────────────────────


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kinds(api: Api) -> Api:
    """With all kinds, ours and those of others."""
    await api.define([*definitions(), *(open_definition(*kind) for kind in FOREIGN)])
    return api


@pytest_asyncio.fixture(loop_scope="module")
async def stage(kinds: Api) -> Stage:
    """A sound set-up in a namespace of its own."""
    made = Stage(kinds, f"team-{next(NUMBERS)}")
    await made.sound()
    return made


async def findings(plane: ControlPlane, stage: Stage) -> list[Finding]:
    return list((await examined(access(plane.kubeconfig), [stage.namespace])).findings)


async def test_a_sound_set_up_has_no_findings(plane: ControlPlane, stage: Stage) -> None:
    await stage.envoy_gateway()
    assert await findings(plane, stage) == []


async def test_before_it_is_spoilt_below_a_set_up_lacks_a_route_only(plane: ControlPlane, stage: Stage) -> None:
    assert {finding.check for finding in await findings(plane, stage)} == {"pool-not-routed"}


async def test_a_sound_set_up_for_istio_has_no_findings(plane: ControlPlane, stage: Stage) -> None:
    await stage.inference_route()
    await stage.applied(
        "networking.istio.io/v1", "DestinationRule", "p", {"host": f"llama-picker.{stage.namespace}.svc"}
    )
    assert await findings(plane, stage) == []


# ── each check ───────────────────────────────────────────────────────────────


async def dead_policy(stage: Stage) -> None:
    await stage.envoy_gateway()
    policy = stage.named(ENVOY_GATEWAY, "EnvoyExtensionPolicy", "llm")
    condition = {"type": "Accepted", "status": "False", "reason": "Invalid", "message": "no ready endpoints"}
    made = await stage.api.get(ENVOY_GATEWAY, "EnvoyExtensionPolicy", "llm", stage.namespace)
    await stage.api.apply({**policy, "spec": made["spec"], "status": {"ancestors": [{"conditions": [condition]}]}})


async def parent_refuses(stage: Stage) -> None:
    condition = {
        "type": "ResolvedRefs",
        "status": "False",
        "reason": "InvalidKind",
        "message": "only the core API group",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    pool = stage.named(POOLS, "InferencePool", "llama")
    await stage.api.set_status(pool, {"parents": [{"parentRef": {"name": "gw"}, "conditions": [condition]}]})


async def lora(stage: Stage, pool: str, **condition: str) -> None:
    made = await stage.applied(
        OURS, "LoraAdapter", "sql", {"poolRef": {"name": pool}, "source": {"repository": "team/sql"}}
    )
    if condition:
        given = {"reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", **condition}
        await stage.api.set_status(made, {"conditions": [given]})


async def second_pool(stage: Stage, **spec: Any) -> None:
    await stage.pool("second", **{"selector": {"matchLabels": {"app": "other"}}, **spec})


async def unready_picker(stage: Stage) -> None:
    condition = {
        "type": "Programmed",
        "status": "False",
        "reason": "ImagePull",
        "message": "the image cannot be pulled",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await stage.picker(status={"conditions": [condition]})


async def unhealthy(stage: Stage) -> None:
    pool = {"namespace": stage.namespace, "name": "llama", "reason": "NoEndpoints", "message": "no pod is ready"}
    await stage.picker(status={"unhealthyPools": [pool]})


def mode(**changes: Any) -> dict[str, Any]:
    given = {"request": {"body": "Buffered"}, "response": {}, "allowModeOverride": True, **changes}
    return {"processingMode": {key: value for key, value in given.items() if value is not None}}


HELD = "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\n"


async def hold(stage: Stage, **spec: Any) -> None:
    """The Picker made anew, with flow control: a default of before would be one configuration too many."""
    await stage.delete(OURS, "Picker", "default")
    await stage.picker(config={"inline": HELD}, **spec)


STRICT = "flowControl: {defaultPriorityBand: {fairnessPolicyRef: global-strict-fairness-policy}}"


CASES: dict[str, tuple[Level, Any]] = {
    "tenant-header": (Level.INFO, lambda stage: hold(stage)),
    "picker-missing": (Level.WARNING, lambda stage: stage.pool(picker="fast")),
    "pool-not-asking": (Level.INFO, lambda stage: stage.pool("free", picker=None)),
    "pool-without-picker-ref": (Level.ERROR, lambda stage: second_pool(stage, endpointPickerRef=None)),
    "picker-ref-kind": (
        Level.ERROR,
        lambda stage: second_pool(stage, endpointPickerRef={"name": "x", "kind": "Endpoint", "group": "x.dev"}),
    ),
    "pool-without-pods": (Level.WARNING, lambda stage: stage.delete("v1", "Pod", "llama-0")),
    "no-ready-pods": (Level.ERROR, lambda stage: stage.pod(ready=False)),
    "target-port": (Level.WARNING, lambda stage: stage.pool(targetPorts=[{"number": 8080}])),
    "active-ports": (Level.WARNING, lambda stage: stage.pod("llama-1", annotations={"llm-d.ai/active-ports": "9, x"})),
    "shared-picker-service": (
        Level.ERROR,
        lambda stage: second_pool(stage, endpointPickerRef={"name": "llama-picker", "port": {"number": 9002}}),
    ),
    "shared-pods": (Level.WARNING, lambda stage: second_pool(stage, selector={"matchLabels": {"app": "llama"}})),
    "service-missing": (Level.ERROR, lambda stage: stage.delete("v1", "Service", "llama-picker")),
    "service-foreign": (Level.ERROR, lambda stage: stage.service(labels={}, selector={"app": "epp"})),
    "service-port": (Level.ERROR, lambda stage: stage.service(port=9003)),
    "app-protocol": (Level.WARNING, lambda stage: stage.service(appProtocol="http")),
    "no-ready-picker": (Level.ERROR, lambda stage: stage.slice(ready=False)),
    "slice-port": (Level.ERROR, lambda stage: stage.slice(port=20001)),
    "operator-silent": (Level.ERROR, lambda stage: stage.picker("new", status={})),
    "operator-behind": (Level.ERROR, lambda stage: stage.picker(status={"observedGeneration": 0})),
    "no-picker-pods": (Level.ERROR, lambda stage: stage.picker(status={"readyReplicas": 0})),
    "picker-pods-missing": (Level.WARNING, lambda stage: stage.picker(status={"replicas": 3, "readyReplicas": 2})),
    "condition": (Level.ERROR, unready_picker),
    "unhealthy-pool": (Level.WARNING, unhealthy),
    "no-picker": (Level.INFO, lambda stage: stage.delete(OURS, "Picker", "default")),
    "adapter-without-pool": (Level.ERROR, lambda stage: lora(stage, "gone")),
    "request-body": (Level.ERROR, lambda stage: stage.envoy_gateway(**mode(request=None))),
    "full-duplex": (
        Level.WARNING,
        lambda stage: stage.envoy_gateway(**mode(request={"body": "FullDuplexStreamed"})),
    ),
    "response-body": (Level.WARNING, lambda stage: stage.envoy_gateway(**mode(response={"body": "Streamed"}))),
    "response-headers": (Level.ERROR, lambda stage: stage.envoy_gateway(**mode(response=None))),
    "mode-override": (Level.WARNING, lambda stage: stage.envoy_gateway(**mode(allowModeOverride=None))),
    "message-timeout": (Level.WARNING, lambda stage: stage.envoy_gateway(messageTimeout=None)),
    "picker-tls": (Level.ERROR, lambda stage: stage.envoy_gateway(tls=True)),
    "pick-ignored": (Level.ERROR, lambda stage: stage.envoy_gateway(companions=False)),
    "destination-header": (Level.ERROR, lambda stage: stage.envoy_gateway(companions=False)),
    "body-limit": (Level.WARNING, lambda stage: stage.envoy_gateway(companions=False)),
    "policy-refused": (Level.ERROR, dead_policy),
    "route-without-pool": (Level.ERROR, lambda stage: stage.inference_route("gone")),
    "gateway-says": (Level.WARNING, parent_refuses),
    "pool-not-routed": (Level.INFO, lambda stage: asyncio.sleep(0)),
    "ai-gateway-body-mode": (
        Level.WARNING,
        lambda stage: stage.pool(annotations={"aigateway.envoyproxy.io/processing-body-mode": "buffered"}),
    ),
    "ai-gateway-fail-open": (
        Level.INFO,
        lambda stage: stage.pool(
            endpointPickerRef={"name": "llama-picker", "port": {"number": 9002}, "failureMode": "FailOpen"}
        ),
    ),
    "istio-destination-rule": (Level.WARNING, lambda stage: stage.inference_route()),
}
ELSEWHERE = {"pool-kind-missing", "pool-kind-old", "pool-kind-version", "own-kind-missing", "not-allowed", "unreadable"}
"""Checks with a test of their own."""


@pytest.mark.parametrize("word", CASES)
async def test_each_check_finds_its_fault(plane: ControlPlane, stage: Stage, word: str) -> None:
    level, spoil = CASES[word]
    await spoil(stage)
    found = [finding for finding in await findings(plane, stage) if finding.check == word]
    assert [finding.level for finding in found] == [level]
    assert (found[0].problem and stage.namespace in found[0].about + found[0].problem) or word == "no-picker"


@pytest.mark.parametrize(
    ("type_", "status", "level"),
    [
        ("CRDOutdated", "True", Level.WARNING),
        ("CRDOutdated", "False", None),
        ("Contested", "True", Level.WARNING),
        ("StateShared", "False", Level.INFO),
        ("MetricsHistoryAvailable", "False", Level.INFO),
        ("ConfigurationTaken", "False", Level.ERROR),
        ("Ready", "True", None),
    ],
)
async def test_what_a_condition_is_worth(
    plane: ControlPlane, stage: Stage, type_: str, status: str, level: Level | None
) -> None:
    condition = {
        "type": type_,
        "status": status,
        "reason": "Some",
        "message": "more",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await stage.picker(status={"conditions": [condition]})
    found = [one for one in await findings(plane, stage) if one.check == "condition"]
    assert [one.level for one in found] == ([level] if level is not None else [])
    assert all(f"{type_}: Some: more" in one.problem for one in found)


async def test_of_tenants_it_is_told_whether_envoy_gateway_lets_clients_name_them(
    plane: ControlPlane, stage: Stage
) -> None:
    await stage.envoy_gateway()
    await hold(stage, tls={"mode": "Disabled"})
    [finding] = await findings(plane, stage)
    assert (finding.check, finding.level) == ("tenant-header", Level.WARNING)
    assert "x-llm-d-inference-fairness-id or x-gateway-inference-fairness-id" in finding.problem
    early = {"remove": [DESTINATION, "X-LLM-D-Inference-Fairness-Id"]}
    await stage.client_policy(headers={"earlyRequestHeaders": early})
    [finding] = await findings(plane, stage)
    assert "by the header x-gateway-inference-fairness-id:" in finding.problem
    early["remove"].append("x-gateway-inference-fairness-id")
    await stage.client_policy(headers={"earlyRequestHeaders": early})
    assert await findings(plane, stage) == []


@pytest.mark.parametrize(
    ("config", "apart"),
    [
        (None, False),
        ("", False),
        ("a: [", False),
        ("- list", False),
        ("kind: EndpointPickerConfig", False),
        ("featureGates: flowControl", False),
        ("featureGates: [flowControl=false]", False),
        ("featureGates: [flowControl=true]", True),
        ("featureGates: [flowControl=false, flowControl]", True),
        ("featureGates: [flowControl]\nflowControl: 3", True),
        (f"{HELD}{STRICT}", False),
        (f"{HELD}flowControl: {{priorityBands: [{{fairnessPolicyRef: global-strict-fairness-policy}}]}}", True),
        (f"{HELD}{STRICT}\npoolpilot: {{flowControl: {{tenants: {{a: {{weight: 2}}}}}}}}", True),
    ],
)
async def test_where_tenants_are_told_apart(config: str | None, apart: bool) -> None:
    assert tells_tenants_apart(config) is apart


async def test_of_a_shared_service_nobody_hears_that_it_will_be_corrected(plane: ControlPlane, stage: Stage) -> None:
    await second_pool(stage, endpointPickerRef={"name": "llama-picker", "port": {"number": 9003}})
    words = {finding.check for finding in await findings(plane, stage)}
    assert "shared-picker-service" in words and "service-port" not in words


async def test_a_label_without_a_value_asks_for_the_default_picker(plane: ControlPlane, stage: Stage) -> None:
    await stage.pool(picker="")
    assert "picker-missing" not in {finding.check for finding in await findings(plane, stage)}


async def test_several_values_are_named(plane: ControlPlane, stage: Stage) -> None:
    await stage.envoy_gateway(messageTimeout="300ms")
    await stage.client_policy(connection={"bufferLimit": "64Ki"}, headers={"earlyRequestHeaders": {"remove": ["a"]}})
    said = {finding.check: finding.problem for finding in await findings(plane, stage)}
    assert "0.3 s" in said["message-timeout"]
    assert {"body-limit", "destination-header"} <= set(said) and DESTINATION in said["destination-header"]


async def test_an_adapter_that_is_not_ready_is_told_and_advice_is_no_error(plane: ControlPlane, stage: Stage) -> None:
    await lora(stage, "llama", type="Ready", status="False", message="401 of engine llama-0")
    [finding] = [one for one in await findings(plane, stage) if one.check == "condition"]
    assert finding.level is Level.ERROR and "401 of engine llama-0" in finding.problem
    await lora(stage, "llama", type="LoadingSupported", status="False")
    assert [one.level for one in await findings(plane, stage) if one.check == "condition"] == [Level.INFO]


async def test_every_check_has_a_case() -> None:
    """Words of all findings in the source are those of the cases, and those of the page."""
    said = set()
    for path in Path(poolpilot_kube.doctor.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                word = node.args[1]
                assert isinstance(word, ast.Constant)
                said.add(word.value)
    assert said == set(CASES) | ELSEWHERE
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)) == said


# ── what may be read ─────────────────────────────────────────────────────────


async def test_what_may_not_be_read_is_told_and_nothing_is_concluded_from_it(
    plane: ControlPlane, stage: Stage, api: Api
) -> None:
    rules = [{"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": ["list"]}]
    group = "rbac.authorization.k8s.io"
    await api.apply({**stage.named(f"{group}/v1", "Role", "some"), "rules": rules})
    subjects = [{"kind": "User", "name": "jane", "apiGroup": group}]
    role = {"kind": "Role", "name": "some", "apiGroup": group}
    await api.apply({**stage.named(f"{group}/v1", "RoleBinding", "some"), "roleRef": role, "subjects": subjects})
    jane = access(plane.kubeconfig_of("jane"))
    async with asyncio.timeout(30):
        while not (report := await examined(jane, [stage.namespace])).seen:
            # The server's own view of its rules comes a moment later.
            await asyncio.sleep(0.05)
    assert {finding.check for finding in report.findings} == {"not-allowed"}
    levels = {finding.about: finding.level for finding in report.findings}
    assert levels.pop("customresourcedefinitions.apiextensions.k8s.io") is Level.INFO
    assert set(levels.values()) == {Level.WARNING} and "services" in levels and "pods" in levels


async def test_an_object_that_is_not_as_its_kind_has_to_be_is_told(plane: ControlPlane, stage: Stage) -> None:
    await stage.applied("gateway.networking.k8s.io/v1", "HTTPRoute", "odd", {"rules": "none"})
    [finding] = [one for one in await findings(plane, stage) if one.check == "unreadable"]
    assert finding.about == f"httproutes.gateway.networking.k8s.io {stage.namespace}/odd"
    assert "`array`" in finding.problem


async def test_with_all_namespaces_a_missing_picker_is_an_error(plane: ControlPlane, stage: Stage) -> None:
    await stage.pool(picker="nobody")
    about = f"InferencePool {stage.namespace}/llama"
    report = await examined(access(plane.kubeconfig))
    [finding] = [one for one in report.findings if (one.check, one.about) == ("picker-missing", about)]
    assert finding.level is Level.ERROR and "'nobody'" in finding.problem and "default (in team-" in finding.change
    await stage.pool()


# ── the program ──────────────────────────────────────────────────────────────


def doctor(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "poolpilot", "doctor", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
    )


async def test_the_program_says_what_to_change(plane: ControlPlane, stage: Stage) -> None:
    here = ("--kubeconfig", str(plane.kubeconfig), "--namespace", stage.namespace)
    await stage.inference_route()
    await stage.picker(tls={"mode": "Disabled"})
    sound = await asyncio.to_thread(doctor, *here)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert sound.stdout.startswith("0 errors, 0 warnings; looked at 1 InferencePools, 1 Pickers")
    await stage.service(port=9003)
    broken = await asyncio.to_thread(doctor, *here)
    assert broken.returncode == 1
    assert f"ERROR    Service {stage.namespace}/llama-picker: has port" in broken.stdout
    assert "         → the operator corrects it" in broken.stdout
    found = json.loads((await asyncio.to_thread(doctor, *here, "-o", "json")).stdout)
    assert found["errors"] == 1 and found["findings"][0]["check"] == "service-port"
    assert set(found["findings"][0]) == {"level", "check", "about", "problem", "change"}


async def test_the_program_says_why_it_knows_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    missing = doctor("--kubeconfig", str(tmp_path / "none"))
    assert missing.returncode == 3 and "no credentials" in missing.stderr
    none = doctor()
    assert none.returncode == 3 and "~/.kube/config" in none.stderr
    away = tmp_path / "away"
    config = json.loads(plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away.write_text(json.dumps(config))
    unreachable = doctor("--kubeconfig", str(away))
    assert unreachable.returncode == 3 and "cannot be read" in unreachable.stderr
    assert doctor("--nonsense").returncode == 2
    both = doctor("-n", "a", "-A")
    assert both.returncode == 2 and "exclude each other" in both.stderr
