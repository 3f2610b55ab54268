"""Pools of a Picker on a real API server: what the operator would make of them, and what a picker says of them."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING, Any

from extproc_client import DataPlane
from kube_pods import Namespace

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.api import Api

PICKER = ("poolpilot", "default")
"""(namespace, name)."""
LABELS = {
    "app.kubernetes.io/managed-by": "poolpilot",
    "poolpilot.dev/operator": "poolpilot",
    "poolpilot.dev/picker": PICKER[1],
    "poolpilot.dev/picker-namespace": PICKER[0],
}


def service(
    namespace: str, name: str, pool: str | None, port: int | str | None, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    """The Service of a pool; `port`: where the Picker's pods listen for it."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": LABELS if labels is None else labels}
    if pool is not None:
        metadata["annotations"] = {"poolpilot.dev/pool": pool}
    ports = [{"port": 9002, "targetPort": port, "appProtocol": "kubernetes.io/h2c"}] if port is not None else []
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None", "ports": ports}}


class Pools:
    """Pools of one namespace: each selects the pods with its own label."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.there = Namespace(api, namespace)
        self.name = namespace

    async def serve(self, pool: str, port: int) -> None:
        """An InferencePool and its Service."""
        await self.api.apply(self.there.pool(pool, {"pool": pool}, 9))
        await self.api.apply(service(self.name, pool, pool, port))

    async def run(self, pool: str, *hosts: str) -> None:
        """Pods of a pool, at these addresses."""
        for host in hosts:
            await self.there.run(f"{pool}-{host.replace('.', '-')}", host, {"pool": pool})

    async def leave(self, pool: str) -> None:
        """No Service any more."""
        await self.api.delete(service(self.name, pool, pool, 20_000))

    async def remove(self, pool: str) -> None:
        """No InferencePool any more."""
        await self.api.delete(self.there.pool(pool, {}, 9))


async def health(port: int, name: str = "") -> str:
    """What the health service of a port says; empty where nobody listens."""
    async with DataPlane(port) as plane:
        try:
            return str(await plane.health(name))
        except Exception:
            return ""


def pool_ports(count: int) -> list[int]:
    """Free ports of those that pools may have."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
