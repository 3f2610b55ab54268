"""One run of the demo: a workload through one policy, watched; and all runs one after the other."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from poolpilot_lab.client.load import LoadResult, Outcome, play
from poolpilot_lab.client.pool import HttpClient
from poolpilot_lab.demo.figures import Counters, Endpoint, PolicyFigures, policy_figures
from poolpilot_lab.demo.machine import Punctuality, processor_seconds, punctuality
from poolpilot_lab.demo.scenario import ENGINES
from poolpilot_lab.demo.stage import stage
from poolpilot_lab.demo.telemetry import Clock, EngineMonitor, sample_forever
from poolpilot_lab.processes import watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolpilot_lab.demo.policies import Policy
    from poolpilot_lab.demo.series import EndpointSeries
    from poolpilot_lab.workload.sessions import Workload

DRAIN_S: Final = 15.0
"""How long requests may take after the last one was sent; what is unfinished then is an error."""
PATIENCE_S: Final = 100.0
"""From the start of the last session to its last request, at most: a pool that collapses does not hang the demo."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Of one policy."""

    policy: Policy
    figures: PolicyFigures
    series: list[EndpointSeries]
    outcomes: list[Outcome]
    punctuality: Punctuality
    seconds: float
    """From the first session to the last answer."""


async def run_policy(
    policy: Policy, workload: Workload, folder: Path, on_outcome: Callable[[Outcome], None]
) -> RunResult:
    """Starts everything cold, plays the workload, reads the engines' counters, stops everything.

    Raises ProcessError or DemoError when a program does not start, ends, or does not answer.
    """
    async with stage(policy, workload.seed, folder) as running:
        monitors = [
            EngineMonitor(spec.name, address.host, address.port)
            for spec, address in zip(ENGINES, running.engines, strict=True)
        ]
        client = HttpClient(running.gateway.host, running.gateway.port)
        try:
            start_s, before = time.monotonic(), processor_seconds()
            playing = _play(workload, client, on_outcome)
            load = await watched(playing, running.children, sample_forever(monitors, time.monotonic()))
            seconds, after = time.monotonic() - start_s, processor_seconds()
            counted = await asyncio.gather(*(monitor.counters() for monitor in monitors))
        finally:
            client.close()
            for monitor in monitors:
                monitor.close()
    counters: dict[str, Counters] = {}
    clock = Clock()
    for spec, (count, own_clock) in zip(ENGINES, counted, strict=True):
        counters[spec.name] = count
        clock += own_clock
    endpoints = [
        Endpoint(spec.name, f"{address.host}:{address.port}", spec.profile)
        for spec, address in zip(ENGINES, running.engines, strict=True)
    ]
    return RunResult(
        policy,
        policy_figures(load.outcomes, endpoints, counters),
        [monitor.series for monitor in monitors],
        load.outcomes,
        punctuality(before, after, clock, load.lateness_ms),
        seconds,
    )


async def _play(workload: Workload, client: HttpClient, on_outcome: Callable[[Outcome], None]) -> LoadResult:
    limit_s = workload.last_start_ms / 1000.0 + PATIENCE_S
    return await play(workload, client, limit_s=limit_s, drain_s=DRAIN_S, on_outcome=on_outcome)
