"""Keeps a log readable when the same thing happens to every request: one line a minute for each key, with the count."""

from __future__ import annotations

from typing import Final

EVERY_MS: Final = 60_000.0


class Seldom:
    """`due(key, now)`: when a line is due, the number of times since the last one, else 0. Keys are few and fixed."""

    def __init__(self, every_ms: float = EVERY_MS) -> None:
        self._every_ms = every_ms
        self._next_ms: dict[str, float] = {}
        self._since: dict[str, int] = {}

    def due(self, key: str, now: float) -> int:
        """Counts one occurrence at `now` (ms)."""
        count = self._since.get(key, 0) + 1
        if now < self._next_ms.get(key, now):
            self._since[key] = count
            return 0
        self._next_ms[key] = now + self._every_ms
        self._since[key] = 0
        return count
