"""What ends a bench before its time: the command prints the message and exits with the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


class BenchError(Exception):
    """Something that the bench needs did not work."""

    exit_code = 1


class UsageError(BenchError):
    """A flag's value that is not allowed, or a program that is not there."""

    exit_code = 2


class InterruptedBenchError(BenchError):
    """A signal came; everything started has been stopped and all finished runs are written."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(
            f"interrupted by {number.name}; everything it started has been stopped, complete runs are written"
        )
        self.exit_code = 128 + number
