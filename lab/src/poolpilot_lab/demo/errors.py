"""What ends a demo before its result; the command prints the message and exits with the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


class DemoError(Exception):
    """Base of what the demo raises on purpose."""

    exit_code: int = 1


class UsageError(DemoError):
    """A flag has a value that cannot be used."""

    exit_code = 2


class InterruptedDemoError(DemoError):
    """SIGINT or SIGTERM; the exit code is the shell's: 128 + the signal's number."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"interrupted by {number.name}; everything it started has been stopped")
        self.exit_code = 128 + number
