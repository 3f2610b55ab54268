"""The clock of flow control in a running picker: one callback soon, or one timer, for each pool that holds requests."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from poolpilot_picker.config_use import flow_settings
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.instruments.flow_metrics import FlowMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.config.load import LoadedConfig
    from poolpilot_picker.extproc.held_bodies import HeldBodies
    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.instruments.metrics import PickerMetrics

log = logging.getLogger(__name__)

LEAST_MS: Final = 1.0
"""A timer that has run early must not spin."""
RETRY_MS: Final = 100.0
"""After a fault of ours."""


class Dispatcher:
    """Calls `advance` when flow control asks for it, and when its next time has come."""

    def __init__(self, flow: FlowControl, now: Callable[[], float]) -> None:
        self._flow = flow
        self._now = now
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        flow.kick = self.kick

    def kick(self) -> None:
        """In this turn of the loop, behind what is under way: many ends of requests ask for it at once."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._soon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._now()
        try:
            self._flow.advance(now)
            rest_ms = self._flow.next_ms - now
        except Exception:
            log.exception("holding requests failed")
            rest_ms = RETRY_MS
        if rest_ms < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(LEAST_MS, rest_ms) / 1000.0, self._run)

    def close(self) -> None:
        """Calls no more."""
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None
        self._flow.kick = _nothing


def hold_back(
    pool: Pool,
    config: LoadedConfig,
    metrics: PickerMetrics,
    now: Callable[[], float],
    draw: Callable[[], float],
    pickers: int = 1,
    bodies: HeldBodies | None = None,
) -> Dispatcher | None:
    """Gives a pool its flow control, where the configuration has it on. `pickers`: that share the pool's requests;
    `bodies`: what they may hold."""
    if config.flow is None:
        return None
    most = None if bodies is None else bodies.limit
    flow = FlowControl(pool, flow_settings(config, draw, pickers, most), FlowMetrics(metrics, pool.name, now))
    flow.bodies = bodies
    pool.flow = flow
    return Dispatcher(flow, now)


def _nothing() -> None:
    """Closed."""
