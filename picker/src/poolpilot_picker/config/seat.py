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
    life: int = 0
    """How many the worker had before. Two in a row may overlap: the older one only ends what it has begun."""
    shares_port: bool = False
    """The port may be another life's as well, at the beginning and at the end of this one."""

    chair: int | None = None
    """Where this life writes in the memory that the workers share; None: nowhere, it shares nothing."""
    chairs: int = 0
    memory_fd: int = -1

    @property
    def first(self) -> bool:
        """True for the worker that does what must be done once."""
        return self.index == 0
