"""What one decision costs: CPU of `Pool.place` + `Pool.finish` with the default policy, compiled and in the reference.

Run `python -m poolpilot_lab.bench.pick` (options: --endpoints, --blocks, --requests, --cores). The pool is in a steady
state: 200 requests of ours are in flight, at least one for each endpoint, and samples are fresh. `shared`: prompts of
which the first three quarters are one of 40 common beginnings; `new`: prompts that nobody sent before; `adapter`: as
`shared`, for one of eight adapters; `silent`: as `shared`, a minute after the last sample. The cores take turns. The
last column is the time of one addition of two arrays with four elements, measured in between: what the machine is worth
at that moment.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_picker import compiled
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain, RequestKind
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.predicted_finish import PredictedFinishPicker
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample, ServedModels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BLOCK_TOKENS: Final = 64
KV_TOKENS: Final = 200_000
ADAPTERS: Final = tuple(f"adapter-{index}" for index in range(8))
CASES: Final = ("shared", "new", "adapter", "silent")
SILENCE_MS: Final = 60_000.0
CORES: Final = ("compiled", "reference")
IN_FLIGHT: Final = 200
TURNS: Final = 5
FILLED_UP_TO: Final = 100
"""Pools up to this size start with full prefix indexes, so that what is inserted evicts."""


class Bench:
    """A busy pool and a stream of requests for it; the clock is the bench's own."""

    def __init__(self, endpoints: int, blocks: int, core: str = CORES[0], seed: int = 1) -> None:
        compiled.in_force = compiled.load() if core == CORES[0] else None
        in_flight = max(1, IN_FLIGHT // endpoints)
        self._rng = random.Random(seed)
        self._blocks = blocks
        self._now = 1_000_000.0
        self._gap_ms = 200.0 / endpoints
        profile = Profile("default", picker=("predicted-finish-picker", PredictedFinishPicker()))
        self._pool = Pool("bench", profile, self._rng)
        self._pool.apply_endpoints(EndpointSpec(host=f"10.{n >> 8}.{n & 255}.1", port=8000) for n in range(endpoints))
        for endpoint in self._pool.table.wanted():
            served = ServedModels(base=("model",), adapters=dict.fromkeys(ADAPTERS, "model"))
            self._pool.apply_served_models(endpoint, served)
        self._fresh = itertools.count(1)
        self._common = [self._hashes(3 * blocks // 4) for _ in range(40)]
        self._ends = [float(BLOCK_TOKENS * (block + 1)) for block in range(blocks)]
        self._open: deque[Placement] = deque()
        self._sample()
        for case in itertools.islice(itertools.cycle(CASES), endpoints * in_flight):
            self._open.append(self._pool.place(self._request(case), self._now))
        if endpoints <= FILLED_UP_TO:
            while float(self._pool.prefixes.tokens().mean()) < 0.9 * KV_TOKENS:
                self._open.append(self._pool.place(self._request("new"), self._now))
                self._pool.finish(self._open.popleft(), Outcome.SERVED, self._now)

    def _hashes(self, count: int) -> list[int]:
        return [self._rng.getrandbits(63) for _ in range(count)]

    def _sample(self) -> None:
        for endpoint in self._pool.table.wanted():
            running = float(self._pool.table.inflight[endpoint.slot])
            sample = EngineSample(
                taken_ms=self._now, running=running, waiting=0.0, kv_usage=0.4, kv_capacity_tokens=KV_TOKENS
            )
            self._pool.apply_sample(endpoint, sample, self._now)

    def _request(self, case: str) -> InferenceRequest:
        head = self._common[self._rng.randrange(len(self._common))] if case != "new" else []
        hashes = [*head, *self._hashes(self._blocks - len(head))]
        return InferenceRequest(
            request_id=f"r{next(self._fresh)}",
            kind=RequestKind.CHAT,
            model="model",
            target_model=self._rng.choice(ADAPTERS) if case == "adapter" else "model",
            prompt_tokens=BLOCK_TOKENS * self._blocks + 7,
            prefix=PrefixChain(hashes=hashes, ends=self._ends),
        )

    def run(self, case: str, requests: int) -> list[tuple[float, float, float]]:
        """(place, finish, one small array addition), µs each, of `requests` requests."""
        times: list[tuple[float, float, float]] = []
        # The thread's own time: what others do on the machine meanwhile disturbs it least.
        clock, array = time.thread_time_ns, np.ones(4)
        looks = [clock() for _ in range(1_000)]
        look = sorted(late - early for early, late in itertools.pairwise(looks))[500]
        if case == "silent":
            self._now += SILENCE_MS
        for position, request in enumerate([self._request(case) for _ in range(requests)]):
            if position % 50 == 0 and case != "silent":
                self._sample()
            self._now += self._gap_ms
            start = clock()
            placed = self._pool.place(request, self._now)
            between = clock()
            self._pool.finish(self._open[0], Outcome.SERVED, self._now)
            end = clock()
            for _ in range(20):
                array + array
            reference = clock()
            self._open.popleft()
            self._open.append(placed)
            place, finish = (between - start - look) / 1000.0, (end - between - look) / 1000.0
            times.append((place, finish, (reference - end - look) / 20_000.0))
        return times


def _quantile(values: Iterable[float], share: float) -> float:
    kept = sorted(values)
    return kept[min(len(kept) - 1, int(share * len(kept)))]


def rows(
    endpoints: Sequence[int], blocks: int, cores: Sequence[str], requests: int
) -> Iterator[tuple[int, str, str, list[float]]]:
    """(endpoints, case, core, [place median, finish median, both: best tenth, median, p99, addition median]), in µs."""
    for count in endpoints:
        benches = {core: Bench(count, blocks, core) for core in cores}
        # As the picker does once it is ready.
        gc.collect()
        gc.freeze()
        for case in CASES:
            times: dict[str, list[tuple[float, float, float]]] = {core: [] for core in cores}
            for turn in range(TURNS + 1):
                for core, bench in benches.items():
                    taken = bench.run(case, max(1, requests // TURNS))
                    times[core] += taken if turn else []
            for core in cores:
                both = [place + finish for place, finish, _ in times[core]]
                figures = [
                    _quantile((place for place, _, _ in times[core]), 0.5),
                    _quantile((finish for _, finish, _ in times[core]), 0.5),
                    *(_quantile(both, share) for share in (0.1, 0.5, 0.99)),
                    _quantile((reference for _, _, reference in times[core]), 0.5),
                ]
                yield count, case, core, figures


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--endpoints", type=int, nargs="+", default=[4, 100, 1000])
    parser.add_argument("--blocks", type=int, default=128, help="blocks of a prompt's prefix chain")
    parser.add_argument("--requests", type=int, default=2000, help="requests per row")
    parser.add_argument("--cores", nargs="+", choices=CORES, default=list(CORES))
    options = parser.parse_args()
    print("CPU in µs                 place  finish    both, best tenth / median / p99    a + b")
    for count, case, core, times in rows(options.endpoints, options.blocks, options.cores, options.requests):
        place, finish, best, median, late, addition = times
        print(
            f"{count:5} {case:8} {core:10}{place:8.1f}{finish:8.1f}{best:16.1f}{median:8.1f}{late:8.1f}{addition:11.2f}"
        )


if __name__ == "__main__":
    main()
