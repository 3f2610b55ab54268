"""Orders candidates by a value, ties at random, and remembers numbers by slot: what several plugins share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import random

    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable, Floats, Mask


class SlotNumbers:
    """A number per slot that a plugin remembers; 0 again when the slot changes hands."""

    def __init__(self) -> None:
        self._numbers: Floats = np.zeros(0)
        self._owners: list[Endpoint | None] = []
        self._table: EndpointTable | None = None
        self._generation = -1

    def of(self, table: EndpointTable) -> Floats:
        """The live numbers, one per slot of the table."""
        if table is not self._table or table.generation != self._generation:
            kept = [
                number if owner is not None and owner is now else 0.0
                for number, owner, now in zip(self._numbers.tolist(), self._owners, table.slots, strict=False)
            ]
            self._numbers = np.array(kept + [0.0] * (len(table) - len(kept)))
            self._owners = list(table.slots)
            self._table, self._generation = table, table.generation
        return self._numbers


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
