"""The whole product behind the real Envoy Gateway, both installed by their charts: what docs/gateways.md says of it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

import cluster_gateway
from cluster_load import ask
from cluster_site import CONFIG, DATA, POOL, Site, put_engines
from cluster_stage import ROOT, Space, until
from poolpilot_lab.client.pool import HttpClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHART: Final = ROOT / "charts/poolpilot"
SYSTEM: Final = "poolpilot-gateway"
EG: Final = "envoy-gateway-system"
CLASS: Final = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "GatewayClass",
    "metadata": {"name": "envoy-gateway"},
    "spec": {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
}
DESTINATION: Final = "x-gateway-destination-endpoint"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Envoy Gateway, poolpilot, engines, and a Gateway to them."""
    folder = tmp_path_factory.mktemp("gateway")
    await cluster_gateway.put_program(cluster.programs)
    chart = await cluster_gateway.chart(folder / "chart")
    patches = "config.envoyGateway.extensionApis.enableEnvoyPatchPolicy=true"
    where = ["--create-namespace", "--wait", "--timeout=3m"]
    await cluster.helm("install", "eg", str(chart), "--namespace", EG, "--set", patches, *where)
    await cluster.apply(CLASS)
    space = await cluster.space("gateway")
    values = folder / "values.yaml"
    values.write_text(json.dumps(chart_values(space.name)))
    await cluster.helm("install", "poolpilot", str(CHART), "--namespace", SYSTEM, f"--values={values}", *where)
    await put_engines(space)
    await space.kubectl("label", "inferencepool", POOL, "poolpilot.dev/picker=default")
    await space.available(POOL)
    # Before Envoy starts: a change of its clusters takes it 15 s.
    await until(lambda: space.has("endpointslice", "llama-picker-poolpilot"), "the pool's Service has no endpoints")
    await space.kubectl("apply", "-f", str(DATA / "envoy-gateway.yaml"))
    await space.kubectl("wait", "--for=condition=Programmed", "gateway/gw", "--timeout=90s")
    site = Site(space, (await space.get("gateway", "gw"))["status"]["addresses"][0]["value"], 80)
    await until(site.answers, "nothing is answered", 90)
    yield site
    await space.kubectl("delete", "gateway", "gw")
    await cluster.helm("uninstall", "poolpilot", "--namespace", SYSTEM, "--wait", "--timeout=3m")
    await cluster.helm("uninstall", "eg", "--namespace", EG, "--wait", "--timeout=3m")
    await space.kubectl("delete", "namespace", space.name, EG, SYSTEM, "--wait=false")


def chart_values(namespace: str) -> dict[str, Any]:
    """As docs/gateways.md has them."""
    entry = {
        "namespace": namespace,
        "httpRoute": POOL,
        "gateway": "gw",
        "pickerService": "llama-picker",
        "messageTimeout": "60s",
        "patches": True,
    }
    picker = {"spec": {"tls": {"mode": "Disabled"}, "config": {"inline": CONFIG}}}
    return {"picker": picker, "gateways": {"envoyGateway": [entry]}}


async def test_requests_are_answered_by_the_endpoints_that_the_picker_chose(site: Site) -> None:
    assert set(await site.answered()) == set(await site.space.ready(POOL)), "every engine is used"


async def test_a_client_cannot_choose(site: Site) -> None:
    pods = await site.space.ready(POOL)
    disregarded = 0
    with contextlib.closing(HttpClient(site.host, site.port)) as client:
        for number in range(30):
            # Each in turn: one that is faster than the others may be chosen every time.
            wanted = sorted(pods.values())[number % len(pods)]
            got = await ask(client, POOL, f"request {number}", headers={DESTINATION: f"{wanted}:8000"})
            assert got.status == 200 and got.receipt["chosen"] == f"{pods[got.pod]}:8000"
            disregarded += pods[got.pod] != wanted
    assert disregarded > 0, "not always the one that the client wanted"


async def test_a_prompt_of_a_megabyte_is_placed(site: Site) -> None:
    with contextlib.closing(HttpClient(site.host, site.port)) as client:
        got = await ask(client, POOL, "word " * 25_000)
    assert got.receipt["chosen"] and got.status in (200, 400), "400: longer than the model takes"


async def test_a_rolling_restart_of_the_picker_fails_nothing(site: Site) -> None:
    system = Space(site.space.stage, SYSTEM)
    await site.check_restart(system, "poolpilot-default", "app.kubernetes.io/component=picker")


async def test_the_doctor_finds_no_fault(site: Site) -> None:
    """As `helm test` runs it, under its own rights."""
    said = await site.space.stage.helm("test", "poolpilot", "--namespace", SYSTEM, "--logs", "--timeout=2m")
    assert "0 errors, 0 warnings" in said and "1 EnvoyExtensionPolicies" in said


async def test_without_a_picker_requests_are_refused(site: Site) -> None:
    """The Service stays, without endpoints. What is let through goes to pods by turns, never where its client says."""
    space, system = site.space, Space(site.space.stage, SYSTEM)

    async def replicas(number: int) -> None:
        await system.kubectl(
            "patch", "picker", "default", "--type=merge", "-p", f'{{"spec": {{"replicas": {number}}}}}'
        )

    async def fail_open(value: str) -> None:
        patch = f'[{{"op": "replace", "path": "/spec/extProc/0/failOpen", "value": {value}}}]'
        await space.kubectl("patch", "envoyextensionpolicy", f"{POOL}-poolpilot", "--type=json", "-p", patch)

    async def refused() -> bool:
        policy = await space.get("envoyextensionpolicy", f"{POOL}-poolpilot")
        [ancestor] = policy["status"]["ancestors"]
        return any(one["type"] == "Accepted" and one["status"] == "False" for one in ancestor["conditions"])

    kept = (await space.get("service", "llama-picker"))["metadata"]["uid"]
    await replicas(0)
    await until(lambda: site.answers(500), "requests are not refused")
    await until(refused, "the policy is accepted all the same")
    assert (await space.get("service", "llama-picker"))["metadata"]["uid"] == kept
    await fail_open("true")
    await until(site.answers, "nothing is let through")
    wanted = min((await space.ready(POOL)).values())
    with contextlib.closing(HttpClient(site.host, site.port)) as client:
        got = [await ask(client, POOL, "by turns", headers={DESTINATION: f"{wanted}:8000"}) for _ in range(12)]
    assert {one.status for one in got} == {200} and not any(one.receipt for one in got)
    assert len({one.pod for one in got}) > 1, "not always the one that the client wanted"
    await fail_open("false")
    await until(lambda: site.answers(500), "requests are let through")
    await replicas(1)
    await until(site.answers, "the pool does not come back", 90)
    await site.answered()
