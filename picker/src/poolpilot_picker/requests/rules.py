"""What a pool's InferenceObjectives and InferenceModelRewrites say of its requests. Asked while a request is parsed.

Pure: who watches the objects makes these (`sources.pool_rules`), and replaces them as a whole when one changes.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Final

import msgspec
from xxhash import xxh64_intdigest

_SPAN: Final = float(1 << 64)


class Rewritten(msgspec.Struct, frozen=True):
    """What a rule made of a request's model."""

    rule: str
    """Name of the InferenceModelRewrite."""
    target: str


class ModelTargets:
    """Targets of one rule, of which each request gets one, by their weights.

    Where one target has a weight, those without one get nothing; where none has, all get the same (as the reference
    picker does).
    """

    __slots__ = ("_ends", "_rewritten")

    def __init__(self, rule: str, targets: Mapping[str, int | None] | list[tuple[str, int | None]]) -> None:
        """`targets`: (model, weight), at least one."""
        pairs = list(targets.items()) if isinstance(targets, Mapping) else targets
        weighted = any(weight for _, weight in pairs)
        kept = [(model, (weight or 0) if weighted else 1) for model, weight in pairs]
        kept = [(model, weight) for model, weight in kept if weight > 0]
        self._rewritten = [Rewritten(rule, model) for model, _ in kept]
        self._ends = list(accumulate(weight for _, weight in kept))

    def at(self, share: float) -> Rewritten:
        """The target at this share of all weights, from 0 (inclusive) to 1 (exclusive)."""
        place = bisect_right(self._ends, share * self._ends[-1])
        return self._rewritten[min(place, len(self._rewritten) - 1)]


class PoolRules(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pool, at one moment."""

    priorities: Mapping[str, int] = {}
    """Of InferenceObjectives, by name."""
    exact: Mapping[str, ModelTargets] = {}
    """By the model that the client asks for."""
    generic: ModelTargets | None = None
    """For every other request, also one that names no model."""
    draw: Callable[[], float] = random.random

    @property
    def rewrites(self) -> bool:
        """There are rules at all."""
        return self.generic is not None or bool(self.exact)

    def priority(self, objective: str) -> int:
        """Of the requests that name this objective; 0 where it is none of this pool's."""
        return self.priorities.get(objective, 0)

    def rewrite(self, model: str, routing_key: str) -> Rewritten | None:
        """What becomes of a request for this model; None where no rule says anything.

        Requests with one routing key get one target: a session whose turns went to different models would find nothing
        of its prefix in any cache.
        """
        targets = self.exact.get(model, self.generic)
        if targets is None:
            return None
        share = xxh64_intdigest(routing_key.encode()) / _SPAN if routing_key else self.draw()
        return targets.at(share)


NO_RULES: Final = PoolRules()
