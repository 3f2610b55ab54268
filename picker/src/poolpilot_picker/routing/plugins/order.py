"""Orders candidates by a value, ties at random: what the pickers and the pipeline's fallback share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import random

    from poolpilot_picker.state.endpoints import Floats, Mask


def best_first(values: Floats, mask: Mask, count: int, rng: random.Random) -> list[int]:
    """The `count` candidates with the highest values, best first; equal values in random order."""
    candidates = mask.nonzero()[0]
    left = values[candidates]
    chosen: list[int] = []
    while len(chosen) < count and len(candidates):
        ties = (left == left.max()).nonzero()[0]
        index = int(ties[rng.randrange(len(ties))]) if len(ties) > 1 else int(ties[0])
        chosen.append(int(candidates[index]))
        candidates = np.delete(candidates, index)
        left = np.delete(left, index)
    return chosen
