"""Limits that no router can beat on a given traffic: reuse (L0), TTFT per request (L1), pooled mean (L2) and p99 (L4).

All are computed with the very step formula and the hidden factors of the simulated engines, noise and stalls left out.
L0: prompt tokens that an infinite shared cache finds. L1: the prefill of the rest on an idle engine, the fastest one.
L2: one preemptive server with the speed of all, prefill work only, SRPT, which is optimal for the mean; the limit of
the mean is the larger of mean L1 and mean SRPT. L4: the smallest T within which 99 % can be finished on that server.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolpilot_lab.engine.model import step_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_lab.engine.model import Accelerator, Engine
    from poolpilot_lab.sim.fleet import Record
    from poolpilot_lab.sim.world import World
    from poolpilot_lab.workload.calls import Call


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the measured trips of one run. Times in ms."""

    reuse: float
    """L0: share of prompt tokens."""
    l1_ms: list[float]
    """In the order of the trips."""
    mean_ms: float
    p99_ms: float


class Reuse:
    """Longest prefix seen before, anywhere: an infinite shared cache of full blocks."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._seen: set[int] = set()

    def found(self, call: Call) -> int:
        """Tokens of the prompt that were seen; the call's own are added."""
        most = min(len(call.blocks), (call.prompt_tokens - 1) // self._block)
        blocks, seen = call.blocks, self._seen
        count = 0
        while count < most and blocks[count] in seen:
            count += 1
        seen.update(blocks)
        return count * self._block


def alone_ms(engine: Engine, new: int, held: int) -> float:
    """TTFT of a prompt with `new` tokens to compute and `held` cached ones on the engine, if it were idle."""
    accelerator, budget = engine.accelerator, engine.settings.max_num_batched_tokens
    total = 0.0
    while new > 0:
        chunk = min(new, budget)
        total += accelerator.step_ms(0, 0, 1, chunk, chunk * chunk + 2 * chunk * held)
        new, held = new - chunk, held + chunk
    return total


def limits(record: Record, world: World, seed: int) -> Limits:
    """Of the trips of a run, in order of arrival, and as measured there."""
    engines = world.engines(seed)
    overhead = world.dispatch_ms + world.notice_ms
    reuse = Reuse(world.block_tokens)
    reference = engines[0].accelerator
    speed = sum(_speed(engine, engines[0]) for engine in engines)
    cheapest = _cheapest(reference)
    fastest = _fastest(engines)
    releases, works, l1 = [], [], []
    prompt = found = 0
    measured: list[bool] = []
    for trip in record.trips:
        if trip.arrived_ms > record.end_ms:
            break
        call = trip.call
        held = reuse.found(call)
        new = call.prompt_tokens - held
        releases.append(trip.arrived_ms)
        attention = new * new + 2 * new * held
        works.append(cheapest * step_time.prefill_part_ms(reference.profile, new, attention) / speed)
        inside = trip.arrived_ms >= record.begin_ms
        measured.append(inside)
        if inside:
            l1.append(overhead + min(alone_ms(engine, new, held) for engine in fastest))
            prompt += call.prompt_tokens
            found += held
    pooled = [end for end, inside in zip(_srpt(releases, works), measured, strict=True) if inside]
    # The tail needs only what was measured: what came before can only delay it.
    first = measured.index(True)
    tail_releases, tail_works = releases[first:], works[first:]
    return Limits(
        reuse=found / max(1, prompt),
        l1_ms=l1,
        mean_ms=max(sum(l1) / len(l1), overhead + sum(pooled) / len(pooled)),
        p99_ms=max(_high(l1, 0.99), overhead + _smallest_deadline(tail_releases, tail_works, 0.99)),
    )


def _fastest(engines: Sequence[Engine]) -> list[Engine]:
    """One engine per way of being fast: the others lose for every prompt."""
    kept: list[Engine] = []
    for engine in engines:
        key = (alone_ms(engine, 64, 0), alone_ms(engine, 8192, 0), alone_ms(engine, 64, 8192))
        if not any(
            all(mine >= theirs for mine, theirs in zip(key, other, strict=True))
            for other in (
                (alone_ms(known, 64, 0), alone_ms(known, 8192, 0), alone_ms(known, 64, 8192)) for known in kept
            )
        ):
            kept.append(engine)
    return kept


def _speed(engine: Engine, reference: Engine) -> float:
    """How fast an engine prefills, relative to another; optimistic where the two costs differ in kind."""
    mine, theirs = engine.accelerator, reference.accelerator
    factor = _cheapest(theirs) / _cheapest(mine)
    token = factor * theirs.profile.prefill_b_ms / mine.profile.prefill_b_ms
    square = factor * theirs.profile.prefill_c_ms / mine.profile.prefill_c_ms
    return max(token, square)


def _cheapest(accelerator: Accelerator) -> float:
    """Lowest factor on the formula's prefill work in any step."""
    table = accelerator.table
    return accelerator.prefill_factor * (1.0 if table is None else min(1.0, table.least_prefill))


def _high(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _srpt(releases: Sequence[float], works: Sequence[float]) -> list[float]:
    """Time in system of each job under preemptive shortest remaining work first on one server."""
    spent = [0.0] * len(works)
    queue: list[tuple[float, int]] = []
    now = 0.0
    for number, release in enumerate(releases):
        while queue and now < release:
            left, job = queue[0]
            if now + left <= release:
                heapq.heappop(queue)
                now += left
                spent[job] = now - releases[job]
            else:
                heapq.heapreplace(queue, (left - (release - now), job))
                now = release
        now = max(now, release)
        heapq.heappush(queue, (works[number], number))
    while queue:
        left, job = heapq.heappop(queue)
        now += left
        spent[job] = now - releases[job]
    return spent


def _late(releases: Sequence[float], works: Sequence[float], deadline_ms: float, allowed: int) -> bool:
    """Whether more than `allowed` jobs must be late when all have the same relative deadline.

    The fewest late jobs, by Kise, Ibaraki and Mine (1978): releases and deadlines have the same order.
    In order of release; whenever one is late, the kept job is dropped whose removal lets the kept set end earliest.
    """
    dropped = 0
    kept_r: list[float] = []
    kept_w: list[float] = []
    finish = -math.inf
    for release, work in zip(releases, works, strict=True):
        if release > finish:
            # An idle server: what was before has no more influence.
            kept_r, kept_w = [], []
        kept_r.append(release)
        kept_w.append(work)
        finish = max(release, finish) + work
        if finish > release + deadline_ms:
            dropped += 1
            if dropped > allowed:
                return True
            finish = _drop_best(kept_r, kept_w)
    return False


def _drop_best(releases: list[float], works: list[float]) -> float:
    """Removes from one busy period the job whose absence lets it end earliest; the new end (−inf: nothing is left)."""
    count = len(works)
    starts = np.empty(count)
    ends = np.empty(count)
    now = -math.inf
    for index in range(count):
        starts[index] = now = max(now, releases[index])
        now += works[index]
        ends[index] = now
    released = np.array(releases)
    before = np.concatenate(([-math.inf], ends[:-1]))
    following = np.concatenate((released[1:], [-math.inf]))
    slack = np.concatenate((starts - released, [math.inf, math.inf]))
    later = np.minimum.accumulate(slack[::-1])[::-1][2:]
    gain = np.minimum(ends - np.maximum(before, following), later[:count])
    best = int(gain.argmax())
    del releases[best], works[best]
    now = -math.inf
    for release, work in zip(releases, works, strict=True):
        now = max(now, release) + work
    return now


def _smallest_deadline(releases: Sequence[float], works: Sequence[float], share: float) -> float:
    """Within 1 % from below: still a bound."""
    allowed = int((1.0 - share) * len(works))
    low, high = 0.0, max(works)
    while _late(releases, works, high, allowed):
        low, high = high, high * 2.0
    while high - low > 0.01 * high + 0.1:
        middle = 0.5 * (low + high)
        if _late(releases, works, middle, allowed):
            low = middle
        else:
            high = middle
    return low
