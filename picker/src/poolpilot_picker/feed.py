"""Telemetry → pool: finds the endpoint that a source speaks of, drops what came too late for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from poolpilot_picker.sources.orca import parse_orca

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.flow.pool import Pool
    from poolpilot_picker.sources.errors import ErrorKind
    from poolpilot_picker.state.endpoints import Endpoint, EndpointSpec
    from poolpilot_picker.state.samples import EngineSample, ServedModels

log = logging.getLogger(__name__)


class PoolFeed:
    """A TelemetrySink that writes into one pool."""

    def __init__(self, pool: Pool, now: Callable[[], float]) -> None:
        self._pool = pool
        self._now = now
        self._silent: set[tuple[str, int]] = set()

    def _endpoint(self, spec: EndpointSpec) -> Endpoint | None:
        endpoint = self._pool.table.find(spec.address)
        if endpoint is None or endpoint.spec is spec or endpoint.spec.key == spec.key:
            return endpoint
        return None

    def slot(self, spec: EndpointSpec) -> int | None:
        """Where the pool has the endpoint, if it does."""
        endpoint = self._endpoint(spec)
        return None if endpoint is None else endpoint.slot

    def in_flight(self, spec: EndpointSpec) -> float:
        """Our own requests at an endpoint: what is busy is read more often."""
        endpoint = self._endpoint(spec)
        return 0.0 if endpoint is None else float(self._pool.table.requests[endpoint.slot])

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A new reading."""
        if self._silent and spec.key in self._silent:
            self._silent.discard(spec.key)
            log.info("telemetry is back", extra={"endpoint": spec.address})
        endpoint = self._endpoint(spec)
        if endpoint is not None:
            self._pool.apply_sample(endpoint, sample, self._now())

    def on_load_report(self, address: str, value: str | bytes) -> None:
        """A pod's answer carried an ORCA load report. One that cannot be read says nothing."""
        endpoint = self._pool.table.find(address)
        now = self._now()
        report = parse_orca(value, now) if endpoint is not None else None
        if endpoint is not None and report is not None:
            self._pool.apply_load_report(endpoint, report, now)

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """What the engine serves has changed."""
        endpoint = self._endpoint(spec)
        if endpoint is not None:
            self._pool.apply_served_models(endpoint, models)

    def on_restart(self, spec: EndpointSpec) -> None:
        """The engine is another process than before."""
        endpoint = self._endpoint(spec)
        if endpoint is not None:
            log.info("engine restarted", extra={"endpoint": spec.address})
            self._pool.restarted(endpoint, self._now())

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        """Telemetry could not be read: said once, not with every poll."""
        if spec.key not in self._silent:
            # Pods come and go for months: those that went are forgotten here.
            self._silent &= {endpoint.spec.key for endpoint in self._pool.table}
            self._silent.add(spec.key)
            log.warning("no telemetry", extra={"endpoint": spec.address, "reason": reason.value})
