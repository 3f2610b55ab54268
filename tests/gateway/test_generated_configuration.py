"""What `poolpilot envoy-config` prints is what Envoy runs: accepted in every variant, and a whole path with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway_client import Http1
from gateway_program import ProgramPicker
from gateway_site import Lane, chat
from poolpilot.main import main as poolpilot
from poolpilot_lab.processes import Child, envoy, envoy_is_ready, free_ports
from poolpilot_picker.envoy.eds import EdsWriter
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from gateway_pods import Pods

TLS = Path(__file__).parents[1] / "data" / "tls"

FLAGS = [
    "",
    "--fail open",
    "--body-mode buffered --retries 0",
    "--body-mode full-duplex --picker-health 0",
    "--cluster original-dst --admin off",
    "--pod-protocol http2 --access-log stdout",
    "--pod-protocol downstream --max-body-bytes 65536",
    "--picker 10.0.0.1:9002,[fd00::1]:9002 --route-timeout 600 --stream-idle-timeout 0 --pod-idle-timeout 0",
    "--picker-workers 2 --picker-turn-ms 1",
    "--picker-workers 3",
    "--picker picker.default.svc:9002 --picker-tls",
    f"--picker-tls --picker-ca-file {TLS / 'ca.crt'} --picker-server-name picker.test",
    f"--picker-tls --picker-ca-file {TLS / 'ca.crt'} --picker-server-name 127.0.0.1",
    "--without-picker round-robin --endpoints 10.0.0.1:8000,[fd00::1]:8000",
    "--without-picker least-request --endpoints pods.default.svc:8000 --pod-protocol http2",
]


@pytest.mark.parametrize("flags", FLAGS)
def test_envoy_accepts_it(envoy_binary: Path, tmp_path: Path, flags: str) -> None:
    config = tmp_path / "envoy.yaml"
    eds = tmp_path / "eds"
    EdsWriter(eds).write([EndpointSpec(host="10.0.0.1", port=8000)])
    reads_eds = "original-dst" not in flags and "--without-picker" not in flags
    argv = ["envoy-config", "--out", str(config), *flags.split(), *(["--eds-dir", str(eds)] if reads_eds else [])]
    assert poolpilot(argv) == 0
    checked = subprocess.run(
        [envoy_binary, "--mode", "validate", "--config-path", config, "--log-level", "warning"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    complaints = [line for line in checked.stderr.splitlines() if "deprecated" in line.lower() or "[error]" in line]
    assert complaints == []


@pytest.mark.parametrize("tls", ["plain", "unverified", "verified", "wrong-name"])
async def test_the_whole_path_from_the_commands(
    transport: str, envoy_binary: Path, pods: Pods, tmp_path: Path, tls: str
) -> None:
    """Picker program, printed YAML, Envoy: a chat request reaches a pod; a picker with another's name is not asked."""
    certificate = ["--tls-cert", str(TLS / "server.crt"), "--tls-key", str(TLS / "server.key")]
    flags = [] if tls == "plain" else certificate
    picker = await ProgramPicker(tmp_path, pods.addresses, transport, flags=flags).start()
    ca = ["--picker-ca-file", str(TLS / "ca.crt"), "--picker-server-name"]
    trust = {
        "plain": [],
        "unverified": ["--picker-tls"],
        "verified": ["--picker-tls", *ca, "picker.test"],
        "wrong-name": ["--picker-tls", *ca, "other.test"],
    }[tls]
    listen, admin = free_ports(2)
    config, access_log = tmp_path / "envoy.yaml", tmp_path / "access.log"
    argv = ["envoy-config", "--out", str(config), "--eds-dir", str(tmp_path / "eds"), *trust]
    argv += ["--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", "--access-log", str(access_log)]
    assert poolpilot([*argv, "--picker", f"127.0.0.1:{picker.port}"]) == 0
    gateway = envoy(config, log=tmp_path / "envoy.log").start()
    try:
        await gateway.ready(envoy_is_ready(admin))
        async with await Http1.connect(listen) as connection:
            response = await connection.request(body=chat(1_000))
        if tls == "wrong-name":
            assert response.status == 503
            return
        assert response.status == 200 and response.pod in pods.addresses
        await picker.settled()
        await gateway.stop()  # writes what is left of the access log
        [entry] = map(json.loads, access_log.read_text().splitlines())
        assert (entry["status"], entry["details"], entry["endpoint"]) == (200, "via_upstream", response.pod)
    finally:
        await gateway.stop(grace_s=0)
        await picker.child.stop(grace_s=1)


@pytest.mark.parametrize("policy", ["round-robin", "least-request"])
async def test_a_baseline_spreads_requests_without_a_picker(
    envoy_binary: Path, pods: Pods, tmp_path: Path, policy: str
) -> None:
    listen, admin = free_ports(2)
    config = tmp_path / "envoy.yaml"
    argv = ["envoy-config", "--out", str(config), "--without-picker", policy, "--endpoints", ",".join(pods.addresses)]
    assert poolpilot([*argv, "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]) == 0
    gateway = envoy(config, log=tmp_path / "envoy.log").start()
    try:
        await gateway.ready(envoy_is_ready(admin))

        async def one() -> str:
            async with await Http1.connect(listen) as connection:
                return (await connection.request(body=chat(100), headers={"x-pod": "*=slow.0.05"})).pod

        assert set(await asyncio.gather(*(one() for _ in range(24)))) == set(pods.addresses)
    finally:
        await gateway.stop(grace_s=0)


async def test_envoy_without_an_endpoint_file_says_what_is_missing(envoy_binary: Path, tmp_path: Path) -> None:
    """It does not start: the picker, which writes the file, must be there first."""
    config = tmp_path / "envoy.yaml"
    assert poolpilot(["envoy-config", "--out", str(config), "--admin", "off", "--eds-dir", str(tmp_path / "eds")]) == 0
    child: Child = envoy(config, log=tmp_path / "envoy.log").start()
    assert await child.ended(10)
    assert child.exit_code != 0 and "eds.json' does not exist" in child.tail()


async def test_an_emptied_pool_is_refused_and_filled_again(lane: Lane) -> None:
    """An empty endpoint list is a statement, and Envoy believes it; nobody is left who could be tried."""
    await lane.renew([])
    assert (await lane.request("open", chat(100))).response.status == 503
    await lane.renew(lane.pods.addresses)
    assert (await lane.request("open", chat(100))).response.status == 200
