"""The chart poolpilot-standalone: its configuration is the picker's, and its pod serves requests, run as processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from chart_variants import VARIANTS
from poolpilot_lab.processes import Child, ProcessError, envoy_path, free_ports, http_status
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.settings import BodyMode, EnvoySettings, FailureMode, HostPort, PodProtocol, PoolCluster

if TYPE_CHECKING:
    from helm import Helm

CHART = "poolpilot-standalone"
BIN = Path(sys.executable).parent
NAMES = [variant for chart, variant in VARIANTS if chart == CHART]
ANY = HostPort("::", 8081)
SETTINGS = {
    "selector": EnvoySettings(listen=ANY),
    "endpoints": EnvoySettings(
        listen=ANY,
        pickers=tuple(HostPort("127.0.0.1", port) for port in (9002, 9003)),
        body_mode=BodyMode.BUFFERED,
        pod_protocol=PodProtocol.DOWNSTREAM,
        retries=0,
        access_log="stdout",
        fail=FailureMode.CLOSE,
    ),
    "original-dst": EnvoySettings(listen=ANY, cluster=PoolCluster.ORIGINAL_DST, max_body_bytes=2**20),
    "open": EnvoySettings(listen=ANY, fail=FailureMode.OPEN, body_mode=BodyMode.FULL_DUPLEX),
}


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    [deployment] = [one for one in objects if one["kind"] == "Deployment"]
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def argv(container: dict[str, Any], places: dict[str, str]) -> list[str]:
    """A container's command, with the places of this machine for those of the pod."""
    words = [*container["command"], *container["args"]]
    for place, here in places.items():
        words = [word.replace(place, here) for word in words]
    program = envoy_path() if words[0] == "envoy" else BIN / words[0]
    return [str(program), *words[1:]]


def configured(helm: Helm, values: dict[str, Any], folder: Path) -> Path:
    """Runs the container that prints Envoy's configuration."""
    init = pod_of(helm.rendered(CHART, values))["initContainers"][0]
    done = subprocess.run(
        argv(init, {"/etc/envoy": str(folder)}), capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return folder / "envoy.yaml"


@pytest.mark.parametrize("variant", NAMES)
def test_the_configuration_is_the_pickers_own(helm: Helm, variant: str, tmp_path: Path) -> None:
    """What the values ask for becomes what the generator makes of the same settings; nothing is written twice."""
    made = yaml.safe_load(configured(helm, VARIANTS[CHART, variant], tmp_path).read_text())
    assert made == bootstrap(SETTINGS[variant])


@pytest.mark.parametrize("variant", NAMES)
def test_envoy_takes_the_configuration(helm: Helm, variant: str, tmp_path: Path) -> None:
    path = configured(helm, VARIANTS[CHART, variant], tmp_path)
    path.write_text(path.read_text().replace("/run/poolpilot/eds", str(tmp_path)))
    (tmp_path / "eds.json").write_text('{"version_info": "0", "resources": []}')
    done = subprocess.run(
        [program(), "--mode", "validate", "--config-path", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]


def program() -> str:
    try:
        return str(envoy_path())
    except ProcessError as error:
        pytest.skip(str(error))


def test_envoy_and_picker_name_the_same_places(helm: Helm) -> None:
    """The endpoint file, the pool's name in it, and the picker's ports."""
    for variant in NAMES:
        pod = pod_of(helm.rendered(CHART, VARIANTS[CHART, variant]))
        init, picker = pod["initContainers"]
        folders = [[word for word in one["args"] if word.startswith("--eds-dir")] for one in (init, picker)]
        assert folders[0] == folders[1]
        assert "--picker=127.0.0.1:9002" in init["args"] and "--listen=127.0.0.1:9002" in picker["args"]
        mounts = {mount["mountPath"] for mount in picker["volumeMounts"]}
        for word in picker["args"]:
            _, _, value = word.partition("=/")
            assert not value or any(f"/{value}".startswith(mount) for mount in mounts), word


async def test_the_pod_serves_requests(helm: Helm, tmp_path: Path) -> None:
    """Configuration, picker, Envoy, in the order and with the flags of the pod; two stand-in model servers."""
    program()
    engine_ports = free_ports(2)
    values = {
        "endpoints": [{"address": "127.0.0.1", "port": port} for port in engine_ports],
        "envoy": {"concurrency": 1, "accessLog": True},
    }
    objects = helm.rendered(CHART, values)
    pod = pod_of(objects)
    [config] = [one["data"] for one in objects if one["kind"] == "ConfigMap"]
    http, picker_port, metrics = free_ports(3)
    places = {
        "/etc/envoy": str(tmp_path / "envoy"),
        "/etc/poolpilot": str(tmp_path),
        "/run/poolpilot": str(tmp_path),
        # Both families: it is asked by IPv4 below.
        "[::]:8081": f"[::]:{http}",
        "127.0.0.1:9002": f"127.0.0.1:{picker_port}",
        "[::]:9090": f"127.0.0.1:{metrics}",
    }
    for folder in ("envoy", "eds", "config"):
        (tmp_path / folder).mkdir()
    for name, text in config.items():
        (tmp_path / "config" / name).write_text(text)
    init, sidecar = pod["initContainers"]
    [envoy] = pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    done = subprocess.run([*argv(init, places), "--admin=off"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    engines = [
        Child(
            f"engine-{port}",
            [str(BIN / "poolpilot"), "engine", "--port", str(port), "--served-model-name", "m"],
            log=tmp_path / f"engine-{port}.log",
        )
        for port in engine_ports
    ]
    picker = Child("picker", argv(sidecar, places), log=tmp_path / "picker.log")
    gateway = Child("envoy", argv(envoy, places), log=tmp_path / "envoy.log")
    probe = sidecar["startupProbe"]["httpGet"]["path"]
    try:
        for port, engine in zip(engine_ports, engines, strict=True):
            await engine.start().ready(lambda port=port: answers(port, "/health"), 60.0)
        await picker.start().ready(lambda: answers(metrics, probe), 60.0)
        assert (tmp_path / "eds/eds.json").exists(), "Envoy does not start without it"
        await gateway.start().ready(lambda: answers(http, "/v1/models"), 30.0)
        served = await asyncio.gather(*(asked(http) for _ in range(16)))
        assert {status for status, _ in served} == {200}
        # The question that Envoy was found ready by is one, too.
        async with asyncio.timeout(30):
            while await counted(metrics, "poolpilot_exchanges_total") < 17:
                await asyncio.sleep(0.05)
        by_engine = [await counted(port, "vllm:request_success_total") for port in engine_ports]
        assert sum(by_engine) == 16 and all(by_engine), by_engine
    finally:
        await asyncio.gather(*(child.stop(0.0) for child in (gateway, picker, *engines)))


async def answers(port: int, path: str) -> bool:
    return await http_status("127.0.0.1", port, path) == 200


async def asked(port: int) -> tuple[int, str]:
    """One completion."""
    body = {"model": "m", "prompt": "hello", "max_tokens": 64}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer,
    ):
        return answer.status, await answer.text()


async def counted(port: int, name: str) -> float:
    """Sum of a counter's series on a metrics page."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
