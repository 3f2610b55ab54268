"""The figures of docs/adr/0007-watches.md: the official client's informer before a real API server that has faults.

By hand, three minutes: `PYTHONPATH=tests/support .venv/bin/python tests/support/informer_faults.py`. It goes by the
clock, so the machine should have nothing else to do.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes
from kubernetes.informer import SharedInformer

from api_faults import FaultProxy, fault_proxy, plain_kubeconfig
from control_planes import definitions
from kube_pods import Namespace
from poolpilot_lab.control_plane.cluster import control_plane

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.control_plane.api import Api


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def within(seconds: float, check: Callable[[], bool]) -> str:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if check():
            return f"after {time.monotonic() - began:.2f} s"
        await asyncio.sleep(0.02)
    return f"not within {seconds:.0f} s"


async def asked_in(proxy: FaultProxy, seconds: float) -> int:
    await asyncio.sleep(0.5)
    before = len(proxy.asked)
    await asyncio.sleep(seconds)
    return len(proxy.asked) - before


async def faults(api: Api, proxy: FaultProxy, kubeconfig: Path) -> None:
    kubernetes.config.load_kube_config(str(kubeconfig))
    informer = SharedInformer(kubernetes.client.CoreV1Api().list_namespaced_config_map, namespace="default")
    heard: Counter[str] = Counter()
    for kind in ("ADDED", "DELETED"):
        informer.add_event_handler(kind, lambda _, kind=kind: heard.update([kind]))

    def has(name: str) -> bool:
        return any(one.metadata.name == name for one in informer.cache.list())

    await api.apply(config_map("a"))
    informer.start()
    print("listed", await within(10, lambda: has("a")))
    await proxy.until(lambda: bool(proxy.watches))
    print("asks a watch for", proxy.watches[-1].query)
    await proxy.cut()
    await api.apply(config_map("b"))
    print("cut: resumed", await within(10, lambda: has("b")))
    for status, headers in ((410, {}), (500, {}), (429, {"retry-after": "5"})):
        proxy.refuse_watches = (status, headers)
        await proxy.cut()
        print(f"{status} to every watch: {await asked_in(proxy, 3.0)} requests in 3 s")
        proxy.refuse_watches = None
        await asyncio.sleep(6.0)
    proxy.transform = lambda line: [line, line]
    await proxy.cut()
    await asyncio.sleep(1.0)
    before = heard["ADDED"]
    await api.apply(config_map("c"))
    await asyncio.sleep(1.0)
    print("an addition sent twice: heard", heard["ADDED"] - before, "times")
    proxy.transform = lambda line: [] if line.startswith(b'{"type":"DELETED"') else [line]
    await proxy.cut()
    await asyncio.sleep(1.0)
    await api.delete(config_map("c"))
    print("a deletion that is lost: gone", await within(20, lambda: not has("c")))
    proxy.transform = lambda line: [line]
    proxy.silent = True
    await proxy.cut()
    await asyncio.sleep(1.0)
    await api.apply(config_map("d"))
    print("silent watch: seen", await within(120, lambda: has("d")))
    proxy.silent = False
    await proxy.cut()
    informer.stop()


async def custom_objects(api: Api) -> None:
    await api.define(definitions())
    await api.apply(Namespace(api, "default").pool("p", {"app": "vllm"}, 8000))
    objects = kubernetes.client.CustomObjectsApi()
    errors: list[str] = []

    def pools(**wanted: Any) -> Any:
        return objects.list_namespaced_custom_object(
            "inference.networking.k8s.io", "v1", plural="inferencepools", **wanted
        )

    informer = SharedInformer(pools, namespace="default")
    informer.add_event_handler("ERROR", lambda error: errors.append(str(error)))
    informer.start()
    print("InferencePools: listed", await within(6, lambda: len(informer.cache.list()) > 0), errors[:1])
    informer.stop()


async def main() -> None:
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="informer-faults-"))
    async with control_plane(folder) as plane, plane.api() as api, fault_proxy(plane.kubeconfig) as proxy:
        await faults(api, proxy, plain_kubeconfig(proxy, folder / "proxy.kubeconfig"))
        await custom_objects(api)


if __name__ == "__main__":
    asyncio.run(main())
