"""What `operator_scale.py` measures: a cluster of many pools and pods, an operator and a picker as programs."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from kube_pods import Namespace
from operator_stage import Cluster, eventually
from poolpilot_kube.names import ADMIN_PORT, PICKER_LABEL, POOLS_PATH
from poolpilot_lab.bench.cost.machine import cpu_seconds, rss_bytes
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable

    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

HOME: Final = "home"
REAL: Final = "default"
"""The Picker whose pod is a picker; the pods of the others only say that they serve (`scale_pods.py`)."""
ENGINE_PORT: Final = 8000
PODS: Final = ipaddress.ip_network("10.244.0.0/16")
_PICKERS: Final = "10.244.255.{}"
_NAMESPACES: Final = 20
_AT_ONCE: Final = 24
MIB: Final = 2**20


class Sizes(msgspec.Struct, frozen=True):
    """How many there are of each."""

    pools: int = 2000
    pods: int = 5000
    """Of engines."""
    real_pools: int = 200
    real_pods: int = 1000
    """Those of the pools of REAL."""

    @property
    def pickers(self) -> int:
        """As many pools each as the real one, about."""
        return 1 + -(-(self.pools - self.real_pools) // self.real_pools)

    def picker_of(self, pool: int) -> str:
        """By the number of a pool."""
        stand_ins = self.pickers - 1
        return REAL if pool < self.real_pools or not stand_ins else f"stand-in-{pool % stand_ins + 1}"

    def pool_of(self, pod: int) -> int:
        """By the number of a pod."""
        if pod < self.real_pods or self.pools == self.real_pools:
            return pod % self.real_pools
        return self.real_pools + (pod - self.real_pods) % (self.pools - self.real_pools)


class Operator:
    """One operator for the whole cluster."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        argv = [
            *(sys.executable, "-m", "poolpilot_operator"),
            f"--kubeconfig={plane.kubeconfig}",
            *(f"--namespace={HOME}", "--picker-image=picker", "--admin-host=127.0.0.1", "--admin-port=0"),
        ]
        self.log = folder / "operator.log"
        self.log.unlink(missing_ok=True)
        self.child = Child("operator", argv, log=self.log)

    def _said(self, message: str) -> dict[str, Any] | None:
        lines = [msgspec.json.decode(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return next((line for line in lines if line["message"] == message), None)

    async def counts(self) -> dict[str, float]:
        """Metrics by name and labels; empty before it has started."""
        started = self._said("started")
        if started is None:
            return {}
        page = await _text(f"http://127.0.0.1:{started['admin_port']}/metrics")
        return {
            name: float(value) for name, value in re.findall(r"^poolpilot_operator_(\S+) (\S+)$", page, re.MULTILINE)
        }

    async def total(self, name: str, labels: str = "") -> float:
        """Over all series of a family whose labels contain this."""
        found = (await self.counts()).items()
        return sum(value for key, value in found if key.partition("{")[0] == name and labels in key)

    async def writes(self) -> dict[str, int]:
        """By kind and verb."""
        found = ((key, value) for key, value in (await self.counts()).items() if key.startswith("writes_total{"))
        return {" ".join(re.findall(r'"([^"]*)"', key)): int(value) for key, value in sorted(found)}

    async def settled(self, pools: int, pickers: int) -> bool:
        """Has looked at everything, all pools are served and well, and nothing waits."""
        if not await self.total("leader"):
            return False
        looked = await self.total("reconciles_total", '"pool"') >= pools
        looked = looked and await self.total("reconciles_total", '"picker"') >= pickers
        healthy = await self.total("pools", '"healthy"') == pools
        return looked and healthy and not await self.total("queue_depth")


class Used:
    """What a process used of a core since the last look."""

    def __init__(self, child: Child) -> None:
        assert child.pid is not None
        self._pids = [child.pid]
        self.cpu_s = self.wall_s = 0.0
        self._cpu, self._at = cpu_seconds(self._pids), time.monotonic()

    def look(self) -> float:
        """CPU since then, in percent of a core."""
        cpu, at = cpu_seconds(self._pids), time.monotonic()
        self.cpu_s, self.wall_s = cpu - self._cpu, at - self._at
        self._cpu, self._at = cpu, at
        return 100.0 * self.cpu_s / self.wall_s

    @property
    def rss_mib(self) -> float:
        return rss_bytes(self._pids) / MIB


class Site:
    """The cluster: Pickers, picker pods and engine pods with the status that a kubelet would give them."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path, sizes: Sizes) -> None:
        self.plane, self.api, self.folder, self.sizes = plane, api, folder, sizes
        self.cluster = Cluster(api)
        self._namespaces = [Namespace(api, f"team-{number}") for number in range(_NAMESPACES)]
        self._ready = [True] * sizes.pods
        self._children: list[Child] = []

    # ---- what there is

    async def made(self) -> None:
        """Everything but the pools."""
        for one in (Namespace(self.api, HOME), *self._namespaces):
            await one.made()
        for number, (address, picker) in enumerate(self.pickers.items()):
            await self.cluster.made_picker(HOME, picker)
            await self.cluster.ready_pod((HOME, picker), f"picker-{number}", address)
        await _together(self._pod(number) for number in range(self.sizes.pods))

    @property
    def pickers(self) -> dict[str, str]:
        """Address of the picker pod → Picker."""
        names = [REAL, *(f"stand-in-{number}" for number in range(1, self.sizes.pickers))]
        return {_PICKERS.format(number): name for number, name in enumerate(names, 1)}

    async def pools(self, numbers: Iterable[int]) -> None:
        """InferencePools come."""
        await _together(self.pool(number) for number in numbers)

    async def pool(self, number: int, picker: str = "") -> None:
        """One comes."""
        wanted = picker or self.sizes.picker_of(number)
        await self.cluster.made_pool(self.namespace(number), f"pool-{number}", ENGINE_PORT, picker=wanted)

    def namespace(self, pool: int) -> str:
        """Of a pool, and of its pods."""
        return self._namespaces[pool % _NAMESPACES].name

    async def _pod(self, number: int) -> None:
        pool = self.sizes.pool_of(number)
        there = self._namespaces[pool % _NAMESPACES]
        await there.run(f"engine-{number}", str(PODS[number + 1]), {"app": f"pool-{pool}"})

    async def turn(self, number: int) -> None:
        """An engine pod becomes unready, or ready again."""
        there = self._namespaces[self.sizes.pool_of(number) % _NAMESPACES]
        ready = self._ready[number] = not self._ready[number]
        await there.set_ready(f"engine-{number}", str(PODS[number + 1]), ready=ready)

    async def touch(self, number: int) -> None:
        """Something changes on a picker pod that is of no importance."""
        meta = {"metadata": {"annotations": {"touched": str(time.monotonic())}}}
        path = f"/api/v1/namespaces/{HOME}/pods/picker-{number}"
        await self.api.call("PATCH", path, meta, content_type="application/merge-patch+json")

    # ---- what came of it

    async def slices(self) -> int:
        """EndpointSlices of pools with a ready endpoint."""
        listed = await self.api.call("GET", "/apis/discovery.k8s.io/v1/endpointslices")
        items = msgspec.json.decode(listed)["items"]
        ours = (one for one in items if one["metadata"].get("labels", {}).get(PICKER_LABEL))
        return sum(any(end["conditions"]["ready"] for end in one.get("endpoints") or ()) for one in ours)

    async def told(self) -> tuple[int, int]:
        """(served, healthy) pools in the status of all Pickers."""
        statuses = [(await self.cluster.picker(HOME, name)).get("status", {}) for name in self.pickers.values()]
        pools = [one.get("pools", {}) for one in statuses]
        return sum(one.get("served", 0) for one in pools), sum(one.get("healthy", 0) for one in pools)

    # ---- programs

    def engines(self) -> None:
        """Engines at the addresses of all pods."""
        self._support("engines", "engines", str(ENGINE_PORT))

    def stand_ins(self) -> None:
        """The picker pods that are no pickers."""
        others = [f"{address}={name}" for address, name in self.pickers.items() if name != REAL]
        if others:
            self._support("stand-ins", "pickers", str(self.plane.kubeconfig), *others)

    def _support(self, name: str, *arguments: str) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("scale_pods.py")), *arguments]
        self._children.append(Child(name, argv, log=self.folder / f"{name}.log").start())

    async def picker(self) -> Picker:
        """The pod of REAL."""
        flags = ("--picker-name", REAL, "--picker-namespace", HOME)
        return await self._picker("picker", f"{_PICKERS.format(1)}:{ADMIN_PORT}", flags)

    async def picker_of_one(self, pool: int) -> Picker:
        """A picker that serves this pool only."""
        flags = ("--pool-name", f"pool-{pool}", "--pool-namespace", self.namespace(pool))
        return await self._picker("picker-of-one", f"{_PICKERS.format(250)}:{ADMIN_PORT}", flags)

    async def _picker(self, name: str, admin: str, flags: tuple[str, ...]) -> Picker:
        host = admin.partition(":")[0]
        argv = [sys.executable, "-m", "poolpilot_picker", "--print-ready", "--listen", f"{host}:0", "--admin", admin]
        argv += ["--kubeconfig", str(self.plane.kubeconfig), *flags]
        child = Child(name, argv, log=self.folder / f"{name}.log", out=self.folder / f"{name}.out").start()
        self._children.append(child)
        ready = msgspec.json.decode(await child.line(60.0))
        return Picker(child, host, ready["port"])

    async def stop(self) -> None:
        """All of them."""
        await asyncio.gather(*(child.stop(0.0) for child in self._children))


class Picker:
    """One picker program."""

    def __init__(self, child: Child, host: str, port: int) -> None:
        self.child, self.host, self.port = child, host, port

    async def page(self, path: str) -> str:
        return await _text(f"http://{self.host}:{ADMIN_PORT}{path}")

    async def serving(self) -> dict[str, int]:
        """NAMESPACE/NAME → port, of the pools that it serves."""
        listed = msgspec.json.decode(await self.page(POOLS_PATH))["pools"]
        return {f"{one['namespace']}/{one['name']}": one["port"] for one in listed if one["serving"]}

    async def read(self, engines: int) -> None:
        """Waits until it has so many endpoints in all pools."""

        async def all_there() -> bool:
            found = re.findall(r"^llm_d_epp_ready_endpoints\{.*?\} (\S+)$", await self.page("/metrics"), re.MULTILINE)
            return sum(map(float, found)) >= engines

        await eventually(all_there, "endpoints", limit_s=300.0)


async def churn(site: Site, per_s: float, seconds: float, rng: random.Random) -> int:
    """Pods change: nine of ten are engines, which become unready or ready; returns how many did."""
    began, tasks = time.monotonic(), set[asyncio.Task[None]]()
    for number in itertools.count():
        due = began + number / per_s
        if due - began >= seconds:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        engine, picker = rng.randrange(site.sizes.pods), rng.randrange(len(site.pickers))
        tasks.add(asyncio.create_task(site.turn(engine) if number % 10 else site.touch(picker)))
    await asyncio.gather(*tasks)
    return len(tasks)


async def took(check: Callable[[], Awaitable[object]], limit_s: float = 60.0) -> float:
    """Seconds until it is true."""
    began = time.monotonic()
    async with asyncio.timeout(limit_s):
        while not await check():
            await asyncio.sleep(0.01)
    return time.monotonic() - began


async def _together(work: Iterable[Awaitable[Any]]) -> None:
    """A few at once: more would only wait for each other in the API server."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(what: Awaitable[Any]) -> None:
        async with limit:
            await what

    await asyncio.gather(*(one(what) for what in work))


async def _text(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()
