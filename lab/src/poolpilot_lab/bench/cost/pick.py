"""Case `pick`: the time of one decision with its booking, by number of endpoints; a process of its own, no network.

`python -m poolpilot_lab.bench.cost.pick --endpoints 100` prints one line of JSON. The pool is what the picker composes
without flags. 200 requests are in flight; each prompt has 8,192 tokens, its first three quarters are one of eight
beginnings, and 30 % of the endpoints hold each of these; each request is for one of 50 adapters.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.bench.cost.machine import rss_bytes
from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import DEFAULT_POLICY, policy_config
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain, RequestKind
from poolpilot_picker.routing.registry import build_profile, default_registry
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample, ServedModels

if TYPE_CHECKING:
    from poolpilot_picker.state.endpoints import Endpoint

ENDPOINTS: Final = (8, 32, 100, 320, 1_000, 2_000)
IN_FLIGHT: Final = 200
PROMPT_TOKENS: Final = 8_192
BLOCK_TOKENS: Final = 64
BEGINNINGS: Final = 8
HOLDING: Final = 0.3
ADAPTERS: Final = tuple(f"adapter-{index}" for index in range(50))
_BLOCKS: Final = PROMPT_TOKENS // BLOCK_TOKENS
_COMMON: Final = 3 * _BLOCKS // 4
_ENDS: Final = [float(BLOCK_TOKENS * (block + 1)) for block in range(_BLOCKS)]
_KV_TOKENS: Final = 500_000
_SAMPLES_EVERY: Final = 50
"""Requests between two rounds of samples of all endpoints."""


class PickFigures(msgspec.Struct):
    """Of one process. Times of `Pool.place`; the CPU time also has `Pool.finish`."""

    requests: int
    p50_ms: float
    p99_ms: float
    cpu_us: float
    rss_mb: float


class BusyPool:
    """The pool and its arrivals; the clock is the bench's own."""

    def __init__(self, endpoints: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._now = 1_000_000.0
        self._numbers = itertools.count(1)
        self.pool = Pool("bench", build_profile(load(policy_config(DEFAULT_POLICY), default_registry())), self._rng)
        self.pool.apply_endpoints(
            EndpointSpec(host=f"10.{index >> 8}.{index & 255}.1", port=8000) for index in range(endpoints)
        )
        served = ServedModels(base=("model",), adapters=dict.fromkeys(ADAPTERS, "model"))
        self._endpoints: list[Endpoint] = list(self.pool.table.wanted())
        for endpoint in self._endpoints:
            self.pool.apply_served_models(endpoint, served)
        self._sample()
        self._beginnings = [self._blocks(_COMMON) for _ in range(BEGINNINGS)]
        for beginning in self._beginnings:
            chain = PrefixChain(hashes=beginning, ends=_ENDS[:_COMMON])
            for endpoint in self._rng.sample(self._endpoints, max(1, round(HOLDING * endpoints))):
                self.pool.prefixes.insert(chain, endpoint.slot)
        self._open: deque[Placement] = deque()
        for _ in range(IN_FLIGHT):
            self._open.append(self.pool.place(self._request(), self._now))

    def _blocks(self, count: int) -> list[int]:
        return [self._rng.getrandbits(63) for _ in range(count)]

    def _sample(self) -> None:
        for endpoint in self._endpoints:
            sample = EngineSample(
                taken_ms=self._now,
                running=float(self.pool.table.inflight[endpoint.slot]),
                waiting=0.0,
                kv_usage=self._rng.uniform(0.2, 0.6),
                kv_capacity_tokens=_KV_TOKENS,
                max_adapters=8,
                active_adapters=tuple(self._rng.sample(ADAPTERS, 4)),
            )
            self.pool.apply_sample(endpoint, sample, self._now)

    def _request(self) -> InferenceRequest:
        adapter = self._rng.choice(ADAPTERS)
        hashes = [*self._rng.choice(self._beginnings), *self._blocks(_BLOCKS - _COMMON)]
        return InferenceRequest(
            request_id=f"r{next(self._numbers)}",
            kind=RequestKind.CHAT,
            model=adapter,
            target_model=adapter,
            stream=True,
            prompt_tokens=PROMPT_TOKENS,
            prefix=PrefixChain(hashes=hashes, ends=_ENDS),
        )

    def play(self, requests: int) -> tuple[list[int], int]:
        """ns of each decision with its booking; ns of CPU for all of them and their ends."""
        waits: list[int] = []
        busy = 0
        clock, cpu = time.perf_counter_ns, time.thread_time_ns
        for number in range(requests):
            if number % _SAMPLES_EVERY == 0:
                self._sample()
            self._now += 5.0
            request, oldest = self._request(), self._open.popleft()
            used, start = cpu(), clock()
            placed = self.pool.place(request, self._now)
            end = clock()
            self.pool.finish(oldest, Outcome.SERVED, self._now)
            busy += cpu() - used
            waits.append(end - start)
            self._open.append(placed)
        return waits, busy


def measure(endpoints: int, requests: int, seed: int) -> PickFigures:
    """Plays a tenth as warm-up, then `requests`."""
    busy_pool = BusyPool(endpoints, seed)
    busy_pool.play(requests // 10)
    # As the picker does once it is ready.
    gc.collect()
    gc.freeze()
    waits, busy = busy_pool.play(requests)
    waits.sort()
    p50, p99 = (waits[int(share * len(waits))] / 1e6 for share in (0.5, 0.99))
    return PickFigures(requests, p50, p99, busy / 1e3 / requests, rss_bytes([os.getpid()]) / 1e6)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = measure(options.endpoints, options.requests, options.seed)
    sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")


if __name__ == "__main__":
    main()
