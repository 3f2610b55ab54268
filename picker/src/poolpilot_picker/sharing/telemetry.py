"""Telemetry for all workers from the one that reads it: what reaches its own pool reaches the others' journals too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolpilot_picker.feed import PoolFeed
    from poolpilot_picker.sharing.peers import Peers
    from poolpilot_picker.sources.errors import ErrorKind
    from poolpilot_picker.state.endpoints import EndpointSpec
    from poolpilot_picker.state.samples import EngineSample, ServedModels


class SharedFeed:
    """A TelemetrySink between the sources and the feed of the worker that reads telemetry."""

    def __init__(self, feed: PoolFeed, peers: Peers) -> None:
        self._feed = feed
        self._peers = peers
        self._served: dict[tuple[str, int], tuple[EndpointSpec, ServedModels | None]] = {}
        self._asked = peers.asked()

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A new reading."""
        self._feed.on_sample(spec, sample)
        slot = self._feed.slot(spec)
        if slot is not None:
            self._peers.sampled(slot, sample)

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """What the engine serves has changed."""
        self._feed.on_served_models(spec, models)
        self._served[spec.key] = (spec, models)
        self._tell_served(spec, models)

    def _tell_served(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        slot = self._feed.slot(spec)
        if slot is not None:
            self._peers.serves(slot, models)

    def on_restart(self, spec: EndpointSpec) -> None:
        """The engine is another process than before."""
        self._feed.on_restart(spec)
        slot = self._feed.slot(spec)
        if slot is not None:
            self._peers.restarted(slot)

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        """Telemetry could not be read: the others' samples grow old as ours do."""
        self._feed.on_unreachable(spec, reason, since_ms)

    def answer(self) -> None:
        """Tells again what is told only once, if somebody has come who was not told, or missed it."""
        asked = self._peers.asked()
        if asked == self._asked:
            return
        self._asked = asked
        for key, (spec, models) in list(self._served.items()):
            if self._feed.slot(spec) is None:
                del self._served[key]
            else:
                self._tell_served(spec, models)
