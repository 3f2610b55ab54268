"""The composition root: builds the rooms from options, wires them, runs them, and takes them down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from poolpilot_picker import compiled
from poolpilot_picker.admin.page import ProcessFacts
from poolpilot_picker.admin.server import AdminServer
from poolpilot_picker.admin.views import Readiness
from poolpilot_picker.config.entrypoints import add_user_plugins
from poolpilot_picker.config.policies import DEFAULT_POLICY
from poolpilot_picker.config.reload import ConfigKeeper
from poolpilot_picker.config.seat import Seat
from poolpilot_picker.config.step_models import GENERIC, PROFILES, step_model
from poolpilot_picker.config_use import at_start, config_text, exchange_settings, pool_settings
from poolpilot_picker.discovering import discovery_of
from poolpilot_picker.envoy.eds import EdsError, EdsWriter
from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.exchange import Exchange
from poolpilot_picker.extproc.listener import ListenerSettings, TlsFiles, TransportName
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.flow.shared_pool import SharedPool
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.kubernetes_flags import KubernetesPool
from poolpilot_picker.reloading import ConfigFile
from poolpilot_picker.routing.pipeline import PluginGuard
from poolpilot_picker.routing.registry import build_profile, default_registry
from poolpilot_picker.sharing.joining import keep_up, peers_of, share
from poolpilot_picker.sharing.memory import MOST_ENDPOINTS
from poolpilot_picker.sources.cadence import Cadence
from poolpilot_picker.sources.credentials import BearerToken
from poolpilot_picker.sources.http import HttpClient, Limits
from poolpilot_picker.sources.sglang_load import SglangLoadSource, server_info_reader
from poolpilot_picker.sources.surroundings import Settings as ReadSettings
from poolpilot_picker.sources.telemetry import TelemetrySource
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from poolpilot_picker.config.load import LoadedConfig
    from poolpilot_picker.extproc.grpc_transport import GrpcTransport
    from poolpilot_picker.extproc.listener import Transport
    from poolpilot_picker.extproc.wire.transport import WireTransport

log = logging.getLogger(__name__)

EDS_CHECK_S: Final = 5.0
REPLACED_S: Final = 86_400.0
"""The longest exchange that a process which was replaced still serves."""
GIE_HEALTH_SERVICE: Final = "inference-extension"
"""The service name that the reference charts probe."""
LISTED_ENDPOINTS: Final = 3
"""Named to an Envoy that takes an ordered list: one more than the retries of the configuration we generate."""


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
    engine: str = "vllm"
    config_file: Path | None = None
    policy: str = DEFAULT_POLICY
    eds_dir: Path | None = None
    notice_s: float = 0.0
    """After SIGTERM: how long to go on as before, but not ready, until data planes have noticed."""
    drain_s: float = 30.0
    engine_token: BearerToken | None = None
    tls: TlsFiles | None = None
    transport: TransportName = TransportName.WIRE
    seed: int | None = None
    seat: Seat | None = None
    """Set where this process is one of several workers."""


def transport_class(name: TransportName) -> type[GrpcTransport | WireTransport]:
    """What serves the data port. Only the one that is asked for is loaded: the gRPC library takes tens of megabytes."""
    if name is TransportName.WIRE:
        from poolpilot_picker.extproc.wire.transport import WireTransport

        return WireTransport
    from poolpilot_picker.extproc.grpc_transport import GrpcTransport

    return GrpcTransport


class Picker:
    """One running picker with one pool."""

    def __init__(self, options: Options, now: Callable[[], float] = monotonic_ms) -> None:
        self.options = options
        self.draining = False
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self._dead: list[str] = []
        """Background tasks that a fault has ended."""
        self._hurry = asyncio.Event()
        self._eds_problem = ""
        self._left_out = 0
        self._composed = self._listening = False
        self._guard = PluginGuard(log=log.warning)
        plugins = default_registry()
        add_user_plugins(plugins)
        text, source = config_text(options.config_file, options.policy)
        # Only an Envoy that reads our endpoint file is known to take a list; ORIGINAL_DST gateways answer 503 to one.
        listed = LISTED_ENDPOINTS if options.eds_dir is not None else None
        self._keeper = ConfigKeeper(text, plugins, source, self._apply_config, endpoints_named=listed)
        self._config_file = (
            ConfigFile(options.config_file, self.offer_config) if options.config_file is not None else None
        )
        settings = self._settings_at_start = self.config.settings
        self.metrics = PickerMetrics(CollectorRegistry())
        models = {**PROFILES, **settings.step_models.profiles}
        prior = settings.step_models.prior or GENERIC
        self._peers = peers_of(options.seat, now)
        table = EndpointTable(lambda spec: step_model(spec.labels, models, prior), sharing=self._peers)
        told = pool_settings(self.config)
        rng = random.Random(options.seed)
        self.pool: Pool
        if self._peers is None:
            self.pool = Pool(options.pool, self._profile, rng, told, table)
        else:
            self.pool = SharedPool(options.pool, self._profile, rng, told, table, crew=self._peers)
        self._feed = PoolFeed(self.pool, now)
        first = options.seat is None or options.seat.first
        self._reads_telemetry = first or self._peers is None
        self._shared = share(self._peers, self.pool, self._feed)
        # SGLang pushes its load where its pages lag by seconds; everything else passes through to the feed.
        self._pushed = SglangLoadSource(
            self._shared or self._feed, now=now, discover=server_info_reader(HttpClient, options.engine_token)
        )
        self.telemetry = TelemetrySource(
            self._pushed,
            settings=ReadSettings(
                cadence=Cadence(
                    fast_ms=settings.telemetry.busy_interval_ms, slow_ms=settings.telemetry.idle_interval_ms
                ),
                limits=Limits(timeout_ms=settings.telemetry.timeout_ms),
            ),
            token=options.engine_token,
            in_flight=self._feed.in_flight,
            now=now,
        )
        self._eds = EdsWriter(options.eds_dir) if options.eds_dir is not None and first else None
        self._discovery = discovery_of(options, self.apply_endpoints, now)
        self.transport: Transport = transport_class(options.transport)(
            ListenerSettings(
                address=options.listen,
                max_receive_bytes=settings.limits.max_body_bytes + 2 * 2**20,
                tls=options.tls,
                shares_port=options.seat is not None and options.seat.shares_port,
            ),
            self.new_exchange,
            now,
            health_services=(options.pool, GIE_HEALTH_SERVICE),
        )
        self.admin = AdminServer(
            options.admin, self._pools, self.metrics.registry, self._facts, self.readiness, now, self.describe
        )
        if compiled.in_force is None:
            log.warning("decisions take several times as long as they could: %s", compiled.describe())
        self._composed = True

    def _pools(self) -> list[Pool]:
        return [self.pool]

    # ---- requests

    def new_exchange(self) -> Exchange:
        """The state machine of a new stream, under the configuration of this moment."""
        # Also while draining: what arrives before the data plane has read the GOAWAY is placed like any other.
        return Exchange(self.pool, self.metrics, self._exchange_settings, load_report=self._feed.on_load_report)

    # ---- configuration

    def _apply_config(self, config: LoadedConfig) -> None:
        """Puts a configuration into force. The profile is built first: one that cannot be built changes nothing."""
        profile = build_profile(config, self._guard)
        self.config = config
        self._profile = profile
        self._exchange_settings = exchange_settings(config)
        if self._composed:
            self.pool.policy = profile
            self.pool.settings = pool_settings(config)
        for warning in config.warnings:
            log.warning(warning)

    def offer_config(self, text: str) -> bool:
        """Takes a new configuration if it is good; True if it is now in force."""
        offered = self._keeper.offer(text)
        if offered.changed and offered.accepted:
            log.info("configuration reloaded", extra={"profile": self.config.profile.describe()})
            if self._waiting:
                log.warning("takes effect at the next start: %s", ", ".join(self._waiting))
        elif offered.changed:
            for problem in offered.problems:
                log.error("configuration stays as it is: %s", problem)
        return offered.accepted

    @property
    def _waiting(self) -> list[str]:
        """Settings that differ from those of the start and are read only then."""
        then, now = at_start(self._settings_at_start), at_start(self.config.settings)
        return [name for name, value in now.items() if then[name] != value]

    # ---- endpoints

    def apply_endpoints(self, specs: list[EndpointSpec]) -> None:
        """Makes pool, telemetry and the gateway's endpoint file know the wanted endpoints."""
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
            self.telemetry.update(specs)
            self._pushed.update(specs)
        self._write_eds()

    def _write_eds(self) -> None:
        # Only who holds the data port speaks for the pool: a second picker that cannot start must not touch the file.
        if self._eds is None or not self._listening:
            return
        try:
            self._eds.write([endpoint.spec for endpoint in self.pool.table.wanted()])
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
        detail: dict[str, str] = {}
        status = self._discovery.status if self._discovery is not None else None
        discovered = status is None or status.ready
        if self.draining:
            detail["draining"] = "shutting down: no new streams are taken"
        if status is not None and (not discovered or status.problems):
            first = "the last good endpoints stay in force" if discovered else status.missing
            detail["discovery"] = f"{first}: {'; '.join(status.problems)}".removesuffix(": ")
        if self._config_file is not None and self._config_file.problem:
            detail["configuration"] = self._config_file.problem
        elif self._keeper.detail:
            detail["configuration"] = self._keeper.detail
        elif self._waiting:
            detail["configuration"] = f"takes effect at the next start: {', '.join(self._waiting)}"
        if self._dead:
            detail["faults"] = f"ended by a fault, see the log: {', '.join(self._dead)}"
        if self._eds_problem:
            detail["endpoint-file"] = self._eds_problem
        if self._left_out:
            detail["workers"] = f"{self._left_out} endpoints are left out: workers can share {MOST_ENDPOINTS}"
        if not self.pool.table.wanted():
            detail["endpoints"] = "the pool has no endpoints: requests are answered 503"
        ready = discovered and not self.draining
        return Readiness(ready=ready, alive=not self._dead, detail=detail, pools={self.pool.name: ready})

    def describe(self) -> dict[str, Any]:
        """The configuration in force."""
        return {
            "source": self.config.source,
            "core": compiled.describe(),
            "profile": self.config.profile.describe(),
            "warnings": list(self.config.warnings),
            "problems_of_newer_file": list(self._keeper.problems),
            "waiting_for_next_start": self._waiting,
            "settings": msgspec.to_builtins(self.config.settings),
        }

    def _facts(self) -> ProcessFacts:
        stats = self.telemetry.stats
        # Copies: the page is written in a thread.
        return ProcessFacts(
            version=version("poolpilot"),
            streams_open=self.transport.streams,
            streams_ended=dict(self.transport.ended),
            config_reloads=self._keeper.generation,
            config_refusals=self._keeper.refused,
            plugin_failures=dict(self._guard.failures),
            telemetry_errors=dict(stats.errors),
            telemetry_remarks=dict(stats.remarks),
            telemetry_polls=stats.polls,
            telemetry_busy_s=stats.busy_s,
            telemetry_overdue_ms=stats.overdue_ms,
            engine_restarts=stats.restarts,
            discovery_failures=self._discovery.status.failures if self._discovery else 0,
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
            self._spawn("endpoint file", self._keep_eds())
        if self._reads_telemetry:
            self._spawn("telemetry", self.telemetry.run())
        if self._peers is not None:
            self._spawn("news of other workers", keep_up(self._peers, self._shared, self.metrics))
        if self._discovery is not None:
            self._spawn("discovery", self._discovery.run())
        if self._config_file is not None:
            self._spawn("configuration file", self._config_file.run())
        if self._discovery is not None and self._discovery.turned is not None:
            self._spawn("health", self._keep_health(self._discovery.turned))
        else:
            await self.transport.set_serving(serving=True)

    async def _keep_health(self, turned: asyncio.Event) -> None:
        """Says SERVING while there is a pool to serve."""
        while await turned.wait():
            turned.clear()
            if not self.draining:
                await self.transport.set_serving(serving=self.readiness().ready)

    def _spawn(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        async def supervised() -> None:
            try:
                await coroutine
            except Exception:
                # Requests are still placed, by what is known; only a restart brings the task back.
                log.critical("%s was ended by a fault", name, exc_info=True)
                self._dead.append(name)

        self._tasks.append(asyncio.get_running_loop().create_task(supervised()))

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pushed.close()
        await self.admin.stop()

    def hurry(self) -> None:
        """Makes `stop` wait no longer."""
        self._hurry.set()
        self.transport.hurry()
