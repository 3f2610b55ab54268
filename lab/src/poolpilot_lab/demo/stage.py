"""The programs of one run: four engines, the picker if it is its turn, Envoy. Up together, down together."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.demo.errors import ChildEndedError
from poolpilot_lab.demo.policies import Policy, envoy_settings
from poolpilot_lab.demo.scenario import ADAPTER_SLOTS, ADAPTERS, BASE_MODEL, ENGINES, HIDDEN, EngineSpec
from poolpilot_lab.processes import Child, envoy, envoy_is_ready, free_ports
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.render import to_yaml
from poolpilot_picker.envoy.settings import HostPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOST: Final = "127.0.0.1"
_START_S: Final = 60.0
"""Long, because a busy machine is no reason to fail: a program that ends is noticed at once."""


class _Ready(msgspec.Struct):
    port: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs, and where."""

    gateway: HostPort
    engines: tuple[HostPort, ...]
    """In the order of ENGINES."""
    children: tuple[Child, ...]

    async def watch(self) -> None:
        """Raises ChildEndedError as soon as a program ends; never returns."""
        while True:
            for child in self.children:
                if not child.running:
                    raise ChildEndedError(f"{child.name} ended with exit code {child.exit_code}\n{child.tail()}")
            await asyncio.sleep(0.25)


@contextlib.asynccontextmanager
async def stage(policy: Policy, seed: int, folder: Path) -> AsyncIterator[Stage]:
    """Starts everything, cold; stops everything on the way out, whatever happened.

    `folder` takes logs, configurations and the endpoint file; it must be empty. Raises ProcessError.
    """
    children: list[Child] = []
    try:
        engines = [_engine(spec, 100 * seed + index, folder) for index, spec in enumerate(ENGINES)]
        children += engines
        addresses = await asyncio.gather(*(_announced(child) for child in engines))
        eds = folder / "eds"
        eds.mkdir(parents=True, exist_ok=True)
        picker = HostPort(HOST, 1)
        if policy.baseline is None:
            children.append(_picker(addresses, eds, folder))
            picker = await _announced(children[-1])
        gateway, admin = (HostPort(HOST, port) for port in free_ports(2))
        settings = envoy_settings(policy, gateway, admin, picker, eds, addresses)
        config = folder / "envoy.yaml"
        config.write_text(to_yaml(settings, bootstrap(settings)), encoding="utf-8")
        children.append(envoy(config, log=folder / "envoy.log"))
        await children[-1].start().ready(envoy_is_ready(admin.port), _START_S)
        yield Stage(gateway, tuple(addresses), tuple(children))
    finally:
        try:
            await asyncio.gather(*(child.stop(grace_s=3.0) for child in children))
        finally:
            # Reached at once when the stopping itself is interrupted.
            for child in children:
                child.kill()


async def _announced(child: Child) -> HostPort:
    """Starts a program that chooses its own port and says so."""
    line = await child.start().line(_START_S)
    return HostPort(HOST, msgspec.json.decode(line, type=_Ready).port)


def _engine(spec: EngineSpec, seed: int, folder: Path) -> Child:
    flags = [
        "--host", HOST, "--port", "0",
        "--profile", spec.profile,
        "--served-model-name", BASE_MODEL,
        "--enable-lora", "--max-loras", str(ADAPTER_SLOTS),
        "--lora-modules", *(f"{adapter}=/adapters/{adapter}" for adapter in ADAPTERS),
        "--seed", str(seed),
        *(part for flag, value in HIDDEN.items() for part in (f"--{flag}", str(value))),
        "--instance", spec.name,
    ]  # fmt: skip
    if spec.kv_blocks is not None:
        flags += ["--num-gpu-blocks-override", str(spec.kv_blocks)]
    return _ours(spec.name, "engine", flags, folder)


def _picker(engines: list[HostPort], eds: Path, folder: Path) -> Child:
    endpoints = ",".join(f"{engine.host}:{engine.port}" for engine in engines)
    flags = [
        "--listen", f"{HOST}:0", "--admin", f"{HOST}:0", "--print-ready",
        "--endpoints", endpoints,
        "--eds-dir", str(eds),
    ]  # fmt: skip
    return _ours("picker", "picker", flags, folder)


def _ours(name: str, subcommand: str, flags: list[str], folder: Path) -> Child:
    argv = [sys.executable, "-m", "poolpilot", subcommand, *flags]
    return Child(name, argv, log=folder / f"{name}.log", out=folder / f"{name}.ready")
