"""Pickers: the last step of a profile, from candidates and their scores to an order. Also the simple policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from poolpilot_picker.config.registry import PluginKind, PluginType
from poolpilot_picker.routing.plugins.order import SlotNumbers, best_first

if TYPE_CHECKING:
    import random

    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats


class PickerParameters(Struct, frozen=True, rename="camel"):
    """What every picker can be told."""

    max_num_of_endpoints: Annotated[
        int,
        Meta(ge=1, description="endpoints in the destination header: the first is booked, the others are fallbacks"),
    ] = 1


class _Picker:
    def __init__(self, parameters: PickerParameters | None = None) -> None:
        self.count = (parameters or PickerParameters()).max_num_of_endpoints


class MaxScorePicker(_Picker):
    """The highest score; equal scores at random."""

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots by falling score."""
        return best_first(scores, view.mask, self.count, view.rng)


class RandomPicker(_Picker):
    """Any candidate, all alike."""

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Distinct slots at random."""
        candidates = view.mask.nonzero()[0].tolist()
        return view.rng.sample(candidates, min(self.count, len(candidates)))


class WeightedRandomPicker(_Picker):
    """A candidate at random, in proportion to its score (A-Res: the largest U^(1/score), Efraimidis and Spirakis 2006).

    A score of 0 is only drawn after all others; when all are 0, each is as likely.
    """

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots in the order drawn."""
        # log(U)/score orders like U^(1/score) and does not underflow for small scores.
        keys = np.full(len(scores), -np.inf)
        drawn = (view.mask & (scores > 0)).nonzero()[0]
        keys[drawn] = np.log1p(-_uniform(len(drawn), view.rng)) / scores[drawn]
        return best_first(keys, view.mask, self.count, view.rng)


class RoundRobinPicker(_Picker):
    """The candidate whose last turn is the longest ago.

    With a stable set that is the usual cycle. Turns are kept per endpoint, so requests that may only go to a part of
    the pool do not make favourites of its other endpoints.
    """

    def __init__(self, parameters: PickerParameters | None = None) -> None:
        super().__init__(parameters)
        self._turns = 0
        self._last = SlotNumbers()

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots by time since their last turn; those that never had one first, by slot."""
        last = self._last.of(view.table)
        candidates = view.mask.nonzero()[0]
        order = candidates[np.argsort(last[candidates], kind="stable")]
        self._turns += 1
        last[order[0]] = self._turns
        return [int(slot) for slot in order[: self.count]]


class LeastRequestPicker(_Picker):
    """The candidate with the fewest sequences, by the load estimate; ties at random."""

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """Slots by rising load."""
        return best_first(-view.load.sequences, view.mask, self.count, view.rng)


class PowerOfTwoPicker(_Picker):
    """The less loaded of two candidates drawn at random (Mitzenmacher 2001)."""

    def pick(self, view: DecisionView, scores: Floats) -> list[int]:
        """The winner, then the loser, then others at random."""
        candidates = view.mask.nonzero()[0].tolist()
        drawn = view.rng.sample(candidates, min(max(self.count, 2), len(candidates)))
        drawn[:2] = sorted(drawn[:2], key=lambda slot: float(view.load.sequences[slot]))
        return drawn[: self.count]


def _uniform(count: int, rng: random.Random) -> Floats:
    """`count` numbers in [0, 1), reproducible by the view's generator."""
    return np.random.default_rng(rng.getrandbits(64)).random(count)


def _picker(name: str, build: type[_Picker], summary: str, *aliases: str) -> PluginType[Any]:
    return PluginType(
        name=name,
        kinds=frozenset({PluginKind.PICKER}),
        parameters=PickerParameters,
        summary=summary,
        build=build,
        aliases=aliases,
    )


TYPES: Final = (
    _picker("max-score-picker", MaxScorePicker, "the highest total score, ties at random"),
    _picker("random-picker", RandomPicker, "any candidate, all alike"),
    _picker("weighted-random-picker", WeightedRandomPicker, "at random, in proportion to the total score"),
    _picker("round-robin-picker", RoundRobinPicker, "each candidate in turn"),
    _picker("least-request-picker", LeastRequestPicker, "the fewest sequences in flight, ties at random"),
    _picker("power-of-two-picker", PowerOfTwoPicker, "the less loaded of two at random"),
)
