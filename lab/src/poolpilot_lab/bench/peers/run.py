"""One run: cold engines, a contestant in front of them, the clients of one seed; and what that cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.cost.machine import cpu_seconds, tree
from poolpilot_lab.bench.peers.engines import engines
from poolpilot_lab.bench.peers.routers import Running, running
from poolpilot_lab.bench.peers.rows import Row, row
from poolpilot_lab.client.load import LoadResult, play
from poolpilot_lab.client.pool import HttpClient
from poolpilot_lab.demo.figures import Counters
from poolpilot_lab.demo.machine import processor_seconds, punctuality
from poolpilot_lab.demo.telemetry import Clock, EngineMonitor
from poolpilot_lab.processes import watched
from poolpilot_picker.envoy.settings import HostPort

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolpilot_lab.bench.peers.catalogue import Contestant
    from poolpilot_lab.bench.peers.scenarios import Scenario
    from poolpilot_lab.workload.sessions import Workload

DRAIN_S: Final = 15.0
"""How long requests may take after the last one was sent; what is unfinished then is an error."""
PATIENCE_S: Final = 60.0
"""From the start of the last session to its last request, at most."""


async def run(
    contestant: Contestant,
    scenario: Scenario,
    workload: Workload,
    folder: Path,
    *,
    epp: Path | None,
    say: Callable[[str], None],
) -> Row:
    """Starts everything cold, plays the workload, stops everything; `folder` takes logs and configurations.

    `folder` exists. Raises NotAvailable or ProcessError if a program cannot be had, does not start, or ends; DemoError
    if an engine does not tell its counters.
    """
    async with (
        engines(scenario, workload.seed, folder) as (addresses, children),
        running(contestant, addresses, folder, epp, say) as router,
    ):
        places = [HostPort.parse(address, "engine") for address in addresses]
        monitors = [
            EngineMonitor(spec.name, place.host, place.port)
            for spec, place in zip(scenario.engines, places, strict=True)
        ]
        client = HttpClient(router.address.host, router.address.port)
        try:
            before, cpu = processor_seconds(), _cpu(router)
            load = await watched(_play(workload, client), [*children, *router.children])
            router_s, picker_s = (after - earlier for after, earlier in zip(_cpu(router), cpu, strict=True))
            after = processor_seconds()
            counted = await asyncio.gather(*(monitor.counters() for monitor in monitors))
        finally:
            client.close()
            for monitor in monitors:
                monitor.close()
    total = sum((count for count, _ in counted), Counters())
    clock = sum((own for _, own in counted), Clock())
    return row(
        scenario.name,
        contestant.name,
        workload.seed,
        load.outcomes,
        [spec.name for spec in scenario.engines],
        router_cpu_s=router_s,
        picker_cpu_s=picker_s if router.picker_pids else None,
        cached_share=total.cached_tokens / max(1, total.prompt_tokens),
        problems=punctuality(before, after, clock, load.lateness_ms).problems,
    )


def _cpu(router: Running) -> tuple[float, float]:
    """Of the router with all its processes, and of its picker; seconds."""
    return cpu_seconds(tree(router.pids)), cpu_seconds(tree(router.picker_pids))


async def _play(workload: Workload, client: HttpClient) -> LoadResult:
    return await play(workload, client, limit_s=workload.last_start_ms / 1000.0 + PATIENCE_S, drain_s=DRAIN_S)
