"""Durations as Go writes them (`1h30m`, `500ms`): in a header of clients and in the configuration."""

from __future__ import annotations

import re
from typing import Final

UNITS_MS: Final = {"h": 3_600_000.0, "m": 60_000.0, "s": 1_000.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
LONGEST: Final = 64
"""Characters read."""
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")


def milliseconds(text: str) -> float | None:
    """The duration, at least 0; None where it is none. `0` alone needs no unit."""
    text = text.strip()
    if len(text) > LONGEST:
        return None
    if text == "0":
        return 0.0
    total, at = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != at:
            return None
        total += float(part.group(1)) * UNITS_MS[part.group(2)]
        at = part.end()
    return total if at and at == len(text) else None
