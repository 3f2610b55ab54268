"""The whole product behind the real Envoy Gateway, both installed by their charts: what docs/gateways.md says of it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

import cluster_gateway
from cluster_load import ask
from cluster_site import DATA, POOL, Site, put_engines
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
RECEIPTS: Final = (
    "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\npoolpilot: {receipts: {header: true}}\n"
)
DESTINATION: Final = "x-gateway-destination-endpoint"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Stage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Envoy Gateway, poolpilot, engines, and a Gateway to them."""
    folder = tmp_path_factory.mktemp("gateway")
    await cluster_gateway.put_programs(cluster.programs)
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
    picker = {"spec": {"tls": {"mode": "Disabled"}, "config": {"inline": RECEIPTS}}}
    return {"picker": picker, "gateways": {"envoyGateway": [entry]}}


async def test_requests_are_answered_by_the_endpoints_that_the_picker_chose(site: Site) -> None:
    assert set(await site.answered()) == set(await site.space.ready(POOL)), "every engine is used"


async def test_a_client_cannot_choose(site: Site) -> None:
    pods = await site.space.ready(POOL)
    seen = set()
    with contextlib.closing(HttpClient(site.host, site.port)) as client:
        for number in range(30):
            wanted = min(pods.values())
            got = await ask(client, POOL, f"request {number}", headers={DESTINATION: f"{wanted}:8000"})
            assert got.status == 200 and got.receipt["chosen"] == f"{pods[got.pod]}:8000"
            seen.add(got.pod)
    assert len(seen) > 1, "not always the one that the client wanted"


async def test_a_prompt_of_a_megabyte_is_placed(site: Site) -> None:
    with contextlib.closing(HttpClient(site.host, site.port)) as client:
        got = await ask(client, POOL, "word " * 25_000)
    assert got.receipt["chosen"] and got.status in (200, 400), "400: longer than the model takes"


async def test_a_rolling_restart_of_the_picker_fails_nothing(site: Site) -> None:
    system = Space(site.space.stage, SYSTEM)
    await site.check_restart(system, "poolpilot-default", "app.kubernetes.io/component=picker")


async def test_without_a_picker_requests_are_refused(site: Site) -> None:
    await site.space.kubectl("label", "inferencepool", POOL, "poolpilot.dev/picker-")
    await until(lambda: site.answers(500), "requests are not refused")
    await site.space.kubectl("label", "inferencepool", POOL, "poolpilot.dev/picker=default")
    await until(site.answers, "the pool does not come back", 90)
    await site.answered()
