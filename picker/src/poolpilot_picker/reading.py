"""How a picker reads its engines: their pages and what they push, for one pool or for many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.http import HttpClient, Limits
from poolpilot_picker.sources.sglang_load import SglangLoadSource, server_info_reader
from poolpilot_picker.sources.surroundings import Settings
from poolpilot_picker.sources.telemetry import TelemetrySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from poolpilot_picker.config.settings import TelemetrySettings
    from poolpilot_picker.feed import PoolFeed
    from poolpilot_picker.sources.credentials import BearerToken
    from poolpilot_picker.sources.errors import ErrorKind
    from poolpilot_picker.sources.surroundings import TelemetrySink
    from poolpilot_picker.state.endpoints import EndpointSpec
    from poolpilot_picker.state.samples import EngineSample, ServedModels


class Reading:
    """The sources of telemetry of one process. Each endpoint is read once, and its pace is its own."""

    def __init__(
        self,
        sink: TelemetrySink,
        settings: TelemetrySettings,
        token: BearerToken | None,
        in_flight: Callable[[EndpointSpec], float],
        now: Callable[[], float],
    ) -> None:
        # SGLang pushes its load where its pages lag by seconds; everything else passes through to the sink.
        self._pushed = SglangLoadSource(sink, now=now, discover=server_info_reader(HttpClient, token))
        self.telemetry = TelemetrySource(
            self._pushed,
            settings=Settings(
                cadence=Cadence(fast_ms=settings.busy_interval_ms, slow_ms=settings.idle_interval_ms),
                limits=Limits(timeout_ms=settings.timeout_ms),
            ),
            token=token,
            in_flight=in_flight,
            now=now,
        )

    def update(self, specs: Iterable[EndpointSpec]) -> None:
        """These endpoints, and no others."""
        wanted = list(specs)
        self.telemetry.update(wanted)
        self._pushed.update(wanted)

    async def close(self) -> None:
        """Ends what is pushed; the rest ends with its task."""
        await self._pushed.close()


class FleetFeed:
    """A TelemetrySink that tells every pool that has the endpoint."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[str, int], tuple[PoolFeed, ...]] = {}
        self._served: dict[tuple[str, int], ServedModels | None] = {}
        """What engines said last: it is said once, and a pool that comes later has to know it too."""

    def update(self, pools: Iterable[tuple[PoolFeed, Iterable[EndpointSpec]]]) -> list[EndpointSpec]:
        """Who has which endpoints; returns each endpoint once."""
        feeds: dict[tuple[str, int], tuple[PoolFeed, ...]] = {}
        specs: dict[tuple[str, int], EndpointSpec] = {}
        for feed, wanted in pools:
            for spec in wanted:
                key = spec.key
                feeds[key] = (*feeds.get(key, ()), feed)
                specs.setdefault(key, spec)
        before, self._feeds = self._feeds, feeds
        self._served = {key: models for key, models in self._served.items() if key in feeds}
        for key, models in self._served.items():
            for feed in feeds[key]:
                if feed not in before.get(key, ()):
                    feed.on_served_models(specs[key], models)
        return list(specs.values())

    def in_flight(self, spec: EndpointSpec) -> float:
        """Our own requests at an endpoint, of all pools."""
        return sum(feed.in_flight(spec) for feed in self._feeds.get(spec.key, ()))

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A new reading."""
        for feed in self._feeds.get(spec.key, ()):
            feed.on_sample(spec, sample)

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """What the engine serves has changed."""
        self._served[spec.key] = models
        for feed in self._feeds.get(spec.key, ()):
            feed.on_served_models(spec, models)

    def on_restart(self, spec: EndpointSpec) -> None:
        """The engine is another process than before."""
        for feed in self._feeds.get(spec.key, ()):
            feed.on_restart(spec)

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        """Telemetry could not be read."""
        for feed in self._feeds.get(spec.key, ()):
            feed.on_unreachable(spec, reason, since_ms)
