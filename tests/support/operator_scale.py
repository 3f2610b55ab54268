"""The figures of docs/benchmarks/operator.md: operator and picker with many pools and pods, on a real API server.

By hand, about ten minutes: `PYTHONPATH=tests/support .venv/bin/python tests/support/operator_scale.py`, or with other
numbers `… POOLS PODS REAL_POOLS REAL_PODS` (`scale_stage.Sizes`). It goes by the clock, so the machine should have
nothing else to do. Everything runs in a network of its own, in which the addresses of all pods are local.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from control_planes import definitions
from extproc_client import DataPlane
from operator_stage import eventually
from poolpilot_lab.bench.cost.machine import cores, describe
from poolpilot_lab.control_plane.cluster import control_plane
from poolpilot_lab.control_plane.programs import programs
from poolpilot_lab.kubelet import host
from scale_stage import PODS, Operator, Picker, Site, Sizes, Used, churn, took

QUIET_S: Final = float(os.environ.get("QUIET_S", "60"))
CHURN_PER_S: Final = 10.0
ADDED: Final = 20
EXCHANGES: Final = int(os.environ.get("EXCHANGES", "2000"))
_ROUNDS: Final = 3
_AT_ONCE: Final = 8
_INSIDE: Final = "POOLPILOT_SCALE_INSIDE"


def say(what: str) -> None:
    """A line of the result, as soon as it is known."""
    print(f"[{os.getloadavg()[0]:.1f}] {what}", flush=True)


async def new_pools(site: Site, operator: Operator, picker: Picker) -> None:
    """From nothing to all served."""
    sizes, used, picker_used = site.sizes, Used(operator.child), Used(picker.child)
    began = time.monotonic()
    await site.pools(range(sizes.pools))
    say(f"{sizes.pools} pools applied in {time.monotonic() - began:.1f} s")
    await eventually(lambda: operator.settled(sizes.pools, len(site.pickers)), "served", limit_s=900.0)

    async def told() -> bool:
        return await site.told() == (sizes.pools, sizes.pools)

    await eventually(told, "told", limit_s=60.0)
    wall = time.monotonic() - began
    used.look(), picker_used.look()
    slices = await site.slices()
    assert slices == sizes.pools, slices
    say(f"all served and told {wall:.1f} s after the first was applied; {slices} EndpointSlices with a ready endpoint")
    say(f"operator: CPU {used.cpu_s:.1f} s, {used.rss_mib:.0f} MiB, writes {await operator.writes()}")
    say(f"picker: CPU {picker_used.cpu_s:.1f} s, {picker_used.rss_mib:.0f} MiB")


async def restarted(site: Site, operator: Operator) -> Operator:
    """The operator starts again, with everything as it should be."""
    # In order: else the next one waits for the Lease of the one before.
    await operator.child.stop(30.0)
    operator = Operator(site.plane, site.folder)
    began = time.monotonic()
    operator.child.start()
    await eventually(lambda: operator.settled(site.sizes.pools, len(site.pickers)), "again", limit_s=300.0)
    used = Used(operator.child)
    wall = time.monotonic() - began
    say(f"restart: {wall:.1f} s until all was looked at, {used.rss_mib:.0f} MiB, writes {await operator.writes()}")
    return operator


async def alone(operator: Operator, picker: Picker, seconds: float) -> None:
    """Nothing changes."""
    one, other, before = Used(operator.child), Used(picker.child), sum((await operator.writes()).values())
    await asyncio.sleep(seconds)
    cpu, picker_cpu = one.look(), other.look()
    writes = sum((await operator.writes()).values()) - before
    say(f"quiet: operator {cpu:.2f} % of a core, {one.rss_mib:.0f} MiB, {writes} writes")
    say(f"quiet: picker {picker_cpu:.1f} % of a core, {other.rss_mib:.0f} MiB")


async def changing(site: Site, operator: Operator, picker: Picker, seconds: float) -> None:
    """Pods change all the time."""
    one, other, before = Used(operator.child), Used(picker.child), sum((await operator.writes()).values())
    changed = await churn(site, CHURN_PER_S, seconds, random.Random(1))
    cpu, picker_cpu = one.look(), other.look()
    writes = sum((await operator.writes()).values()) - before
    say(f"{changed} pods changed in {one.wall_s:.0f} s: operator {cpu:.2f} % of a core, {writes} writes")
    say(f"meanwhile: picker {picker_cpu:.1f} % of a core, {other.rss_mib:.0f} MiB")


async def added(site: Site, picker: Picker) -> None:
    """Pools come one by one to a picker that runs."""
    known, published = [], []
    for number in range(site.sizes.pools, site.sizes.pools + ADDED):
        namespace, name = site.namespace(number), f"pool-{number}"
        began = time.monotonic()
        await site.pool(number, next(iter(site.pickers.values())))

        async def is_known(key: str = f"{namespace}/{name}") -> bool:
            return key in await picker.serving()

        async def is_published(there: str = namespace, service: str = f"{name}-picker") -> bool:
            return bool(await site.cluster.slice_addresses(there, service))

        await took(is_known)
        known.append(time.monotonic() - began)
        await took(is_published)
        published.append(time.monotonic() - began)
    for what, times in (("served by the picker", known), ("in its EndpointSlice", published)):
        say(f"a new pool is {what} after {statistics.median(times):.2f} s (median of {ADDED}; most {max(times):.2f} s)")


async def exchanges(picker: Picker, port: int) -> float:
    """CPU of the picker for one exchange with one pool, in microseconds, without what it uses anyway."""
    async with DataPlane(port, host=picker.host) as plane:
        await plane.exchange()
        used = Used(picker.child)
        await asyncio.sleep(5.0)
        idle = used.look() / 100.0
        each = EXCHANGES // _AT_ONCE

        async def some() -> None:
            for _ in range(each):
                await plane.exchange()

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
        used.look()
    return 1e6 * (used.cpu_s - idle * used.wall_s) / (each * _AT_ONCE)


async def requests(site: Site, picker: Picker) -> None:
    """What a request costs in a picker of many pools, and in one of one."""
    key = f"{site.namespace(0)}/pool-0"
    port = (await picker.serving())[key]
    one = await site.picker_of_one(0)
    many, single = [], []
    for _ in range(_ROUNDS):
        many.append(await exchanges(picker, port))
        single.append(await exchanges(one, one.port))
    used = Used(one.child)
    for what, costs in ((f"{site.sizes.real_pools + ADDED} pools", many), ("one pool", single)):
        each = ", ".join(f"{cost:.0f}" for cost in costs)
        say(f"CPU of a request, picker of {what}: {statistics.median(costs):.0f} us (of {each})")
    say(f"then: picker of one {used.rss_mib:.0f} MiB, of many {Used(picker.child).rss_mib:.0f} MiB")


async def measure(sizes: Sizes) -> None:
    """All figures."""
    folder = Path(tempfile.mkdtemp(prefix="operator-scale-"))
    say(f"{msgspec.to_builtins(describe(cores(os.sched_getaffinity(0))))}")
    async with control_plane(folder) as plane, plane.api() as api:
        await api.define(definitions())
        site = Site(plane, api, folder, sizes)
        began = time.monotonic()
        await site.made()
        say(f"{sizes.pods} engine pods, {len(site.pickers)} Pickers with a pod each: {time.monotonic() - began:.0f} s")
        site.engines()
        site.stand_ins()
        picker, operator = await site.picker(), Operator(plane, folder)
        operator.child.start()
        try:
            await eventually(lambda: operator.settled(0, len(site.pickers)), "starts", limit_s=120.0)
            empty, its_picker = Used(operator.child).rss_mib, Used(picker.child).rss_mib
            say(f"no pools: operator {empty:.0f} MiB, picker {its_picker:.0f} MiB")
            await new_pools(site, operator, picker)
            await picker.read(sizes.real_pods)
            operator = await restarted(site, operator)
            await alone(operator, picker, QUIET_S)
            await changing(site, operator, picker, QUIET_S)
            await added(site, picker)
            await requests(site, picker)
        finally:
            await operator.child.stop(0.0)
            await site.stop()


def main() -> None:
    """Goes into a network of its own, where the addresses of pods are local, and measures there."""
    if _INSIDE not in os.environ:
        asyncio.run(programs(print))
        called = [*host.command(), sys.executable, *sys.argv]
        os.execvpe(called[0], called, {**os.environ, _INSIDE: "1"})
    for what in ("link set lo up", f"route add local {PODS} dev lo"):
        subprocess.run(["ip", *what.split()], check=True)
    asyncio.run(measure(Sizes(*(int(one) for one in sys.argv[1:]))))


if __name__ == "__main__":
    main()
