"""What ends the routing benchmark before its result; the command prints the message and exits with the code."""

from __future__ import annotations


class RoutingBenchError(Exception):
    """Base of what the benchmark raises on purpose."""

    exit_code: int = 1


class UsageError(RoutingBenchError):
    """A flag, a name or a file that cannot be used; says which, and what is allowed."""

    exit_code = 2
