"""A pod's network and a container's root, without an API server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from poolpilot_lab.kubelet.launch import Launched, LaunchError
from poolpilot_lab.kubelet.network import BRIDGE, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENV = {"PATH": os.environ["PATH"]}
A, B = "10.244.0.101", "10.244.0.102"


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(bridge: None) -> AsyncIterator[Sandbox]:
    made = await Sandbox.make(A, 100_001)
    yield made
    await made.close()


async def said(script: str, tmp_path: Path, **more: Any) -> str:
    """What a shell in a container says."""
    log = tmp_path / "log"
    started = await Launched.start(["sh", "-c", script], env=ENV, log=log, root=tmp_path / "root", **more)
    code = await started.ended()
    return f"{code} {log.read_text()}".strip()


async def test_a_container_sees_its_volumes_where_they_belong(tmp_path: Path) -> None:
    volume, file, inner = tmp_path / "volume", tmp_path / "file", tmp_path / "inner"
    for folder in (volume, inner):
        folder.mkdir()
    (volume / "a").write_text("one")
    (inner / "b").write_text("two")
    file.write_text("three")
    mounts = [
        {"source": str(volume), "target": "/var/run/secrets/deep/er"},
        {"source": str(volume), "target": "/etc/new"},
        {"source": str(inner), "target": "/etc/new/inner"},
        {"source": str(file), "target": "/etc/resolv.conf"},
        {"source": str(file), "target": "/not/there/before.txt"},
    ]
    script = (
        "cat /var/run/secrets/deep/er/a /etc/new/a /etc/new/inner/b /etc/resolv.conf /not/there/before.txt; "
        "test -e /etc/passwd && test -d /proc/self && ls /run /dev/shm"
    )
    assert await said(script, tmp_path, mounts=mounts) == "0 oneonetwothreethree/dev/shm:\n\n/run:\nsecrets"
    assert not Path("/etc/new").exists() and not Path("/not").exists(), "nobody else sees it"


async def test_what_is_read_only_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
    mounts = [
        {"source": str(tmp_path / "open"), "target": "/data"},
        {"source": str(tmp_path / "shut"), "target": "/config", "read_only": True},
    ]
    script = "for d in /data /config /tmp /run /dev/shm; do (echo x > $d/poolpilot-test) 2>&- && echo $d; done; true"
    assert await said(script, tmp_path, mounts=mounts, read_only=True) == "0 /data\n/dev/shm"
    assert (tmp_path / "open/poolpilot-test").read_text() == "x\n"


@pytest.mark.parametrize(
    ("argv", "reason"),
    [(["no-such-program"], "no-such-program: No such file"), (["/etc/passwd"], "/etc/passwd: Permission denied")],
)
async def test_what_cannot_start_says_why(argv: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=reason):
        await Launched.start(argv, env=ENV, root=tmp_path / "root")


async def test_a_mount_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    mounts = [{"source": str(tmp_path / "nowhere"), "target": "/data"}]
    with pytest.raises(LaunchError, match=r"nowhere.*No such file"):
        await Launched.start(["true"], env=ENV, root=tmp_path / "root", mounts=mounts)


async def test_processes_end_as_they_are_told(tmp_path: Path) -> None:
    logs = [tmp_path / "deaf", tmp_path / "polite"]
    deaf, polite = [
        await Launched.start(
            ["sh", "-c", f"trap {trap} TERM; echo set; while :; do sleep 0.01; done"], env=ENV, log=log
        )
        for trap, log in zip(("''", "'exit 3'"), logs, strict=True)
    ]
    async with asyncio.timeout(30):
        while not all(log.read_text() for log in logs):
            await asyncio.sleep(0.01)
    assert deaf.running and polite.running
    assert await polite.stop(30.0) == 3
    assert await deaf.stop(0.2) == 128 + signal.SIGKILL
    assert await deaf.stop(0.2) == 128 + signal.SIGKILL, "again is no harm"


async def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = await Launched.start(["sh", "-c", "sleep 1000 & echo $!"], env=ENV, log=log)
    await parent.ended()
    child = int(log.read_text())
    await parent.kill()
    async with asyncio.timeout(10):
        while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
            await asyncio.sleep(0.01)


async def test_the_node_keeps_its_address_on_the_wire_when_a_pod_goes(sandbox: Sandbox) -> None:
    """A bridge borrows the lowest of its ports', and the others would go on sending to that of a pod that is gone."""

    async def addresses(*which: str) -> set[str]:
        listing = await asyncio.create_subprocess_exec("ip", "-j", "link", "show", *which, stdout=PIPE)
        said, _ = await listing.communicate()
        return {str(one["address"]) for one in json.loads(said)}

    ports = await addresses("master", BRIDGE)
    assert ports
    assert not await addresses("dev", BRIDGE) & ports


async def test_pods_have_networks_of_their_own(sandbox: Sandbox, tmp_path: Path) -> None:
    """Both listen on all addresses at one port, and are reached at their own."""
    other = await Sandbox.make(B, 100_002)
    serve = (
        "import socket,sys; s = socket.create_server(('', 8000))\n"
        "while True: c, _ = s.accept(); c.sendall(sys.argv[1].encode()); c.close()"
    )
    started = [
        await Launched.start(["python3", "-c", serve, name], env=ENV, network=box.pid, root=tmp_path / name)
        for name, box in (("a", sandbox), ("b", other))
    ]
    try:
        assert [await heard(A), await heard(B)] == ["a", "b"]
        ask = f"import socket; print(socket.create_connection(('{B}', 8000), 5).recv(9).decode())"
        log = tmp_path / "log"
        asking = await Launched.start(["python3", "-c", ask], env=ENV, network=sandbox.pid, log=log)
        assert await asking.ended() == 0 and log.read_text() == "b\n", "pods reach each other"
        outside = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        asking = await Launched.start(["python3", "-c", outside], env=ENV, network=sandbox.pid, log=log)
        assert await asking.ended() == 1 and "unreachable" in log.read_text(), "and nothing else"
    finally:
        for one in started:
            await one.kill()
        await other.close()
    with pytest.raises(OSError):
        socket.create_connection((B, 8000), 0.5).close()


async def heard(host: str) -> str:
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, 8000)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            text = (await reader.read()).decode()
            writer.close()
            return text


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bridge(cluster: Stage) -> None:
    """The cluster's."""
