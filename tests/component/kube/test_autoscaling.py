"""docs/autoscaling.md, tried: a picker of a pool, a Prometheus that reads it, and an HPA that scales its engines."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

import prometheus_program
from control_planes import definitions
from extproc_client import BUFFERED, NONE, DataPlane, chat
from metrics_api import MetricsApi, asked
from picker_pools import PICKER, Pools, pool_ports, service
from picker_program import PickerProgram
from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.control_plane.cluster import ControlPlane, control_plane
from poolpilot_lab.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from poolpilot_lab.control_plane.programs import Programs

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOC = Path(__file__).parents[3] / "docs/autoscaling.md"
NAMESPACE, POOL = "serving", "llama"
"""As in the examples."""
FLOW_CONTROL = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: predicted-finish-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: predicted-finish-picker
"""
HOSTS = ("127.0.1.31", "127.0.1.32")
NAMES = ("engine-a", "engine-b")
LONG_S = 90.0
"""An HPA looks every 15 s, and a machine may have other things to do."""


def example(name: str) -> dict[str, Any]:
    found = re.findall(rf"<!-- example: {name} -->\n\n```yaml\n(.*?)```", DOC.read_text(), flags=re.DOTALL)
    [text] = found
    read: dict[str, Any] = yaml.safe_load(text)
    return read


class Engines:
    """What two stand-in vLLM pods say on their metrics pages."""

    waiting = 0

    async def page(self, _: web.Request) -> web.Response:
        labels = '{model_name="base",engine="0"}'
        lines = [
            f"vllm:num_requests_running{labels} {8.0 if self.waiting else 0.0}",
            f"vllm:num_requests_waiting{labels} {float(self.waiting)}",
            f"vllm:kv_cache_usage_perc{labels} {0.1 if self.waiting else 0.0}",
        ]
        return web.Response(text="".join(f"{line}\n" for line in lines))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(called: Programs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """With the controllers, of which one is the HPA's."""
    async with control_plane(tmp_path_factory.mktemp("plane"), controllers=True) as running:
        async with running.api() as api:
            await api.define(definitions())
            await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pools(plane: ControlPlane) -> AsyncIterator[Pools]:
    async with plane.api() as api:
        yield Pools(api, NAMESPACE)


@pytest_asyncio.fixture(loop_scope="module")
async def engines() -> AsyncIterator[tuple[Engines, int]]:
    """(what they say, their port)."""
    said = Engines()
    app = web.Application()
    app.router.add_get("/metrics", said.page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    [port] = free_ports(1, HOSTS[0])
    for host in HOSTS:
        await web.TCPSite(runner, host, port).start()
    yield said, port
    await runner.cleanup()


@contextlib.asynccontextmanager
async def prometheus(picker: PickerProgram, folder: Path) -> AsyncIterator[str]:
    """One that reads the picker every second."""
    target = f"127.0.0.1:{picker.admin_port}"
    jobs = [{"job_name": "picker", "static_configs": [{"targets": [target]}]}]
    settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    async with prometheus_program.running(folder, yaml.safe_dump(settings)) as url:
        yield url


@contextlib.asynccontextmanager
async def serving(
    plane: ControlPlane, pools: Pools, folder: Path, engine_port: int, *more: str
) -> AsyncIterator[PickerProgram]:
    """A picker of the pool, which has no pods yet."""
    [port] = pool_ports(1)
    await pools.api.apply(pools.there.pool(POOL, {"pool": POOL}, engine_port))
    await pools.api.apply(service(NAMESPACE, POOL, POOL, port))
    namespace, name = PICKER
    flags = ["--picker-name", name, "--picker-namespace", namespace, "--pool-namespaces", NAMESPACE]
    async with PickerProgram(folder, *flags, "--kubeconfig", str(plane.kubeconfig), *more) as picker:

        async def served() -> bool:
            return [one["serving"] for one in (await picker.json("/pools"))["pools"]] == [True]

        await picker.until(served, "the pool is not served")
        picker.port = port
        yield picker


async def becomes(check: Callable[[], Awaitable[Any]], wanted: Any, what: str) -> None:
    """Waits until a question has this answer."""
    found: Any = None
    try:
        async with asyncio.timeout(LONG_S):
            while (found := await check()) != wanted:
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}") from None


async def run(pools: Pools) -> None:
    """The engines' pods. On no node: a controller ends those of nodes that there are not."""
    for name, host in zip(NAMES, HOSTS, strict=True):
        pod = pools.there.pod(name, {"pool": POOL})
        del pod["spec"]["nodeName"]
        await pools.api.apply(pod)
        await pools.there.set_ready(name, host, ready=True)


def deployment(hpa: dict[str, Any], replicas: int) -> dict[str, Any]:
    """What an HPA scales. No node runs its pods."""
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "engine", "image": "engine"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": hpa["spec"]["scaleTargetRef"]["name"], "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": pod},
    }


async def scaled(pools: Pools, hpa: dict[str, Any], wanted: int, what: str) -> None:
    """Waits until an HPA has scaled to so many."""
    name = hpa["spec"]["scaleTargetRef"]["name"]

    async def replicas() -> int:
        return int((await pools.api.get("apps/v1", "Deployment", name, NAMESPACE))["spec"]["replicas"])

    try:
        await becomes(replicas, wanted, what)
    except AssertionError as error:
        now = await pools.api.get("autoscaling/v2", "HorizontalPodAutoscaler", hpa["metadata"]["name"], NAMESPACE)
        raise AssertionError(f"{error}; {now.get('status')}") from None


async def removed(pools: Pools, hpa: dict[str, Any]) -> None:
    """The HPA is gone, and what it scales."""
    await pools.api.delete(hpa)
    await pools.api.delete(deployment(hpa, 0))


def triggers() -> dict[str, str]:
    """Name → query of the ScaledObject."""
    return {one["name"]: one["metadata"]["query"] for one in example("keda")["spec"]["triggers"]}


async def test_the_queries_give_numbers_with_engines_and_without(
    plane: ControlPlane, pools: Pools, engines: tuple[Engines, int], tmp_path: Path
) -> None:
    said, port = engines
    async with serving(plane, pools, tmp_path, port) as picker, prometheus(picker, tmp_path) as server:
        wanted = triggers()

        async def numbers() -> dict[str, list[float]]:
            return {name: await asked(server, query) for name, query in wanted.items()}

        nothing = {"queue": [0.0], "saturation": [0.0], "unserved": [0.0]}
        await becomes(numbers, nothing, "a pool at rest without endpoints")
        # Somebody asks: that must start the first engine.
        async with DataPlane(picker.port) as envoy:
            refused = envoy.open(BUFFERED, NONE)
            await refused.headers()
            await refused.must_read()
            await refused.body(chat())
            assert int((await refused.must_read()).immediate_response.status.code) == 503

        async def unserved() -> bool:
            return (await numbers())["unserved"] > [0.0]

        await becomes(unserved, True, "the request that found nobody")
        said.waiting = 7
        await run(pools)

        async def busy() -> tuple[list[float], bool]:
            found = await numbers()
            return found["queue"], found["saturation"] > [0.0]

        await becomes(busy, ([14.0], True), "two engines with seven each")
        said.waiting = 0
        await becomes(busy, ([0.0], False), "two engines at rest")
        for name in NAMES:
            await pools.there.remove(name)
        await becomes(busy, ([0.0], False), "no engines")


async def test_an_autoscaler_scales_by_the_queue(
    plane: ControlPlane, pools: Pools, engines: tuple[Engines, int], tmp_path: Path
) -> None:
    said, port = engines
    said.waiting = 7
    hpa, rules = example("hpa"), example("adapter")["externalRules"]
    await run(pools)
    async with (
        serving(plane, pools, tmp_path, port) as picker,
        prometheus(picker, tmp_path) as server,
        MetricsApi(rules, server).running(pools.api, plane.authority, tmp_path),
    ):
        await pools.api.apply(deployment(hpa, 2))

        async def queue() -> list[float]:
            labels = hpa["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
            query = MetricsApi(rules, server).query("poolpilot_pool_queue", NAMESPACE, labels)
            return await asked(server, query)

        await becomes(queue, [14.0], "what the adapter asks")
        await pools.api.apply(hpa)

        await scaled(pools, hpa, 4, "14 that wait are 4 for each of 4")
        # The page says why there are labels for namespace and name.
        hpa["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"] = {"pool": f"{NAMESPACE}/{POOL}"}
        await pools.api.apply(hpa)

        async def refused() -> bool:
            now = await pools.api.get("autoscaling/v2", "HorizontalPodAutoscaler", hpa["metadata"]["name"], NAMESPACE)
            said = [one["message"] for one in now["status"]["conditions"] if one["status"] == "False"]
            return any("a valid label must" in message for message in said)

        await becomes(refused, True, "an HPA that asks by a label with a slash")
        await removed(pools, hpa)


async def test_an_autoscaler_starts_the_first_engine_for_what_the_picker_holds(
    plane: ControlPlane, pools: Pools, engines: tuple[Engines, int], tmp_path: Path
) -> None:
    _, port = engines
    hpa, rules = example("hpa"), example("adapter")["externalRules"]
    hpa["spec"]["minReplicas"] = 0
    hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    hpa["spec"]["metrics"] = hpa["spec"]["metrics"][:1]
    (tmp_path / "config.yaml").write_text(FLOW_CONTROL)
    for name in NAMES:
        with contextlib.suppress(ApiError):
            await pools.there.remove(name)
    async with (
        serving(plane, pools, tmp_path, port, "--config-file", str(tmp_path / "config.yaml")) as picker,
        prometheus(picker, tmp_path) as server,
        MetricsApi(rules, server).running(pools.api, plane.authority, tmp_path),
        DataPlane(picker.port) as envoy,
    ):
        await pools.api.apply(deployment(hpa, 1))
        await pools.api.apply(hpa)
        await scaled(pools, hpa, 0, "nobody waits, and nothing runs")
        held = [envoy.open(BUFFERED, NONE) for _ in range(3)]
        for one in held:
            await one.headers()
            await one.must_read()
            await one.body(chat())
        await scaled(pools, hpa, 1, "three that wait are less than 4 for one")
        await removed(pools, hpa)
        await run(pools)
        for one in held:
            answer = await one.must_read()
            while answer.WhichOneof("response") is None:
                answer = await one.must_read()  # more time for the data plane
            assert answer.WhichOneof("response") == "request_body", answer
            one.reset()


async def test_the_scaled_object_has_the_shape_that_keda_documents() -> None:
    scaled = example("keda")
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert spec.keys() == {
        *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "triggers")
    }
    assert len({one["name"] for one in spec["triggers"]}) == len(spec["triggers"])
    for one in spec["triggers"]:
        assert one["type"] == "prometheus" and one["metricType"] in {"AverageValue", "Value"}
        metadata = one["metadata"]
        assert metadata.keys() == {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"}
        assert all(isinstance(value, str) for value in metadata.values()), "KEDA takes strings only"
        assert float(metadata["activationThreshold"]) == 0.0 < float(metadata["threshold"])
