"""The programs of one run: four engines, the picker if it is its turn, Envoy. Up together, down together."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolpilot_lab.demo.policies import Policy, envoy_settings
from poolpilot_lab.demo.scenario import ADAPTER_SLOTS, ADAPTERS, BASE_MODEL, ENGINES, HIDDEN
from poolpilot_lab.processes import envoy, envoy_is_ready, free_ports, stop_all
from poolpilot_lab.programs import HOST, START_S, announced, engine_flags, ours, picker
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.render import to_yaml
from poolpilot_picker.envoy.settings import HostPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from poolpilot_lab.processes import Child
    from poolpilot_lab.programs import EngineSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs, and where."""

    gateway: HostPort
    engines: tuple[HostPort, ...]
    """In the order of ENGINES."""
    children: tuple[Child, ...]


@contextlib.asynccontextmanager
async def stage(policy: Policy, seed: int, folder: Path) -> AsyncIterator[Stage]:
    """Starts everything, cold; stops everything on the way out, whatever happened.

    `folder` takes logs, configurations and the endpoint file; it must be empty. Raises ProcessError.
    """
    children: list[Child] = []
    try:
        engines = [_engine(spec, 100 * seed + index, folder) for index, spec in enumerate(ENGINES)]
        children += engines
        addresses = await asyncio.gather(*(announced(child) for child in engines))
        eds = folder / "eds"
        place = HostPort(HOST, 1)
        if policy.baseline is None:
            children.append(picker([f"{one.host}:{one.port}" for one in addresses], eds, folder))
            place = await announced(children[-1])
        gateway, admin = (HostPort(HOST, port) for port in free_ports(2))
        settings = envoy_settings(policy, gateway, admin, place, eds, addresses)
        config = folder / "envoy.yaml"
        config.write_text(to_yaml(settings, bootstrap(settings)), encoding="utf-8")
        children.append(envoy(config, log=folder / "envoy.log"))
        await children[-1].start().ready(envoy_is_ready(admin.port), START_S)
        yield Stage(gateway, tuple(addresses), tuple(children))
    finally:
        await stop_all(children, 3.0)


def _engine(spec: EngineSpec, seed: int, folder: Path) -> Child:
    flags = [
        *engine_flags(spec, HostPort(HOST, 0), BASE_MODEL, seed, HIDDEN),
        "--enable-lora", "--max-loras", str(ADAPTER_SLOTS),
        "--lora-modules", *(f"{adapter}=/adapters/{adapter}" for adapter in ADAPTERS),
    ]  # fmt: skip
    return ours(spec.name, "engine", flags, folder)
