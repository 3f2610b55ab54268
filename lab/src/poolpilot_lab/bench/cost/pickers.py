"""The pickers that are compared, each started against the same endpoints: ours, and Go's."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from poolpilot_lab.bench.cost import peers
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

SCRAPE_MS: Final = 50
"""Go's default, and ours wherever the two are compared."""


class Scrape(StrEnum):
    """How endpoints are read."""

    FULL = "full-50ms"
    """The whole page of every endpoint every 50 ms."""
    ADAPTIVE = "adaptive"
    """Our default: wanted families only, often while an endpoint has work and seldom while it is idle."""


@dataclass(frozen=True, slots=True)
class RunningPicker:
    """Where it listens, and the processes whose CPU is the picker's."""

    ports: tuple[int, ...]
    """One for each worker."""
    pids: tuple[int, ...]
    admin_port: int | None = None


class _Ready(msgspec.Struct):
    port: int
    admin_port: int
    ports: tuple[int, ...] = ()
    """Of each worker, where there are several."""


_FULL_PAGES: Final = f"""\
apiVersion: poolpilot.dev/v1alpha1
kind: EndpointPickerConfig
poolpilot:
  telemetry: {{busyIntervalMs: {SCRAPE_MS}, idleIntervalMs: {SCRAPE_MS}}}
"""


@contextlib.asynccontextmanager
async def poolpilot(
    endpoints: Sequence[str], transport: str, scrape: Scrape, workers: int, folder: Path
) -> AsyncIterator[RunningPicker]:
    """Ours as a process of its own: the default policy with default flags but for the intervals of `Scrape.FULL`."""
    argv = [
        sys.executable, "-m", "poolpilot_picker",
        "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--print-ready",
        "--transport", transport,
        "--endpoints", ",".join(endpoints),
        "--drain-timeout", "1",
    ]  # fmt: skip
    if scrape is Scrape.FULL:
        argv += ["--config-file", str(_written(folder / "picker.yaml"))]
    if workers > 1:
        argv += ["--workers", str(workers)]
    async with Child("poolpilot", argv, log=folder / "poolpilot.log", out=folder / "poolpilot.ready") as child:
        ready = msgspec.json.decode(await child.line(60.0), type=_Ready)
        yield RunningPicker(ready.ports or (ready.port,), (child.pid,), ready.admin_port)


async def streams_by_worker(picker: RunningPicker) -> dict[str, float]:
    """How many streams each worker has had so far; empty for a picker that is one process or tells nothing."""
    if picker.admin_port is None or len(picker.ports) == 1:
        return {}
    address = f"http://127.0.0.1:{picker.admin_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return {worker: float(count) for worker, count in _STREAMS.findall(await answer.text())}


_STREAMS: Final = re.compile(r'^poolpilot_worker_streams_total\{worker="([^"]+)"\} (\S+)$', re.MULTILINE)


@contextlib.asynccontextmanager
async def gie_epp(endpoints: Sequence[str], folder: Path, say: Callable[[str], None]) -> AsyncIterator[RunningPicker]:
    """The picker of the Gateway API Inference Extension; NotAvailable where it cannot be built."""
    async with peers.gie_epp(endpoints, refresh_ms=SCRAPE_MS, workdir=_made(folder), say=say) as peer:
        yield RunningPicker((peer.port,), peer.pids)


@contextlib.asynccontextmanager
async def llm_d_epp(binary: Path, endpoints: Sequence[str], folder: Path) -> AsyncIterator[RunningPicker]:
    """The picker of llm-d from this binary."""
    async with peers.llm_d_epp(binary, endpoints, refresh_ms=SCRAPE_MS, workdir=_made(folder)) as peer:
        yield RunningPicker((peer.port,), peer.pids)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _written(config: Path) -> Path:
    _made(config.parent)
    config.write_text(_FULL_PAGES, encoding="utf-8")
    return config
