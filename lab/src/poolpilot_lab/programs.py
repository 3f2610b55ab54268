"""Our own programs as a demo or a bench starts them: stand-in engines, and a picker that writes Envoy's endpoints."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.processes import Child
from poolpilot_picker.envoy.settings import HostPort

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

HOST: Final = "127.0.0.1"
START_S: Final = 60.0
"""Long, because a busy machine is no reason to fail: a program that ends is noticed at once."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One stand-in engine. Nothing of this is told to whoever routes."""

    name: str
    profile: str
    kv_blocks: int | None = None
    """KV blocks of 16 tokens, instead of what fits into the GPU."""


class _Ready(msgspec.Struct):
    port: int


def engine_flags(spec: EngineSpec, address: HostPort, model: str, seed: int, hidden: Mapping[str, float]) -> list[str]:
    """Of `poolpilot engine`. hidden: how far it strays from its profile, as flags."""
    flags = [
        "--host", address.host, "--port", str(address.port),
        "--profile", spec.profile,
        "--served-model-name", model,
        "--seed", str(seed),
        *(part for flag, value in hidden.items() for part in (f"--{flag}", str(value))),
        "--instance", spec.name,
    ]  # fmt: skip
    if spec.kv_blocks is not None:
        flags += ["--num-gpu-blocks-override", str(spec.kv_blocks)]
    return flags


def ours(name: str, subcommand: str, flags: Iterable[str], folder: Path) -> Child:
    """A subcommand of `poolpilot`, not started; logs go to `folder`."""
    argv = [sys.executable, "-m", "poolpilot", subcommand, *flags]
    return Child(name, argv, log=folder / f"{name}.log", out=folder / f"{name}.ready")


def picker(endpoints: Iterable[str], eds: Path, folder: Path) -> Child:
    """With default flags in front of `endpoints` (HOST:PORT), not started; `eds`: folder of the endpoint file."""
    eds.mkdir(parents=True, exist_ok=True)
    flags = [
        "--listen", f"{HOST}:0", "--admin", f"{HOST}:0", "--print-ready",
        "--endpoints", ",".join(endpoints),
        "--eds-dir", str(eds),
    ]  # fmt: skip
    return ours("picker", "picker", flags, folder)


async def announced(child: Child) -> HostPort:
    """Starts a program that chooses its own port and says so. Raises ProcessError."""
    line = await child.start().line(START_S)
    return HostPort(HOST, msgspec.json.decode(line, type=_Ready).port)
