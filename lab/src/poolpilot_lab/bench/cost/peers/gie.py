"""The endpoint picker of the Gateway API Inference Extension, and the Kubernetes API that it reads its pool from."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import yaml

from poolpilot_lab.bench.cost.peers.endpoints import hosts_and_port
from poolpilot_lab.bench.cost.peers.epp import NAMESPACE, POOL, running
from poolpilot_lab.control_plane.cluster import control_plane
from poolpilot_lab.gotools import TOOLS, GoProgram, built, source_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from poolpilot_lab.bench.cost.peers.epp import PeerPicker
    from poolpilot_lab.control_plane.api import Api

MODULE: Final = TOOLS / "gie-epp"
_SOURCE: Final = "sigs.k8s.io/gateway-api-inference-extension"
PACKAGE: Final = f"{_SOURCE}/cmd/epp"
_LABELS: Final = {"app": "server"}


@contextlib.asynccontextmanager
async def gie_epp(
    endpoints: Sequence[str], *, refresh_ms: int, workdir: Path, say: Callable[[str], None] | None = None
) -> AsyncIterator[PeerPicker]:
    """GIE's picker over `endpoints` (A.B.C.D:PORT, one port for all): pods of a pool, in a control plane of its own.

    It runs with the configuration it has built in (queue 2, KV cache 2, prefix 3) and reads every endpoint's metrics
    each `refresh_ms` milliseconds. Nothing of the control plane counts as the picker's. `say` hears of builds.
    Raises ValueError for endpoints it cannot have, NotAvailable if the programs cannot be had, ProcessError if one
    does not start.
    """
    hosts, port = hosts_and_port(endpoints)
    program = await built(GoProgram(MODULE, PACKAGE), say)
    definitions = _definitions(await source_folder(MODULE, _SOURCE))
    async with control_plane(workdir, say=say) as plane:
        async with plane.api() as api:
            await api.define(definitions)
            await _make_pool(api, hosts, port)
        env = {"KUBECONFIG": str(plane.kubeconfig)}
        async with running("gie-epp", program, endpoints, refresh_ms=refresh_ms, workdir=workdir, env=env) as picker:
            yield picker


def _definitions(source: Path) -> list[dict[str, Any]]:
    """Its own, of its own version."""
    return [
        definition
        for file in sorted((source / "config" / "crd" / "bases").glob("*.yaml"))
        for definition in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    ]


async def _make_pool(api: Api, hosts: Sequence[str], port: int) -> None:
    # No controller runs that would make it, and without it no pod is admitted.
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named("default")})
    await asyncio.gather(*(_make_pod(api, *pod) for pod in _pods(hosts)))
    await api.apply(
        {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": _named(POOL),
            "spec": {
                "selector": {"matchLabels": _LABELS},
                "targetPorts": [{"number": port}],
                "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
            },
        }
    )


async def _make_pod(api: Api, manifest: dict[str, Any], status: dict[str, Any]) -> None:
    await api.create(manifest)
    await api.set_status(manifest, status)


def _pods(hosts: Sequence[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for number, host in enumerate(hosts):
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**_named(f"server-{number}"), "labels": _LABELS},
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [{"name": "server", "image": "server"}],
            },
        }
        ready = {"type": "Ready", "status": "True"}
        yield manifest, {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}], "conditions": [ready]}


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": NAMESPACE}
