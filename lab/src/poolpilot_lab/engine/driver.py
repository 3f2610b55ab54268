"""Runs the engine model in real time: one timer per engine, deadlines that do not drift.

A step begins when the one before it was planned to end, not when the timer fired, so that late timers shorten the next
wait instead of adding up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from poolpilot_lab.engine.model import Engine, Outcome, Sequence

LATE_MS = 5.0
"""A step that is delivered later than this after its planned end counts as late."""
_FORGIVE_MS = 250.0
"""Lateness beyond this is written off: the process was stopped, and a burst of overdue steps helps nobody."""


def _wall_ms() -> float:
    return time.monotonic() * 1000.0


class Driver:
    """Drives one engine on an event loop. Engine milliseconds are milliseconds of `time.monotonic()`."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, deliver: Callable[[Outcome], None]) -> None:
        self._engine = engine
        self._loop = loop
        self.deliver = deliver
        """called after each step with what it brought"""
        self._timer: asyncio.Handle | None = None
        self._delivering = False
        self.paused = False
        """no step begins or ends while set: a hung engine"""
        self.forgiven = 0
        """how often lateness was written off"""
        self.steps = 0
        self.late = 0
        """steps that were delivered more than LATE_MS after their planned end: the machine was too busy"""
        self.late_ms = 0.0
        """lateness of all steps together"""
        self.worst_ms = 0.0

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Hands new sequences to the engine, which may run them together; raises what `Engine.add` raises."""
        now = _wall_ms()
        for sequence in sequences:
            self._engine.add(sequence, now)
        if self._timer is None and not self._delivering:
            self._begin(_wall_ms())

    def abort(self, sequence: Sequence) -> None:
        """Drops a sequence, in whatever state."""
        self._engine.abort(sequence, self._engine_now())

    def pause(self) -> None:
        """Stops time for the engine."""
        self.paused = True

    def resume(self) -> None:
        """Lets a paused engine go on from now."""
        if not self.paused:
            return
        self.paused = False
        if self._timer is None:
            end = self._engine.busy_until
            self._timer = self._loop.call_soon(self._fire) if end is not None else None
            if end is None:
                self._begin(_wall_ms())

    def stop(self) -> None:
        """No more steps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.paused = True

    def _engine_now(self) -> float:
        # The step in progress ends when its timer fires, not a moment before: what it brings is delivered there.
        end = self._engine.busy_until
        now = _wall_ms()
        return now if end is None or now < end - 0.001 else end - 0.001

    def _begin(self, now: float) -> None:
        self._timer = None
        if self.paused:
            return
        end = self._engine.plan(now)
        if end is None:
            return
        delay = end - _wall_ms()
        self._timer = (
            self._loop.call_later(delay / 1000.0, self._fire) if delay > 0 else self._loop.call_soon(self._fire)
        )

    def _fire(self) -> None:
        self._timer = None
        end = self._engine.busy_until
        if self.paused or end is None:
            return
        outcome = self._engine.settle(end)
        now = _wall_ms()
        self._note(now - end)
        if now - end > _FORGIVE_MS:
            self.forgiven += 1
            end = now
        # Tokens leave before the next step is planned; a request that one of them lets in joins that step.
        self._delivering = True
        try:
            self.deliver(outcome)
        finally:
            self._delivering = False
            self._begin(end)

    def _note(self, late_ms: float) -> None:
        self.steps += 1
        self.late += late_ms > LATE_MS
        self.late_ms += late_ms
        self.worst_ms = max(self.worst_ms, late_ms)
