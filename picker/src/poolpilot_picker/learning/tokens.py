"""How many tokens a model's prompt text really has per estimated token, from usage in answers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SMOOTHING: Final = 0.1
BOUNDS: Final = (0.25, 4.0)
MODELS: Final = 1_000
LEAST_TOKENS: Final = 16.0
HALF_TRUST_TOKENS: Final = 100.0
"""A text so short counts half: it says as much about the chat template as about the tokenizer."""


class TokenScale:
    """Factor by which to multiply the token estimate of a model's prompt text."""

    def __init__(self) -> None:
        self._scales: OrderedDict[str, float] = OrderedDict()
        self.observed = 0

    def scale(self, model: str) -> float:
        """1.0 until something was learned."""
        return self._scales.get(model, 1.0)

    def observe(self, model: str, text_tokens: float, fixed_tokens: float, counted: float) -> None:
        """An answer's usage counted `counted` prompt tokens: unscaled text, and what is no text (media, token ids)."""
        text_counted = counted - fixed_tokens
        if text_tokens < LEAST_TOKENS or not text_counted >= 1.0 or fixed_tokens > text_tokens:
            # Where media outweigh the text, an error in their estimate would pass for one in the text's.
            return
        self.observed += 1
        wanted = min(BOUNDS[1], max(BOUNDS[0], text_counted / text_tokens))
        old = self._scales.get(model, 1.0)
        gain = SMOOTHING * text_tokens / (text_tokens + HALF_TRUST_TOKENS)
        self._scales[model] = old + gain * (wanted - old)
        self._scales.move_to_end(model)
        if len(self._scales) > MODELS:
            self._scales.popitem(last=False)
