"""The pickers that are compared, each started against the same endpoints: ours, and Go's."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
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

    port: int
    pids: tuple[int, ...]
    admin_port: int | None = None


class _Ready(msgspec.Struct):
    port: int
    admin_port: int


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
        yield RunningPicker(ready.port, (child.pid,), ready.admin_port)


def _written(config: Path) -> Path:
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_FULL_PAGES, encoding="utf-8")
    return config
