"""The distributions that workloads are made of. Every draw takes its random source: equal seed, equal workload."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A lognormal, cut off at both ends by drawing again: no heap of equal values at the limits."""

    median: float
    sigma: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.median <= self.high and self.sigma >= 0):
            raise ValueError(f"a LogNormal needs 0 < low ≤ median ≤ high and sigma ≥ 0, not {self}")

    def draw(self, rng: random.Random) -> float:
        """One value between `low` and `high`."""
        while True:
            value = self.median * math.exp(rng.gauss(0.0, self.sigma))
            if self.low <= value <= self.high:
                return value

    def whole(self, rng: random.Random) -> int:
        """One value as a whole number: tokens, for instance."""
        return round(self.draw(rng))


def zipf_weights(count: int, exponent: float) -> list[float]:
    """Shares of `count` things by popularity, first the most popular; they sum to 1."""
    raw = [1.0 / (rank**exponent) for rank in range(1, count + 1)]
    total = sum(raw)
    return [weight / total for weight in raw]


def poisson_arrivals(rng: random.Random, per_second: float, count: int) -> list[float]:
    """`count` arrival times in ms from 0 on, exponential gaps."""
    if per_second <= 0:
        raise ValueError(f"arrivals per second must be above 0, not {per_second}")
    return list(itertools.accumulate(rng.expovariate(per_second / 1000.0) for _ in range(count)))


def gamma_arrivals(rng: random.Random, per_second: float, count: int, cv: float) -> list[float]:
    """`count` arrival times in ms with gamma distributed gaps of that coefficient of variation (1: Poisson)."""
    if per_second <= 0 or cv <= 0:
        raise ValueError(f"arrivals per second and cv must be above 0, not {per_second} and {cv}")
    shape = 1.0 / (cv * cv)
    scale = 1000.0 / per_second / shape
    return list(itertools.accumulate(rng.gammavariate(shape, scale) for _ in range(count)))


def stratified(rng: random.Random, shares: Sequence[float], count: int) -> list[int]:
    """`count` indices into `shares` in random order, each index as often as its share says (± 1).

    Takes the luck out of a short run: with independent draws the rare class, which carries most of the
    work, would differ by tens of percent from seed to seed.
    """
    total = sum(shares)
    marks = list(itertools.accumulate(share / total for share in shares))
    offset = rng.random()
    drawn: list[int] = []
    index = 0
    for position in range(count):
        while index < len(marks) - 1 and (position + offset) / count > marks[index]:
            index += 1
        drawn.append(index)
    rng.shuffle(drawn)
    return drawn
