"""Our simulator's round robin and KV router against Dynamo's offline replay of the same trace.

`python -m poolpilot_lab.bench.peers.replay --trace FILE --out DIR`. The two simulate different engines (Dynamo's mocker
has a step-time model of its own), so nothing in milliseconds agrees; what may be compared is the order of the two
policies, by how much the better one gains, and what comes from caches, at rates at which round robin suffers alike.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.bench.flags import whole
from poolpilot_lab.bench.markdown import table
from poolpilot_lab.bench.peers.catalogue import DYNAMO
from poolpilot_lab.bench.peers.install import installed
from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.gotools import NotAvailable
from poolpilot_lab.processes import Child, ProcessError
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.world import EXACT, World
from poolpilot_lab.workload.traces import MOONCAKE_BLOCK, TraceError, read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from poolpilot_lab.workload.calls import Traffic

ENGINE: Final = PROFILES["qwen3-32b-h100-tp2"]
_BATCH_TOKENS: Final = 2048
_BLOCK_TOKENS: Final = 64
MOST_RATE: Final = 1e6
MOST_REQUESTS: Final = 100_000
MOST_ENDPOINTS: Final = 1_000
_REPLAY_S: Final = 600.0
_DRIVER: Final = Path(__file__).with_name("replay_driver.py")
PAIRS: Final = {"round_robin": "round-robin", "kv_router": "dynamo"}
"""Dynamo's modes, and our baselines of the same kind."""


class Figures(msgspec.Struct, frozen=True):
    """Of one policy at one rate; times in ms."""

    ttft_mean_ms: float
    ttft_p95_ms: float
    e2e_mean_ms: float
    cached_share: float


class Point(msgspec.Struct, frozen=True):
    """Both policies at one rate (requests/s)."""

    rate: float
    round_robin: Figures
    kv_router: Figures


class _Summary(msgspec.Struct):
    mean_ttft_ms: float
    p95_ttft_ms: float
    mean_e2e_latency_ms: float
    prefix_cache_reused_ratio: float


def main(argv: Sequence[str]) -> int:
    """0: replay.json and replay.md are written; 1: Dynamo cannot be had or failed; 2: a file or flag is wrong."""
    given = _parser().parse_args(argv)
    try:
        whole("--requests", given.requests, 1, MOST_REQUESTS)
        whole("--endpoints", given.endpoints, 1, MOST_ENDPOINTS)
        given.out.mkdir(parents=True, exist_ok=True)
        dynamo = asyncio.run(_dynamo(given))
        ours = [simulated(traffic(given, rate), rate, given.endpoints) for rate in given.rates]
    except (NotAvailable, ProcessError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 1
    except (OSError, TraceError, UsageError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    (given.out / "replay.json").write_bytes(msgspec.json.encode({"dynamo": dynamo, "poolpilot": ours}) + b"\n")
    page = compared({f"Dynamo {DYNAMO.version}": dynamo, "our simulator": ours}) + "\n"
    (given.out / "replay.md").write_text(page, encoding="utf-8")
    print(page, end="")
    return 0


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [math.nan]
    if not all(0.0 < rate < MOST_RATE for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed are numbers above 0 and below {MOST_RATE:g}, with commas")
    return rates


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m poolpilot_lab.bench.peers.replay", allow_abbrev=False)
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="FILE", help="in Mooncake's format")
    add("--requests", type=int, default=1_500, metavar="N", help="first of the trace (default: %(default)s)")
    add("--endpoints", type=int, default=8, metavar="N", help="default: %(default)s")
    add("--rates", type=_rates, default=[0.1, 1.25, 2.0, 2.5], metavar="R,…", help="of ours; the first is idle")
    add("--dynamo-rates", type=_rates, default=[0.1, 3.0, 5.0, 6.0], metavar="R,…", help="of Dynamo's")
    add("--out", type=Path, required=True, metavar="DIR")
    return parser


def traffic(given: argparse.Namespace, rate: float) -> Traffic:
    """The trace at this rate; no request says how long its answer may be, as in Dynamo's."""
    read = read_trace(rate, given.requests, 1, path=given.trace, trace_format="mooncake")
    for call in read:
        call.max_tokens = None
    return read


def mooncake(calls: Traffic) -> Iterator[bytes]:
    """Lines of Mooncake's format: as many block ids as a prompt has blocks, the last, partial one its own."""
    names: dict[int, int] = {}
    own = 1 << 40
    for call in calls:
        blocks = -(-call.prompt_tokens // MOONCAKE_BLOCK)
        ids = [names.setdefault(key, len(names)) for key in call.blocks[:blocks]]
        ids += range(own, own + blocks - len(ids))
        own += blocks
        yield msgspec.json.encode(
            {
                "timestamp": round(call.at_ms, 3),
                "input_length": call.prompt_tokens,
                "output_length": max(1, call.output_tokens),
                "hash_ids": ids,
            }
        )


def simulated(calls: Traffic, rate: float, endpoints: int) -> Point:
    """Ours: equal engines without hidden variation, exact token counts."""
    world = World(
        fleet=(ENGINE,) * endpoints,
        block_tokens=MOONCAKE_BLOCK,
        variation=EXACT,
        token_bias=0.0,
        token_noise=0.0,
        max_num_batched_tokens=_BATCH_TOKENS,
    )
    found = {}
    for mode, policy in PAIRS.items():
        trips = Simulation(world, calls, make_router(policy, world, 1), 1, 0.0).run().trips
        ttft = np.array([trip.ttft_ms for trip in trips])
        found[mode] = Figures(
            float(ttft.mean()),
            float(np.percentile(ttft, 95)),
            float(np.mean([trip.e2e_ms for trip in trips])),
            sum(trip.cached_tokens for trip in trips) / sum(trip.call.prompt_tokens for trip in trips),
        )
    return Point(rate, **found)


async def _dynamo(given: argparse.Namespace) -> list[Point]:
    python = await installed(DYNAMO, lambda text: print(text, file=sys.stderr))
    return [await _replayed(python, given, rate) for rate in given.dynamo_rates]


async def _replayed(python: Path, given: argparse.Namespace, rate: float) -> Point:
    trace, out = given.out / f"trace-{rate:g}.jsonl", given.out / f"dynamo-{rate:g}.json"
    trace.write_bytes(b"\n".join(mooncake(traffic(given, rate))) + b"\n")
    asked = {
        "trace": str(trace),
        "workers": given.endpoints,
        "blocks": ENGINE.kv_tokens // _BLOCK_TOKENS,
        "block_tokens": _BLOCK_TOKENS,
        "batch_tokens": _BATCH_TOKENS,
        "trace_block_tokens": MOONCAKE_BLOCK,
        "out": str(out),
    }
    argv = [str(python), str(_DRIVER), msgspec.json.encode(asked).decode()]
    async with Child(f"Dynamo's replay at {rate:g}/s", argv, log=given.out / "dynamo.log") as child:
        if not await child.ended(_REPLAY_S):
            raise ProcessError(f"{child.name} is not done after {_REPLAY_S:g} s\n{child.tail()}")
    if child.exit_code != 0:
        raise ProcessError(f"{child.name} failed\n{child.tail()}")
    said = msgspec.json.decode(out.read_bytes(), type=dict[str, _Summary])
    return Point(rate, **{mode: _figures(said[mode]) for mode in PAIRS})


def _figures(said: _Summary) -> Figures:
    return Figures(said.mean_ttft_ms, said.p95_ttft_ms, said.mean_e2e_latency_ms, said.prefix_cache_reused_ratio)


def compared(points: dict[str, list[Point]]) -> str:
    """Markdown. Slow-down: round robin's mean TTFT by what it is at the first rate. Gains: KV router ÷ round robin."""
    heads = ("requests/s", "slow-down", "TTFT mean", "TTFT p95", "end to end mean", "cached: round robin", "KV router")
    rows = []
    for name, found in points.items():
        for point in found:
            idle, plain, kv = found[0].round_robin, point.round_robin, point.kv_router
            rows.append(
                [
                    name,
                    f"{point.rate:g}",
                    f"{plain.ttft_mean_ms / idle.ttft_mean_ms:.2f}",
                    f"{kv.ttft_mean_ms / plain.ttft_mean_ms:.2f}",
                    f"{kv.ttft_p95_ms / plain.ttft_p95_ms:.2f}",
                    f"{kv.e2e_mean_ms / plain.e2e_mean_ms:.2f}",
                    f"{plain.cached_share:.1%}",
                    f"{kv.cached_share:.1%}",
                ]
            )
    return table(["simulator", *heads], rows, numbers=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
