"""`poolpilot bench validate --published FILE`: the fleet against llm-d's published table of the shared-prompt workload.

Eight identical pods; every stage starts with warm caches and empty queues (15 requests/s for 50 s and a minute's pause
before it), as the published client drained each stage before the next. Tokens per second are those of the stage over
arrivals and drain. Compared are shape and knee; absolute times to first token are not validated.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.sim.baselines.base import llmd
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.measures import mean, quantile
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.pool_router import PoolRouter
from poolpilot_lab.sim.scenarios import SCENARIOS
from poolpilot_lab.sim.trip import POOLPILOT
from poolpilot_lab.sim.variants import PLAIN, Variant
from poolpilot_lab.sim.world import IDENTICAL, World
from poolpilot_lab.workload.generators import shared_prompts

if TYPE_CHECKING:
    from pathlib import Path

    from poolpilot_lab.sim.fleet import Record
    from poolpilot_lab.sim.router import Router
    from poolpilot_lab.workload.calls import Traffic
    from poolpilot_picker.routing.pipeline import Profile

WARM_RATE: Final = 15.0
WARM_S: Final = 50.0
PAUSE_S: Final = 60.0

_Plugin = tuple[str, float | None, dict[str, object]]
_QUEUE: Final[_Plugin] = ("queue-scorer", 1, {})
_KV: Final[_Plugin] = ("kv-cache-utilization-scorer", 1, {})
_PICK: Final[_Plugin] = ("max-score-picker", None, {})


def _random() -> Profile:
    return llmd(("random-picker", None, {}))


def _load() -> Profile:
    return llmd(_QUEUE, _KV, _PICK)


def _approximate() -> Profile:
    return llmd(("prefix-cache-scorer", 1, {}), _KV, _QUEUE, _PICK)


def _precise() -> Profile:
    return llmd(("prefix-cache-scorer", 3, {}), ("kv-cache-utilization-scorer", 2, {}), ("queue-scorer", 2, {}), _PICK)


POLICIES: Final = {
    "precise": (_precise, Variant(exact_cache=True)),
    "approximate": (_approximate, PLAIN),
    "load": (_load, PLAIN),
    "random": (_random, PLAIN),
}
"""Published name → profile, and what it knows. Approximate matches whole prompts; in 2025 it was cut at 256 blocks."""


class Stage(NamedTuple):
    """One row of the table."""

    qps: float
    output_tok_s: float
    ttft_mean_s: float
    ttft_p90_s: float


def compare(path: Path) -> None:
    """Prints published and simulated figures side by side. Raises UsageError."""
    published = _read(path)
    ladder = published["workload"]["ladder_qps_seconds"]
    run = published["runs"][0]
    rows = {(row["policy"], float(row["qps"])): row for row in run["per_qps"]}
    print(f"published: {run['id']} | simulated: {len(SCENARIOS['S1'].fleet)} identical pods, this project's scorers")
    print("            output tok/s          TTFT mean s          TTFT p90 s")
    print("   qps    published simulated   published simulated   published simulated")
    for name in (*POLICIES, POOLPILOT):
        print(name if name != POOLPILOT else f"{name} (simulated only)")
        for qps, seconds in ladder:
            stage = simulate(name, float(qps), float(seconds))
            row = rows.get((name, float(qps)), {})
            cells = [
                f"{_number(row.get(field)):>12}{simulated:10.{digits}f}"
                for field, simulated, digits in (
                    ("output_tok_s", stage.output_tok_s, 0),
                    ("ttft_mean_s", stage.ttft_mean_s, 2),
                    ("ttft_p90_s", stage.ttft_p90_s, 2),
                )
            ]
            print(f"{qps:6}{''.join(cells)}", flush=True)


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,.5g}"


def _read(path: Path) -> dict[str, Any]:
    try:
        published: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert published["workload"]["ladder_qps_seconds"]
        assert published["runs"][0]["per_qps"]
    except (OSError, ValueError, KeyError, IndexError, AssertionError, TypeError) as error:
        raise UsageError(
            f"--published: {path}: needs workload.ladder_qps_seconds and runs[0].per_qps "
            f"({type(error).__name__}: {error})"
        ) from None
    return published


def simulate(policy: str, qps: float, seconds: float, seed: int = 1) -> Stage:
    """One stage under one policy."""
    world = SCENARIOS["S1"].world(IDENTICAL)
    traffic = _traffic(qps, seconds, seed)
    start_ms = 1000.0 * (WARM_S + PAUSE_S)
    warm_share = start_ms / max(call.at_ms for call in traffic.calls) - 1e-6
    record = Simulation(world, traffic, _router(policy, world, seed), seed, warm_share).run()
    return _stage(qps, record)


def _router(policy: str, world: World, seed: int) -> Router:
    if policy == POOLPILOT:
        return make_router(POOLPILOT, world, seed)
    make, variant = POLICIES[policy]
    return PoolRouter(world, make, seed, variant=variant, scrape_ms=50.0)


def _traffic(qps: float, seconds: float, seed: int) -> Traffic:
    warm, count = round(WARM_RATE * WARM_S), round(qps * seconds)
    made = shared_prompts(1.0, warm + count, seed)
    # Poisson gaps of mean 1 s, stretched to each rate.
    begin = made.calls[warm - 1].at_ms
    for number, call in enumerate(made.calls):
        if number < warm:
            call.at_ms /= WARM_RATE
        else:
            call.at_ms = 1000.0 * (WARM_S + PAUSE_S) + (call.at_ms - begin) / qps
    return made


def _stage(qps: float, record: Record) -> Stage:
    trips = record.measured
    took_s = (max(trip.end_ms for trip in trips) - record.begin_ms) / 1000.0
    ttft = [trip.ttft_ms / 1000.0 for trip in trips]
    return Stage(
        qps=qps,
        output_tok_s=sum(trip.call.output_tokens for trip in trips) / took_s,
        ttft_mean_s=mean(ttft),
        ttft_p90_s=quantile(ttft, 0.9),
    )
