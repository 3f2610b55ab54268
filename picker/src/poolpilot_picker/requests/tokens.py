"""Text → estimated tokens without a tokenizer: every byte has a weight by what it usually costs. Used by `parse`.

A pool may serve any model, so the estimate is for a generic tokenizer of 100,000 to 200,000 entries; what a model's own
tokenizer does differently is learned from `usage` and handed in as a factor (`estimate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_BYTES: Final = 8192
"""Longer texts are judged by 64 evenly spaced windows of 128 bytes."""
WINDOWS: Final = 64


def _weights() -> NDArray[np.float32]:
    weights = np.zeros(256, dtype=np.float32)
    for byte in range(256):
        char = chr(byte)
        if byte >= 0x80:
            weights[byte] = 0.0  # continuation bytes: the lead byte carries the character
        elif char.islower():
            weights[byte] = 0.20
        elif char.isupper():
            weights[byte] = 0.35
        elif char.isdigit():
            weights[byte] = 0.45
        elif char == " ":
            weights[byte] = 0.05
        elif char in "\n\t":
            weights[byte] = 0.4
        else:
            weights[byte] = 0.55
    weights[0xC2:0xE0] = 0.45
    weights[0xE0] = 0.6
    weights[0xE1:0xF0] = 0.8
    weights[0xF0:0xF8] = 2.0
    weights[0x1E] = 3.0
    weights[0x1F] = 1.0
    return weights


WEIGHTS: Final = _weights()
"""Estimated tokens per byte, by its value."""


def text_units(text: bytes) -> float:
    """Estimated tokens of UTF-8 text for a generic tokenizer."""
    length = len(text)
    if not length:
        return 0.0
    scale = 1.0
    if length > SAMPLE_BYTES:
        step = length // WINDOWS
        width = SAMPLE_BYTES // WINDOWS
        text = b"".join([text[at : at + width] for at in range(0, step * WINDOWS, step)])
        scale = length / len(text)
    return float(WEIGHTS.take(np.frombuffer(text, dtype=np.uint8)).sum()) * scale


def estimate(units: float, ratio: float = 1.0) -> int:
    """Whole tokens of `units` for a model whose tokenizer makes `ratio` times the generic one's tokens."""
    return max(round(units * ratio), 0)
