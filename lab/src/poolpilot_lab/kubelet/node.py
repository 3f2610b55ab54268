"""The node itself: its object, its conditions, and the Lease that says it lives."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import platform
from typing import TYPE_CHECKING, Final

from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.kubelet.events import LOST
from poolpilot_lab.kubelet.status import timestamp

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.kubelet.objects import Json

log: Final = logging.getLogger(__name__)

ALLOCATABLE: Final = {
    "cpu": "64",
    "memory": "256Gi",
    "pods": "500",
    "ephemeral-storage": "100Gi",
    "nvidia.com/gpu": "64",
}
"""More than any test asks for: nothing is measured or limited."""
_LEASE_S: Final = 40
_RENEW_S: Final = 10.0
_CONDITIONS: Final = {"Ready": True, "MemoryPressure": False, "DiskPressure": False, "PIDPressure": False}
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def manifest(name: str) -> Json:
    """The Node to make."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        "topology.kubernetes.io/zone": "local",
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def status(name: str, host: str, logs_port: int, version: str) -> Json:
    """A healthy node. The API server asks `host`:`logs_port` for the output of containers."""
    now = timestamp()
    conditions = [
        {
            "type": kind,
            "status": str(value),
            "reason": "ProcessKubelet",
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, value in _CONDITIONS.items()
    ]
    return {
        "capacity": ALLOCATABLE,
        "allocatable": ALLOCATABLE,
        "conditions": conditions,
        "addresses": [{"type": "InternalIP", "address": host}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": logs_port}},
        "nodeInfo": {
            "architecture": _architecture(),
            "bootID": "",
            "containerRuntimeVersion": "process://1",
            "kernelVersion": os.uname().release,
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "processes",
            "systemUUID": "",
        },
    }


async def register(api: Api, name: str, host: str, logs_port: int, version: str) -> None:
    """Pods may be bound to the node from now on."""
    await api.apply(manifest(name))
    await api.set_status(manifest(name), status(name, host, logs_port, version))


async def stay(api: Api, name: str) -> None:
    """Renews the Lease, for ever."""
    while True:
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": _LEASE_S, "renewTime": moment},
        }
        try:
            await api.apply(lease)
        except (ApiError, *LOST) as error:
            log.warning("lease: %s", error)
        await asyncio.sleep(_RENEW_S)


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())
