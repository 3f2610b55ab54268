"""SGLang's pushed load (`--load-publish-endpoint`): a ZMQ subscription per data-parallel rank, fresher than any page.

Loads are gauges: a gap in the sequence loses nothing, and a sequence that goes back is a restarted publisher.

The source stands between TelemetrySource and the sink. While pushes are fresh they make the samples, and a page adds
its counters, facts and histograms to the next of them instead of overwriting the load with an older one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec
import zmq
import zmq.asyncio

from poolpilot_picker.sources.errors import FetchError
from poolpilot_picker.sources.http import Limits
from poolpilot_picker.sources.load_stat import (
    LOAD_PORT_LABEL,
    TOPIC,
    LoadChannel,
    RankLoads,
    load_channel_by_label,
    load_channel_of,
    merged,
    parse_load_stat,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from poolpilot_picker.sources.credentials import BearerToken
    from poolpilot_picker.sources.errors import ErrorKind
    from poolpilot_picker.sources.http import Client
    from poolpilot_picker.sources.surroundings import TelemetrySink
    from poolpilot_picker.state.endpoints import EndpointSpec
    from poolpilot_picker.state.samples import EngineSample, ServedModels

log: Final = logging.getLogger(__name__)


class LoadStats(msgspec.Struct):
    """Counters of the load channel."""

    messages: int = 0
    malformed: int = 0
    gaps: int = 0
    """Messages that were lost, by the sequence numbers."""
    restarts: int = 0
    """Sequences that went back."""


def server_info_reader(
    connect: Callable[[str, int], Client], token: BearerToken | None = None, limits: Limits | None = None
) -> Callable[[EndpointSpec], Awaitable[LoadChannel | None]]:
    """Asks an engine's `/server_info` for its load channel: for `SglangLoadSource(discover=…)`."""
    bounds = limits or Limits(max_bytes=2**20)

    async def discover(spec: EndpointSpec) -> LoadChannel | None:
        client = connect(spec.host, spec.port)
        headers = {"Accept": "application/json", "Connection": "close"}
        if token is not None:
            headers["Authorization"] = token.header()
        try:
            response = await client.get("/server_info", headers, bounds)
        except FetchError as error:
            log.debug("server_info of %s: %s", spec.address, error)
            return None
        finally:
            client.close()
        if response.status != 200:
            return None
        try:
            return load_channel_of(response.body)
        except ValueError as error:
            log.debug("server_info of %s: %s", spec.address, error)
            return None

    return discover


class _Subscription:
    """One endpoint's channel and what came of it."""

    def __init__(self, spec: EndpointSpec, channel: LoadChannel, fresh_ms: float) -> None:
        self.spec = spec
        self.channel = channel
        self.loads = RankLoads(channel.ranks, fresh_ms)
        self.tasks: list[asyncio.Task[None]] = []
        self.page: EngineSample | None = None
        self.page_is_new = False


class SglangLoadSource:
    """Subscribes to the load channels of SGLang endpoints and hands samples to `sink`.

    It is itself a TelemetrySink: give it to TelemetrySource in the place of `sink`; everything else passes through.
    Which channel an endpoint has is told by its labels or by `discover`, which is asked once the engine has answered a
    poll and again after a restart, at most every `ask_ms`.
    """

    def __init__(
        self,
        sink: TelemetrySink,
        *,
        now: Callable[[], float],
        discover: Callable[[EndpointSpec], Awaitable[LoadChannel | None]] | None = None,
        fresh_ms: float = 3_000.0,
        pause_ms: float = 20.0,
        ask_ms: float = 60_000.0,
    ) -> None:
        self.stats = LoadStats()
        self._sink = sink
        self._now = now
        self._discover = discover
        self._fresh_ms = fresh_ms
        self._pause_ms = pause_ms
        self._ask_ms = ask_ms
        self._context = zmq.asyncio.Context()
        self._subscriptions: dict[tuple[str, int], _Subscription] = {}
        self._wanted: dict[tuple[str, int], EndpointSpec] = {}
        self._ask_from: dict[tuple[str, int], float] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def update(self, endpoints: Iterable[EndpointSpec]) -> None:
        """Makes the set of endpoints equal to the SGLang ones of `endpoints`. Needs a running event loop."""
        self._wanted = {spec.key: spec for spec in endpoints if spec.engine == "sglang"}
        self._ask_from = {key: asked for key, asked in self._ask_from.items() if key in self._wanted}
        for key, subscription in list(self._subscriptions.items()):
            if self._wanted.get(key) != subscription.spec:
                self._drop(key)
        for key, spec in self._wanted.items():
            if key in self._subscriptions:
                continue
            try:
                channel = load_channel_by_label(spec)
            except ValueError as error:
                log.warning("endpoint %s: no load channel: %s", spec.address, error)
                continue
            if channel is not None:
                self.subscribe(spec, channel)

    def subscribe(self, spec: EndpointSpec, channel: LoadChannel) -> None:
        """Subscribes to one endpoint's channel, in the place of another one it may have had."""
        known = self._subscriptions.get(spec.key)
        if known is not None and known.channel == channel:
            return
        self._drop(spec.key)
        subscription = _Subscription(spec, channel, self._fresh_ms)
        self._subscriptions[spec.key] = subscription
        loop = asyncio.get_running_loop()
        subscription.tasks = [loop.create_task(self._receive(subscription, rank)) for rank in range(channel.ranks)]

    async def close(self) -> None:
        """Ends all subscriptions."""
        tasks = [task for subscription in self._subscriptions.values() for task in subscription.tasks]
        tasks += self._asking
        for key in list(self._subscriptions):
            self._drop(key)
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    def _drop(self, key: tuple[str, int]) -> None:
        subscription = self._subscriptions.pop(key, None)
        if subscription is not None:
            for task in subscription.tasks:
                task.cancel()

    async def _receive(self, subscription: _Subscription, rank: int) -> None:
        """One rank's socket, for ever; ZMQ reconnects by itself."""
        spec = subscription.spec
        host = f"[{spec.host}]" if ":" in spec.host else spec.host
        socket: zmq.asyncio.Socket = self._context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.MAXMSGSIZE, 65_536)
            socket.setsockopt(zmq.RECONNECT_IVL, 100)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 3_000)
            socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4_000)
            socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
            socket.connect(f"tcp://{host}:{subscription.channel.base_port + rank}")
            waiting: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
            while True:
                took = self._take(subscription, rank, await socket.recv_multipart())
                # An engine may publish with every step: what is there is taken at once, and makes one sample.
                try:
                    while True:
                        took |= self._take(subscription, rank, waiting.recv_multipart(zmq.NOBLOCK))
                except zmq.Again:
                    pass
                if took:
                    self._push(subscription)
                await asyncio.sleep(self._pause_ms / 1000.0)
        finally:
            socket.close()

    def _take(self, subscription: _Subscription, rank: int, frames: list[bytes]) -> bool:
        """One message; False if it is not a load."""
        self.stats.messages += 1
        try:
            if len(frames) != 3 or frames[0] != TOPIC or len(frames[1]) != 8:
                raise ValueError(f"{len(frames)} frames")
            load = parse_load_stat(frames[2])
        except ValueError as error:
            self.stats.malformed += 1
            log.debug("load channel of %s: %s", subscription.spec.address, error)
            return False
        sequence = int.from_bytes(frames[1], "big", signed=True)
        lost, restarted = subscription.loads.take(rank, sequence, load, self._now())
        self.stats.gaps += lost
        self.stats.restarts += restarted
        return True

    def _push(self, subscription: _Subscription) -> None:
        pushed = subscription.loads.sample(self._now())
        if pushed is None:
            return
        sample = merged(subscription.page, pushed, histograms=subscription.page_is_new)
        subscription.page_is_new = False
        try:
            self._sink.on_sample(subscription.spec, sample)
        except Exception:
            log.exception("load of %s", subscription.spec.address)

    def on_sample(self, spec: EndpointSpec, sample: EngineSample) -> None:
        """A page was read: while pushes are fresh it waits for the next of them."""
        if not self._wanted:
            self._sink.on_sample(spec, sample)
            return
        subscription = self._subscriptions.get(spec.key)
        if subscription is None:
            self._ask(spec)
        else:
            if subscription.page_is_new and subscription.page is not None:
                _keep_histograms(subscription.page, sample)
            subscription.page, subscription.page_is_new = sample, True
            if subscription.loads.sample(self._now()) is not None:
                return
            subscription.page_is_new = False
        self._sink.on_sample(spec, sample)

    def on_served_models(self, spec: EndpointSpec, models: ServedModels | None) -> None:
        """Passes through."""
        self._sink.on_served_models(spec, models)

    def on_restart(self, spec: EndpointSpec) -> None:
        """Passes through; the loads of the process before are forgotten, and its channel may be another."""
        subscription = self._subscriptions.get(spec.key)
        if subscription is not None:
            subscription.page, subscription.page_is_new = None, False
            subscription.loads = RankLoads(subscription.channel.ranks, self._fresh_ms)
        self._sink.on_restart(spec)
        self._ask_from.pop(spec.key, None)
        self._ask(spec)

    def on_unreachable(self, spec: EndpointSpec, reason: ErrorKind, since_ms: float) -> None:
        """Passes through."""
        self._sink.on_unreachable(spec, reason, since_ms)

    def _ask(self, spec: EndpointSpec) -> None:
        """Asks an engine for its channel, unless it was asked lately or a label has told."""
        if self._discover is None or self._wanted.get(spec.key) != spec or LOAD_PORT_LABEL in spec.labels:
            return
        now = self._now()
        if self._ask_from.get(spec.key, now) > now:
            return
        self._ask_from[spec.key] = now + self._ask_ms
        task = asyncio.get_running_loop().create_task(self._ask_now(spec))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_now(self, spec: EndpointSpec) -> None:
        assert self._discover is not None
        channel = await self._discover(spec)
        if channel is not None and self._wanted.get(spec.key) == spec:
            log.info(
                "endpoint %s publishes its load on port %d, %d ranks", spec.address, channel.base_port, channel.ranks
            )
            self.subscribe(spec, channel)


def _keep_histograms(older: EngineSample, newer: EngineSample) -> None:
    """What the older page told and nobody has seen goes with the newer one, which may not have asked for it."""
    for name in ("ttft", "inter_token", "queue_time", "prefill_time"):
        if getattr(newer, name) is None:
            setattr(newer, name, getattr(older, name))
