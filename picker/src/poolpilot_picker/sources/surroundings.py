"""What all watched endpoints of a source share: settings, clock, counters, and the sink that is told of readings."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.credentials import BearerToken
from poolpilot_picker.sources.http import Client, Limits
from poolpilot_picker.sources.http_connection import Meter
from poolpilot_picker.sources.stats import TelemetryStats
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from poolpilot_picker.sources.errors import ErrorKind
    from poolpilot_picker.state.samples import EngineSample, ServedModels


class TelemetrySink(Protocol):
    """Where telemetry goes. Calls come from the event loop's thread, in the order of the readings of one endpoint."""

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A new reading."""

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """What the engine serves: at first, when it changes, after a restart. None: not known (no list, no access)."""

    def on_restart(self, spec: EndpointSpec) -> None:
        """The engine is another process than before: caches and adapters are gone. Comes before its first sample."""

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        """Telemetry could not be read, since that time; after every failed read. `reason.down`: nothing listens."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How endpoints are read."""

    cadence: Cadence = Cadence()
    limits: Limits = Limits()
    models_limits: Limits = Limits(timeout_ms=2_000.0, max_bytes=2**20)
    path: str | None = None
    """Instead of the engine's own path of its metrics page."""
    port: int | None = None
    """Instead of the endpoint's port, for metrics only; an endpoint's label `poolpilot.dev/metrics-port` goes first."""
    share: float = 0.25
    """Of the event loop's time, what reading may take; with more to read, endpoints are read less often."""
    tls: ssl.SSLContext | None = None
    """Given: metrics and models are read over HTTPS."""


class Surroundings(msgspec.Struct, frozen=True):
    """What all watches share."""

    sink: TelemetrySink
    now: Callable[[], float]
    settings: Settings
    stats: TelemetryStats
    meter: Meter
    """Time of the event loop that reading takes."""
    connect: Callable[[str, int], Client]
    token: BearerToken | None
    rng: random.Random
    searching: asyncio.Lock
    """Held while a page is searched in turns."""
    in_flight: Callable[[EndpointSpec], float]
    """What our ledger has on an endpoint."""
