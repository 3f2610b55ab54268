"""The figures of docs/operations.md: the operator with many pools before a real API server.

By hand, ten minutes: `PYTHONPATH=tests/support .venv/bin/python tests/support/operator_scale.py [POOLS]`. It goes by
the clock, so the machine should have nothing else to do.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from control_planes import definitions
from kube_pods import Namespace
from operator_stage import Cluster, eventually
from poolpilot_lab.control_plane.cluster import control_plane
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

NAMESPACES: Final = 20
QUIET_S: Final = float(os.environ.get("QUIET_S", "60"))


class Program:
    """One operator for the whole cluster."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        argv = [
            *(sys.executable, "-m", "poolpilot_operator"),
            f"--kubeconfig={plane.kubeconfig}",
            *("--namespace=home", "--picker-image=picker", "--admin-host=127.0.0.1", "--admin-port=0"),
        ]
        self.log = folder / "operator.log"
        self.log.unlink(missing_ok=True)
        self.child = Child("operator", argv, log=self.log)

    def said(self, message: str) -> dict[str, object] | None:
        lines = [msgspec.json.decode(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return next((line for line in lines if line["message"] == message), None)

    async def counts(self) -> dict[str, float]:
        """Metrics by name, summed over their labels."""
        started = self.said("started")
        if started is None:
            return {}
        found: dict[str, float] = {}
        url = f"http://127.0.0.1:{started['admin_port']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            page = await answer.text()
        for name, value in re.findall(r"^poolpilot_operator_(\w+)(?:\{[^}]*\})? (\S+)$", page, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


async def settled(program: Program, pools: int) -> bool:
    counts = await program.counts()
    looked = counts.get("reconciles_total", 0) >= pools and counts.get("leader") == 1
    return looked and counts.get("queue_depth") == 0 and counts.get("pools", 0) == pools


async def made_pools(api: Api, pools: int) -> None:
    cluster = Cluster(api)
    limit = asyncio.Semaphore(24)

    async def one(number: int) -> None:
        async with limit:
            await cluster.made_pool(f"team-{number % NAMESPACES}", f"pool-{number}")

    await asyncio.gather(*(one(number) for number in range(pools)))


async def services(api: Api) -> int:
    listed = await api.call("GET", "/api/v1/services?labelSelector=poolpilot.dev/picker%3Ddefault")
    return len(msgspec.json.decode(listed)["items"])


async def main() -> None:
    pools = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    folder = Path(tempfile.mkdtemp(prefix="operator-scale-"))
    async with control_plane(folder) as plane, plane.api() as api:
        await api.define(definitions())
        for name in ("home", *(f"team-{number}" for number in range(NAMESPACES))):
            await Namespace(api, name).made()
        await Cluster(api).made_picker("home")
        program = Program(plane, folder)
        program.child.start()
        await eventually(lambda: settled(program, 0), limit_s=60.0)
        print(f"empty: {program.rss_mb():.0f} MB")
        began, cpu = time.monotonic(), program.cpu_s()
        await made_pools(api, pools)
        print(f"{pools} pools applied in {time.monotonic() - began:.1f} s")
        await eventually(lambda: settled(program, pools), limit_s=900.0)
        wall = time.monotonic() - began
        print(f"served {wall:.1f} s after the first: {await services(api)} Services; CPU {program.cpu_s() - cpu:.1f} s")
        print(f"then {program.rss_mb():.0f} MB, writes {(await program.counts())['writes_total']:.0f}")
        await program.child.stop()
        program = Program(plane, folder)
        began = time.monotonic()
        program.child.start()
        await eventually(lambda: settled(program, pools), limit_s=300.0)
        wall, counts = time.monotonic() - began, await program.counts()
        print(f"restart: {wall:.1f} s, CPU {program.cpu_s():.1f} s, writes {counts.get('writes_total', 0):.0f}")
        cpu = program.cpu_s()
        await asyncio.sleep(QUIET_S)
        counts = await program.counts()
        print(
            f"quiet: {100 * (program.cpu_s() - cpu) / QUIET_S:.1f} % of a core, {program.rss_mb():.0f} MB, "
            f"writes {counts.get('writes_total', 0):.0f}"
        )
        await program.child.stop()


if __name__ == "__main__":
    asyncio.run(main())
