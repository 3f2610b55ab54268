"""The composition root: builds the rooms from options, wires them, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from poolpilot_picker import compiled
from poolpilot_picker.admin.server import AdminServer
from poolpilot_picker.admin.views import Readiness
from poolpilot_picker.background import Background
from poolpilot_picker.config.policies import DEFAULT_POLICY
from poolpilot_picker.config.seat import Seat
from poolpilot_picker.config_use import exchange_settings, pool_settings, step_models
from poolpilot_picker.configuring import Configuration
from poolpilot_picker.discovering import discovery_of
from poolpilot_picker.dispatching import hold_back
from poolpilot_picker.envoy.eds import EdsError, EdsWriter
from poolpilot_picker.envoy.lead import Lead
from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.exchange import Exchange
from poolpilot_picker.extproc.held_bodies import HeldBodies
from poolpilot_picker.extproc.listener import ListenerSettings, TransportName
from poolpilot_picker.facts import process_detail, process_facts
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.flow.shared_pool import SharedPool
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.instruments.unserved import unserved
from poolpilot_picker.kubernetes_flags import KubernetesFleet, KubernetesPool
from poolpilot_picker.memory import body_budget
from poolpilot_picker.reading import Reading
from poolpilot_picker.requests import NO_RULES, PoolRules
from poolpilot_picker.routing.registry import build_profile
from poolpilot_picker.sharing.joining import keep_up, peers_of, share
from poolpilot_picker.sharing.memory import MOST_ENDPOINTS
from poolpilot_picker.sources.credentials import BearerToken
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable
from poolpilot_picker.tls_files import TlsSource
from poolpilot_picker.transports import new_transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.admin.page import ProcessFacts
    from poolpilot_picker.config.load import LoadedConfig
    from poolpilot_picker.extproc.listener import Transport
    from poolpilot_picker.routing.pipeline import PluginGuard
    from poolpilot_picker.sources.telemetry import TelemetrySource

log = logging.getLogger(__name__)

EDS_CHECK_S: Final = 5.0
REPLACED_S: Final = 86_400.0
"""The longest exchange that a process which was replaced still serves."""
GIE_HEALTH_SERVICE: Final = "inference-extension"
"""The service name that the reference charts probe."""


def monotonic_ms() -> float:
    """The picker's clock."""
    return time.monotonic() * 1000.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line decides."""

    listen: str = "[::]:9002"
    admin: tuple[str, int] = ("::", 9090)
    pool: str = "default"
    endpoints: tuple[EndpointSpec, ...] = ()
    endpoints_file: Path | None = None
    kubernetes: KubernetesPool | None = None
    fleet: KubernetesFleet | None = None
    """Set where this process serves all pools of a Picker: `fleet.FleetPicker`."""
    engine: str = "vllm"
    config_file: Path | None = None
    policy: str = DEFAULT_POLICY
    eds_dir: Path | None = None
    notice_s: float = 0.0
    """After SIGTERM: how long to go on as before, but not ready, until data planes have noticed."""
    drain_s: float = 30.0
    engine_token: BearerToken | None = None
    tls: TlsSource | None = None
    transport: TransportName = TransportName.WIRE
    seed: int | None = None
    seat: Seat | None = None
    """Set where this process is one of several workers."""


class Picker:
    """One running picker with one pool."""

    def __init__(self, options: Options, now: Callable[[], float] = monotonic_ms) -> None:
        self.options = options
        self.draining = False
        self._now = now
        self._background = Background()
        self._hurry = asyncio.Event()
        self._eds_problem = ""
        self._wanted: list[EndpointSpec] = []
        self._lead = Lead() if options.eds_dir is not None else None
        self._later: asyncio.TimerHandle | None = None
        self._left_out = 0
        self._composed = self._listening = False
        self._rules = NO_RULES
        # Only an Envoy that reads our endpoint file is known to take a list; ORIGINAL_DST gateways answer 503 to one.
        self._configuration = Configuration(
            options.config_file, options.policy, self._apply_config, lists=options.eds_dir is not None
        )
        settings = self.config.settings
        self.metrics = PickerMetrics(CollectorRegistry())
        workers = 1 if options.seat is None else options.seat.count
        # Half of it for messages that are still arriving, half for what has.
        self._bodies = HeldBodies(body_budget(settings.limits.held_body_bytes, workers) // 2)
        self._exchange_settings = exchange_settings(self.config, self._rules, self._bodies)
        self._peers = peers_of(options.seat, now)
        table = EndpointTable(step_models(settings), sharing=self._peers)
        told = pool_settings(self.config)
        rng = random.Random(options.seed)
        self.pool: Pool
        if self._peers is None:
            self.pool = Pool(options.pool, self._profile, rng, told, table)
        else:
            self.pool = SharedPool(options.pool, self._profile, rng, told, table, crew=self._peers)
        unserved(self.metrics, self.pool.name)
        self._dispatcher = hold_back(self.pool, self.config, self.metrics, now, rng.random, workers, self._bodies)
        self._feed = PoolFeed(self.pool, now)
        first = options.seat is None or options.seat.first
        self._reads_telemetry = first or self._peers is None
        self._shared = share(self._peers, self.pool, self._feed)
        self._reading = Reading(
            self._shared or self._feed, settings.telemetry, options.engine_token, self._feed.in_flight, now
        )
        self._eds = EdsWriter(options.eds_dir) if options.eds_dir is not None and first else None
        self._discovery = discovery_of(options, self.apply_endpoints, self.apply_rules, now)
        self.transport: Transport = new_transport(
            options.transport,
            ListenerSettings(
                address=options.listen,
                max_receive_bytes=settings.limits.max_body_bytes + 2 * 2**20,
                tls=options.tls.certificates if options.tls is not None else None,
                shares_port=options.seat is not None and options.seat.shares_port,
            ),
            self.new_exchange,
            now,
            health_services=(options.pool, GIE_HEALTH_SERVICE),
            arriving_bytes=self._bodies.limit,
        )
        self.admin = AdminServer(
            options.admin,
            self._pools,
            lambda: [("", self.metrics.registry)],
            self._facts,
            self.readiness,
            now,
            self._configuration.describe,
        )
        if compiled.in_force is None:
            log.warning("decisions take several times as long as they could: %s", compiled.describe())
        self._composed = True

    def _pools(self) -> list[Pool]:
        return [self.pool]

    @property
    def telemetry(self) -> TelemetrySource:
        """What reads the engines' pages."""
        return self._reading.telemetry

    @property
    def streams(self) -> int:
        """Open streams."""
        return self.transport.streams

    def ready_line(self) -> dict[str, Any]:
        """What a program is told that started this one."""
        return {"port": self.transport.port, "admin_port": self.admin.port}

    # ---- requests

    def new_exchange(self) -> Exchange:
        """The state machine of a new stream, under the configuration of this moment."""
        # Also while draining: what arrives before the data plane has read the GOAWAY is placed like any other.
        return Exchange(self.pool, self.metrics, self._exchange_settings, load_report=self._feed.on_load_report)

    # ---- configuration

    def _apply_config(self, config: LoadedConfig, guard: PluginGuard) -> None:
        """Puts a configuration into force. The profile is built first: one that cannot be built changes nothing."""
        profile = build_profile(config, guard)
        self.config = config
        self._profile = profile
        if self._composed:
            self._exchange_settings = exchange_settings(config, self._rules, self._bodies)
            self.pool.policy = profile
            self.pool.settings = pool_settings(config)

    def offer_config(self, text: str) -> bool:
        """Takes a new configuration if it is good; True if it is now in force."""
        return self._configuration.offer(text)

    def apply_rules(self, rules: PoolRules) -> None:
        """Objectives and rewrites of the pool."""
        self._rules = rules
        self._exchange_settings = exchange_settings(self.config, rules, self._bodies)

    # ---- endpoints

    def apply_endpoints(self, specs: list[EndpointSpec]) -> None:
        """Makes the gateway's endpoint file know the wanted endpoints, then pool and telemetry."""
        self._wanted = specs
        self._write_eds()
        # At the start the gateway has the file of the picker before this one, or waits for ours.
        self._apply_known(self._now() if self._listening else -math.inf)

    def _apply_known(self, named_at: float) -> None:
        specs, wait_ms = self._wanted, 0.0
        if self._lead is not None:
            known, wait_ms = self._lead.known(specs, self._now(), named_at)
            # Where requests cannot wait, an endpoint that the gateway may not know yet is better than none.
            if known or self._dispatcher is not None:
                specs = known
        if self._later is not None:
            self._later.cancel()
        self._later = (
            asyncio.get_running_loop().call_later(wait_ms / 1e3, self._apply_known, -math.inf) if wait_ms else None
        )
        added, removed = self.pool.apply_endpoints(specs)
        if added or removed:
            log.info(
                "endpoints changed",
                extra={"added": [one.address for one in added], "removed": [one.address for one in removed]},
            )
        self._left_out = max(0, len(specs) - len(self.pool.table.wanted()))
        if self._left_out:
            log.error("workers cannot share more endpoints", extra={"left_out": self._left_out, "most": MOST_ENDPOINTS})
        if self._reads_telemetry:
            self._reading.update(specs)

    def _write_eds(self) -> None:
        # Only who holds the data port speaks for the pool: a second picker that cannot start must not touch the file.
        if self._eds is None or not self._listening:
            return
        try:
            self._eds.write(self._wanted)
        except EdsError as error:
            if str(error) != self._eds_problem:
                log.error("endpoint file for the gateway: %s", error)
            self._eds_problem = str(error)
            self.metrics.events.labels("eds-write-failed").inc()
        else:
            self._eds_problem = ""

    async def _keep_eds(self) -> None:
        """Puts the endpoint file right when somebody else has changed it."""
        while True:
            await asyncio.sleep(EDS_CHECK_S)
            self._write_eds()

    # ---- views

    def readiness(self) -> Readiness:
        """Ready as soon as discovery has spoken; an empty pool is ready too: its answer is 503 with a reason."""
        status = self._discovery.status if self._discovery is not None else None
        detail = process_detail(
            self._configuration,
            self._background,
            status,
            in_force="the last good endpoints stay in force",
            draining=self.draining,
            tls=self.options.tls,
        )
        if self._eds_problem:
            detail["endpoint-file"] = self._eds_problem
        if self._left_out:
            detail["workers"] = f"{self._left_out} endpoints are left out: workers can share {MOST_ENDPOINTS}"
        if not self.pool.table.wanted():
            detail["endpoints"] = "the pool has no endpoints: requests are answered 503"
        ready = (status is None or status.ready) and not self.draining
        return Readiness(ready=ready, alive=not self._background.dead, detail=detail, pools={self.pool.name: ready})

    def _facts(self) -> ProcessFacts:
        return process_facts(
            self._configuration,
            self.telemetry.stats,
            streams_open=self.streams,
            streams_ended=self.transport.ended,
            discovery_failures=self._discovery.status.failures if self._discovery else 0,
            tls=self.options.tls,
            held=(self._bodies.bytes, self._bodies.limit),
        )

    # ---- life

    async def start(self) -> None:
        """Discovers, listens, serves. Raises ConfigurationError or StartError where that is not possible."""
        if self._discovery is not None:
            self._discovery.load()
        else:
            self.apply_endpoints(list(self.options.endpoints))
        try:
            await self.admin.start()
            await self.transport.start()
            self._listening = True
            self._write_eds()
            if self._eds_problem:
                await self.transport.drain(0.0)
                raise StartError(self._eds_problem)
        except StartError:
            await self.admin.stop()
            raise
        if self._eds is not None:
            self._background.spawn("endpoint file", self._keep_eds())
        if self._reads_telemetry:
            self._background.spawn("telemetry", self.telemetry.run())
        if self._peers is not None:
            self._background.spawn("news of other workers", keep_up(self._peers, self._shared, self.metrics))
        if self._discovery is not None:
            self._background.spawn("discovery", self._discovery.run())
        if (watching := self._configuration.watching()) is not None:
            self._background.spawn("configuration file", watching)
        if self.options.tls is not None:
            self._background.spawn("certificates", self.options.tls.run())
        if self._discovery is not None and self._discovery.turned is not None:
            self._background.spawn("health", self._keep_health(self._discovery.turned))
        else:
            await self.transport.set_serving(serving=True)

    async def _keep_health(self, turned: asyncio.Event) -> None:
        """Says SERVING while there is a pool to serve."""
        while await turned.wait():
            turned.clear()
            if not self.draining:
                await self.transport.set_serving(serving=self.readiness().ready)

    async def stop(self, *, replaced: bool = False) -> None:
        """Readiness off, then no new streams, open ones finish within the drain time; then everything closes.

        `replaced`: another process serves the port already, so the open ones have all the time they need.
        """
        self.draining = True
        if replaced:
            await self.transport.drain(REPLACED_S, replaced=True)
        else:
            await self.transport.set_serving(serving=False)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self.options.notice_s)
            await self.transport.drain(self.options.drain_s)
        if self._dispatcher is not None:
            self._dispatcher.close()
        await self._background.stop()
        # Behind discovery, which may have asked for it until now.
        if self._later is not None:
            self._later.cancel()
        await self._reading.close()
        await self.admin.stop()

    def hurry(self) -> None:
        """Makes `stop` wait no longer."""
        self._hurry.set()
        self.transport.hurry()
