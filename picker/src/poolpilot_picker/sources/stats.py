"""What the sources count of themselves, for metrics and the readiness detail."""

from __future__ import annotations

import msgspec

from poolpilot_picker.sources.errors import ErrorKind


class EndpointHealth(msgspec.Struct):
    """How reading one endpoint goes. Times in ms of the monotonic clock."""

    last_success_ms: float | None = None
    failing_since_ms: float | None = None
    reason: ErrorKind | None = None
    """Why the newest read failed; None after a good one."""


class TelemetryStats(msgspec.Struct):
    """Counters since start, and health per endpoint address."""

    errors: dict[str, int] = {}
    """kind → failed reads (`errors_total{kind}`). Kinds are the words of ErrorKind."""
    remarks: dict[str, int] = {}
    """Pages that were read but not in full: `truncated`, `malformed_line`, `missing_family`; ways of asking that were
    given up: `selective_fallback`, `many_series`, `too_many_series`."""
    polls: int = 0
    samples: int = 0
    restarts: int = 0
    busy_s: float = 0.0
    """Time of the event loop that reading has taken."""
    overdue_ms: float = 0.0
    """How long the read that waits longest is due: more than a few ms says that endpoints are read less often than
    they should be."""
    endpoints: dict[str, EndpointHealth] = {}

    def error(self, kind: ErrorKind) -> None:
        """Counts a failed read."""
        self.errors[kind.value] = self.errors.get(kind.value, 0) + 1

    def remark(self, what: str, count: int = 1) -> None:
        """Counts something odd about a read that succeeded."""
        if count:
            self.remarks[what] = self.remarks.get(what, 0) + count

    def age_ms(self, address: str, now: float) -> float | None:
        """Time since the last good read of an endpoint; None if there was none."""
        health = self.endpoints.get(address)
        return None if health is None or health.last_success_ms is None else now - health.last_success_ms
