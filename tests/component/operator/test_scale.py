"""The whole path with several pools and pods of engines, one real picker in it: counts of writes, not times.

The same with thousands, and by the clock: tests/support/operator_scale.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kube_pods import Namespace
from operator_stage import RealPods, eventually, quiet, running_operator
from picker_program import PickerProgram
from poolpilot_kube.access import from_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    from operator_stage import Cluster
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

IP = "10.244.0.11"
POOLS = [f"pool-{number}" for number in range(20)]
PODS = 50


async def test_each_pool_is_written_a_few_times_and_not_at_all_by_the_next_operator(
    plane: ControlPlane, cluster: Cluster, home: str, away: str, tmp_path: Path
) -> None:
    there = Namespace(cluster.api, away)
    await cluster.made_picker(home)
    await cluster.ready_pod((home, "default"), "picker-a", IP)
    hosts = {f"engine-{number}": f"127.0.2.{number + 1}" for number in range(PODS)}
    labels = {name: {"app": POOLS[number % len(POOLS)]} for number, name in enumerate(hosts)}
    await asyncio.gather(*(there.run(name, host, labels[name]) for name, host in hosts.items()))
    flags = ("--picker-name", "default", "--picker-namespace", home, "--pool-namespaces", f"{home},{away}")
    access = from_kubeconfig(plane.kubeconfig)
    async with PickerProgram(tmp_path, *flags, "--kubeconfig", str(plane.kubeconfig)) as picker:
        pods = RealPods(picker)

        async def all_well() -> bool:
            found = [await cluster.slice_addresses(away, f"{name}-picker") for name in POOLS]
            return found == [[IP]] * len(POOLS) and bool(await cluster.counts(home, len(POOLS), len(POOLS)))

        async with running_operator(access, home, pods, away) as operator:
            await asyncio.gather(*(cluster.made_pool(away, name) for name in POOLS))
            await eventually(all_well)
            await quiet(operator)
            writes = operator.world.writer.writes
            # A slice is made when its Service is, and again when the picker says that it serves the pool.
            # One more Service is that of the Picker's metrics.
            assert writes["Service", "create"] == len(POOLS) + 1
            assert sum(count for (kind, _), count in writes.items() if kind == "Service") == len(POOLS) + 1
            slices = sum(count for (kind, _), count in writes.items() if kind == "EndpointSlice")
            assert len(POOLS) <= slices <= 2 * len(POOLS)
            before = writes.total()
            # Engines that come and go in pools with others change nothing of what the operator makes.
            version = (await picker.json("/pools"))["version"]
            for name in list(hosts)[:10]:
                await there.set_ready(name, hosts[name], ready=False)
            await picker.json(f"/pools?since={version}&wait=30")
            await quiet(operator)
            assert writes.total() == before
        async with running_operator(access, home, pods, away) as operator:
            await quiet(operator)
            assert operator.world.writer.writes.total() == 0
            assert await all_well()
