"""How many tokens a model's prompts really have per estimated token, from usage in answers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SMOOTHING: Final = 0.1
BOUNDS: Final = (0.25, 4.0)
MODELS: Final = 1_000


class TokenScale:
    """Factor by which to multiply the token estimate of a model's prompts."""

    def __init__(self) -> None:
        self._scales: OrderedDict[str, float] = OrderedDict()
        self.observed = 0

    def scale(self, model: str) -> float:
        """1.0 until something was learned."""
        return self._scales.get(model, 1.0)

    def observe(self, model: str, estimated: float, counted: float) -> None:
        """An answer's usage counted `counted` prompt tokens where the scaled estimate was `estimated`."""
        if estimated < 16 or counted < 1:
            return
        self.observed += 1
        old = self._scales.get(model, 1.0)
        wanted = min(BOUNDS[1], max(BOUNDS[0], old * counted / estimated))
        self._scales[model] = old + SMOOTHING * (wanted - old)
        self._scales.move_to_end(model)
        if len(self._scales) > MODELS:
            self._scales.popitem(last=False)
