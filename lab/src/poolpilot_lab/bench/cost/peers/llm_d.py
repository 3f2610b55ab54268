"""llm-d's endpoint picker from a given binary: its endpoints come from a file, without Kubernetes."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any, Final

import yaml

from poolpilot_lab.bench.cost.peers.endpoints import hosts_and_port
from poolpilot_lab.bench.cost.peers.epp import running
from poolpilot_lab.gotools import NotAvailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from poolpilot_lab.bench.cost.peers.epp import PeerPicker

SCORERS: Final = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
"""With their weights: what it would do without a configuration."""


@contextlib.asynccontextmanager
async def llm_d_epp(
    binary: Path, endpoints: Sequence[str], *, refresh_ms: int, workdir: Path
) -> AsyncIterator[PeerPicker]:
    """The picker `binary` (llm-d-router v0.10.0 or one that takes its flags) over `endpoints`, as `gie_epp`.

    Raises ValueError for endpoints it cannot have, NotAvailable if there is no such program, ProcessError if it does
    not start.
    """
    hosts, port = hosts_and_port(endpoints)
    program = _program(binary)
    listed = _written(workdir / "endpoints.yaml", _endpoints(hosts, port))
    config = _written(workdir / "epp.yaml", _config(listed))
    async with running(
        "llm-d-epp",
        program,
        endpoints,
        refresh_ms=refresh_ms,
        workdir=workdir,
        flags=[f"--config-file={config}"],
    ) as picker:
        yield picker


def _program(binary: Path) -> Path:
    program = binary.resolve()
    if shutil.which(program) is None:
        raise NotAvailable(f"{binary}: there is no such program")
    return program


def _endpoints(hosts: Sequence[str], port: int) -> dict[str, Any]:
    return {
        "endpoints": [
            {"name": f"server-{number}", "address": host, "port": str(port)} for number, host in enumerate(hosts)
        ]
    }


def _config(listed: Path) -> dict[str, Any]:
    discovery = {"type": "file-discovery", "parameters": {"path": str(listed), "watchFile": False}}
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [discovery, *({"type": scorer} for scorer in SCORERS)],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [{"pluginRef": scorer, "weight": weight} for scorer, weight in SCORERS.items()],
            }
        ],
        "dataLayer": {"discovery": {"pluginRef": discovery["type"]}},
    }


def _written(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path.resolve()
