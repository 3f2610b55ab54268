"""The operator as a program: an orderly start and end, one leader of several, what it shows on its admin port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from extproc_client import DataPlane
from kube_pods import Namespace
from operator_stage import IMAGE, eventually, true
from picker_program import PickerProgram
from poolpilot_lab.processes import Child
from poolpilot_operator.leadership import LeaseTimes

if TYPE_CHECKING:
    from pathlib import Path

    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = "127.0.2.1"
"""Nobody listens there."""
LEASE = "coordination.k8s.io/v1"
DEFAULT = LeaseTimes()


class Program:
    """One operator process."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, namespace: str, *more: str) -> None:
        argv = [
            *(sys.executable, "-m", "poolpilot_operator"),
            f"--kubeconfig={plane.kubeconfig}",
            f"--namespace={namespace}",
            f"--watch-namespaces={namespace}",
            f"--picker-image={IMAGE}",
            "--admin-host=127.0.0.1",
            "--admin-port=0",
            *more,
        ]
        self.log = folder / f"{name}.log"
        self.child = Child(name, argv, log=self.log, env={"POD_NAME": name})

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def said(self, message: str) -> dict[str, Any] | None:
        return next((line for line in self.lines() if line["message"] == message), None)

    async def page(self, path: str) -> tuple[int, str]:
        port = (self.said("started") or {})["admin_port"]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async def ready(self) -> None:
        async def check() -> bool:
            return self.said("started") is not None and (await self.page("/readyz"))[0] == 200

        await self.child.ready(check, 60.0)


async def lease(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Its spec."""
    found = await cluster.get(LEASE, "Lease", namespace, "poolpilot-operator")
    spec: dict[str, Any] = (found or {"spec": {}})["spec"]
    return spec


async def holder(cluster: Cluster, namespace: str) -> str:
    return str((await lease(cluster, namespace)).get("holderIdentity") or "")


async def test_it_starts_reconciles_and_ends_in_order(
    plane: ControlPlane, cluster: Cluster, home: str, tmp_path: Path
) -> None:
    await cluster.made_picker(home)
    await cluster.made_pool(home, "llama")
    one = Program(plane, tmp_path, "operator-a", home)
    one.child.start()
    try:
        await one.ready()
        await eventually(lambda: cluster.service(home, "llama-picker"))
        assert (await holder(cluster, home)).startswith("operator-a_")
        assert await one.page("/healthz") == (200, "ok\n")
        wanted = (
            "poolpilot_operator_leader 1.0",
            "poolpilot_operator_synced 1.0",
            'poolpilot_operator_writes_total{kind="Service",verb="create"}',
            'poolpilot_operator_queue_depth{queue="pool"} 0.0',
            'poolpilot_operator_objects{resource="inferencepools.inference.networking.k8s.io"} 1.0',
            f'poolpilot_operator_pools{{picker="default",picker_namespace="{home}",state="unhealthy"}} 1.0',
        )

        async def told() -> bool:
            _, page = await one.page("/metrics")
            return all(line in page for line in wanted)

        await eventually(told, "metrics")
        # The shell is up too, and has nothing to say.
        assert all(line["level"] != "error" for line in one.lines())
        one.child.signal(signal.SIGTERM)
        await eventually(lambda: true(not one.child.running), "ended")
        assert one.child.exit_code == 0
        assert await holder(cluster, home) == ""
    finally:
        await one.child.stop()


class Requests:
    """One request after the other to a pool's port, until they are stopped; one that fails ends them."""

    def __init__(self, port: int) -> None:
        self.placed = 0
        self._port = port
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with DataPlane(self._port) as plane:
            while True:
                assert await plane.exchange() == f"{ENGINE}:8000"
                self.placed += 1
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Raises what has gone wrong."""
        if not self._task.done():
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def test_when_the_leader_is_killed_another_writes_once_the_lease_has_run_out(
    plane: ControlPlane, cluster: Cluster, home: str, tmp_path: Path
) -> None:
    """And requests do not notice."""
    await cluster.made_picker(home)
    await Namespace(cluster.api, home).run("engine", ENGINE, {"app": "served"})
    await cluster.made_pool(home, "served")
    first, second = (Program(plane, tmp_path, name, home) for name in ("operator-a", "operator-b"))
    flags = ("--picker-name", "default", "--picker-namespace", home, "--pool-namespaces", home)
    picker = PickerProgram(tmp_path, *flags, "--policy", "round-robin", "--kubeconfig", str(plane.kubeconfig))
    first.child.start()
    try:
        await first.ready()
        await eventually(lambda: true(first.said("leading")), "leads")
        second.child.start()
        await second.ready()
        assert (await second.page("/readyz"))[1].startswith("standby")
        await picker.start()
        await eventually(lambda: _serves(picker))
        requests = Requests((await picker.json("/pools"))["pools"][0]["port"])
        await eventually(lambda: true(requests.placed))
        known = await picker.json("/pools")
        first.child.kill()
        placed = requests.placed
        left = await lease(cluster, home)
        assert left["holderIdentity"].startswith("operator-a_")

        async def taken_over() -> bool:
            assert await picker.json("/pools") == known, "nobody writes, and the picker is told nothing"
            return (await holder(cluster, home)).startswith("operator-b_")

        await eventually(taken_over, limit_s=60.0)
        await cluster.made_pool(home, "llama")
        await eventually(lambda: cluster.service(home, "llama-picker"), limit_s=60.0)
        await requests.stop()
        assert requests.placed > placed
        taken = await lease(cluster, home)
        assert taken["holderIdentity"].startswith("operator-b_")
        assert taken["leaseTransitions"] == left["leaseTransitions"] + 1
        # How soon is measured by a clock of its own in test_leadership.py; never while the first might still lead.
        assert left["leaseDurationSeconds"] == DEFAULT.lease_s
        waited = datetime.fromisoformat(taken["acquireTime"]) - datetime.fromisoformat(left["renewTime"])
        assert waited.total_seconds() > DEFAULT.deadline_s
        second.child.signal(signal.SIGTERM)
        await eventually(lambda: true(not second.child.running), "ended")
        assert second.child.exit_code == 0
    finally:
        await first.child.stop()
        await second.child.stop()
        await picker.child.stop(0.0)


async def _serves(picker: PickerProgram) -> bool:
    """The one pool, and its engine is there."""
    pools = (await picker.json("/pools"))["pools"]
    return [(one["serving"], one["endpoints"]) for one in pools] == [(True, 1)]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--namespace=Not_One"], "allowed is the name of a namespace"),
        (["--watch-namespaces=a,B"], "'B'; allowed is the name of a namespace"),
        (["--leader-election=perhaps"], "allowed are true and false"),
        (["--admin-port=99999"], "allowed is a port from 0 to 65535"),
    ],
)
async def test_wrong_flags_are_named(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from poolpilot_operator.main import main

    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
