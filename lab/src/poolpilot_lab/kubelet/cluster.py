"""A whole cluster on this machine: control plane and one node, inside the namespaces of `host`."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.control_plane.cluster import ADMINS, ControlPlane, control_plane
from poolpilot_lab.kubelet import network
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from poolpilot_lab.kubelet.images import Image

_START_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running one."""

    plane: ControlPlane
    kubelet: Child

    @property
    def pod_logs(self) -> Path:
        """A folder for each pod, also of those that are gone: NAMESPACE_POD_UID/CONTAINER/RUN.log."""
        return self.plane.folder / "node" / "logs"


@contextlib.asynccontextmanager
async def cluster(
    workdir: Path, images: Mapping[str, Image], *, flags: Sequence[str] = (), most_probe_period_s: float = 1.0
) -> AsyncIterator[Cluster]:
    """A cluster of its own until the context ends; the caller runs in fresh namespaces (`host.command`).

    `flags` are for kube-apiserver. Probes ask at least every `most_probe_period_s`, so that nobody waits for a period
    meant for production. Raises NotAvailable or ProcessError, as `control_plane` does.
    """
    await network.set_up()
    async with control_plane(workdir, host=network.NODE, flags=flags, controllers=True) as plane:
        kubelet = _kubelet(plane, images, most_probe_period_s)
        try:
            kubelet.start()
            if await kubelet.line(_START_S) != "ready":
                raise RuntimeError("the kubelet said something else first")
            yield Cluster(plane, kubelet)
        finally:
            await kubelet.stop()


def _kubelet(plane: ControlPlane, images: Mapping[str, Image], most_probe_period_s: float) -> Child:
    folder = plane.folder / "node"
    folder.mkdir()
    names = folder / "images.json"
    names.write_bytes(msgspec.json.encode(images))
    certificate, key = plane.authority.server("kubelet", [network.NODE]).write(folder, "kubelet")
    argv = [
        *(sys.executable, "-m", "poolpilot_lab.kubelet"),
        f"--kubeconfig={plane.kubeconfig_of('kubelet', [ADMINS])}",
        f"--folder={folder}",
        f"--images={names}",
        f"--tls-cert={certificate}",
        f"--tls-key={key}",
        f"--most-probe-period={most_probe_period_s}",
        *(f"--software={one}" for one in sorted(_software())),
    ]
    # As in an image with Python: `python` is this one.
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return Child("kubelet", argv, log=plane.folder / "kubelet.log", out=folder / "said", env=env)


def _software() -> set[Path]:
    """Where this Python lies, and what it imports of ours: a checkout may lie in /tmp, which pods make their own."""
    return {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[4]}
