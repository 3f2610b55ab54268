"""Which of several workers a picker process is. Given by the supervisor, read when the picker is composed."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_WORKERS: Final = 64


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of `count`. The first also does what must be done once: it reads telemetry and writes the gateway's
    endpoint file."""

    index: int
    count: int

    @property
    def first(self) -> bool:
        """True for the worker that does what must be done once."""
        return self.index == 0
