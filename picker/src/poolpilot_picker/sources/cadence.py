"""When an endpoint is read next, and what is asked for: pure, time is an argument (ms)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    import random


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals in ms."""

    fast_ms: float = 200.0
    """Between polls of an endpoint that has work, by its page or by our ledger."""
    slow_ms: float = 1_500.0
    """Between polls of an idle endpoint."""
    everything_ms: float = 5_000.0
    """Between polls that also ask for histograms and facts."""
    models_ms: float = 10_000.0
    """Between reads of the model list."""
    retry_ms: float = 250.0
    """After the first failure; doubles with each further one."""
    retry_max_ms: float = 3_000.0
    """Upper bound of the pause after a failure: how late a recovery is seen."""
    reselect_ms: float = 300_000.0
    """Until an endpoint that could not answer a selective scrape is asked again."""
    jitter: float = 0.1
    """Share by which each pause is varied at random, so that pickers and endpoints do not fall in step."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field != "jitter" and not value >= 1.0:
                raise ConfigurationError(f"telemetry cadence: {field} is {value}; at least 1 ms is allowed")
        if not 0.0 <= self.jitter <= 0.5:
            raise ConfigurationError(f"telemetry cadence: jitter is {self.jitter}; 0 to 0.5 is allowed")
        if self.slow_ms < self.fast_ms:
            raise ConfigurationError(
                f"telemetry cadence: slow_ms is {self.slow_ms}; at least fast_ms ({self.fast_ms}) is allowed"
            )


class Plan:
    """Due time of one kind of read of one endpoint.

    Pauses count from when the read before was due: that it began a little later does not add up. One that began much
    later (the picker had other things to do) is not made up for.
    """

    __slots__ = (
        "_no_later",
        "_rng",
        "_was_due_ms",
        "cadence",
        "due_ms",
        "failing_since_ms",
        "failures",
        "queued",
        "running",
    )

    def __init__(self, cadence: Cadence, now: float, rng: random.Random) -> None:
        self.cadence = cadence
        self._rng = rng
        self.due_ms = self._was_due_ms = now
        self.running = False
        self.failures = 0
        self.failing_since_ms: float | None = None
        self.queued: tuple[float, bool] | None = None
        """Due time and queue with which it waits; for the one who keeps the queues."""
        self._no_later = math.inf

    def begin(self) -> None:
        """A read begins; `succeeded` or `failed` ends it."""
        self.running = True
        self._was_due_ms = self.due_ms
        self._no_later = math.inf

    def succeeded(self, began: float, pause_ms: float) -> None:
        """The read that began then was good: the next one is due after the pause."""
        self.failures = 0
        self.failing_since_ms = None
        self.running = False
        jitter = self.cadence.jitter
        pause_ms *= 1.0 - jitter + 2.0 * jitter * self._rng.random()
        due = self._was_due_ms + pause_ms
        if due < began:
            due = began
        self.due_ms = min(self._no_later, due)

    def failed(self, began: float, now: float) -> float:
        """The read failed: back off, bounded. Returns since when reads fail."""
        pause = min(self.cadence.retry_max_ms, self.cadence.retry_ms * 2.0 ** min(self.failures, 20))
        self.failures += 1
        if self.failing_since_ms is None:
            self.failing_since_ms = began
        # From now on: a time-out has used up a pause that counts from its begin, and would be asked again at once.
        self.running = False
        jitter = self.cadence.jitter
        self.due_ms = now + pause * (1.0 - jitter + 2.0 * jitter * self._rng.random())
        return self.failing_since_ms

    def hasten(self, due: float) -> None:
        """The next read is wanted no later than `due`; a failing endpoint keeps its pause."""
        if self.running:
            self._no_later = min(self._no_later, due)
        elif not self.failures:
            self.due_ms = min(self.due_ms, due)
