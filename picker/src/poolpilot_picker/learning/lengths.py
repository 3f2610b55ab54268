"""How long answers are: mean and second moment per (model, tenant), from observed answers and the engines' counters.

An estimate falls back from the pair to the model to all; each level starts from a weak prior, so the first answers
count. Aborted answers are censored, not short: they teach nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

PRIOR_MEAN: Final = 300.0
PRIOR_SQUARE: Final = 180_000.0
PRIOR_WEIGHT: Final = 3.0
MEMORY: Final = 200.0
"""Observations after which an old one has lost its weight (exponential forgetting)."""
KEYS: Final = 2_000
"""Pairs remembered; the least recently used are forgotten."""
EAGER: Final = 20
"""Answers of a model that are all observed before sampling begins."""


class Moments:
    """Weighted mean and mean square of a length, tokens."""

    __slots__ = ("count", "mean", "remaining", "square")

    def __init__(self, mean: float, square: float, weight: float) -> None:
        self.mean = mean
        self.square = square
        self.count = weight
        self._set_remaining()

    def add(self, length: float, weight: float = 1.0) -> None:
        """One more observation."""
        self.count = min(self.count + weight, MEMORY)
        share = weight / self.count
        self.mean += share * (length - self.mean)
        self.square += share * (length * length - self.square)
        self._set_remaining()

    def _set_remaining(self) -> None:
        self.remaining = self.square / (2.0 * max(1.0, self.mean))
        """Expected rest of an answer met at a random moment: E[L²] / 2·E[L]."""


class OutputLengths:
    """Expected output tokens of one sequence."""

    def __init__(self) -> None:
        self._all = Moments(PRIOR_MEAN, PRIOR_SQUARE, PRIOR_WEIGHT)
        self._by_key: OrderedDict[tuple[str, str], Moments] = OrderedDict()
        self.observed = 0

    def _find(self, model: str, tenant: str) -> Moments:
        by_key = self._by_key
        if tenant:
            pair = (model, tenant)
            moments = by_key.get(pair)
            if moments is not None and moments.count >= PRIOR_WEIGHT + 5:
                by_key.move_to_end(pair)
                return moments
        pair = (model, "")
        moments = by_key.get(pair)
        if moments is None:
            return self._all
        by_key.move_to_end(pair)
        return moments

    def expected(self, model: str, tenant: str, max_tokens: int | None) -> float:
        """Expected output of a request, at most its limit."""
        mean = self._find(model, tenant).mean
        return mean if max_tokens is None else min(mean, float(max_tokens))

    def remaining(self) -> float:
        """Expected rest of the answers in flight."""
        return self._all.remaining

    def known(self, model: str) -> bool:
        """True once enough answers of this model were observed that sampling is enough."""
        moments = self._by_key.get((model, ""))
        return moments is not None and moments.count >= PRIOR_WEIGHT + EAGER

    def observe(self, model: str, tenant: str, tokens: float) -> None:
        """One complete answer of a pod was seen to have this many tokens."""
        self.observed += 1
        self._all.add(tokens)
        for key in dict.fromkeys(((model, ""), (model, tenant))):
            self._add(key, tokens, 1.0)

    def observe_mean(self, mean: float, count: float) -> None:
        """An engine's counters say that `count` answers had `mean` tokens: a hint for all, at half weight, capped."""
        self._all.add(mean, min(0.5 * count, 5.0))

    def _add(self, key: tuple[str, str], tokens: float, weight: float) -> None:
        moments = self._by_key.get(key)
        if moments is None:
            parent = self._by_key.get((key[0], "")) or self._all
            moments = self._by_key[key] = Moments(parent.mean, parent.square, PRIOR_WEIGHT)
            if len(self._by_key) > KEYS:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        moments.add(tokens, weight)
