"""The engines of one run: stand-ins on addresses of their own and one port, as pods have."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.peers.scenarios import MODEL
from poolpilot_lab.processes import ProcessError, stop_all
from poolpilot_lab.programs import START_S, engine_flags, ours
from poolpilot_picker.envoy.settings import HostPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from poolpilot_lab.bench.peers.scenarios import Scenario
    from poolpilot_lab.processes import Child

STOP_S: Final = 3.0
"""Until a program that was told to end is killed."""
_TRIES: Final = 50


def flags(scenario: Scenario, number: int, host: str, port: int, seed: int) -> list[str]:
    """Of `poolpilot engine`, for the engine with this number (from 0)."""
    median, sigma = scenario.answers
    return [
        *engine_flags(scenario.engines[number], HostPort(host, port), MODEL, 100 * seed + number, scenario.hidden),
        *("--output-median", str(median), "--output-sigma", str(sigma)),
    ]


@contextlib.asynccontextmanager
async def engines(scenario: Scenario, seed: int, folder: Path) -> AsyncIterator[tuple[list[str], list[Child]]]:
    """Cold engines, running: their addresses (HOST:PORT, one port for all) and processes. Raises ProcessError."""
    hosts = [f"127.0.1.{number}" for number in range(1, len(scenario.engines) + 1)]
    port = common_port(hosts)
    children = [
        ours(spec.name, "engine", flags(scenario, number, hosts[number], port, seed), folder)
        for number, spec in enumerate(scenario.engines)
    ]
    try:
        await asyncio.gather(*(child.start().line(START_S) for child in children))
        yield [f"{host}:{port}" for host in hosts], children
    finally:
        await stop_all(children, STOP_S)


def common_port(hosts: list[str]) -> int:
    """A TCP port that is free on all of these addresses now; ProcessError if there is none."""
    for _ in range(_TRIES):
        with contextlib.ExitStack() as held:
            port = 0
            try:
                for host in hosts:
                    one = held.enter_context(socket.socket())
                    one.bind((host, port))
                    port = one.getsockname()[1]
            except OSError:
                continue
            return port
    raise ProcessError(f"no port is free on all of {', '.join(hosts)}")
