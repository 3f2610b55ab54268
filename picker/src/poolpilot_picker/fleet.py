"""The composition root of a picker that serves all pools of a Picker, each on a port of its own.

What pools share: the process, its watches, its telemetry, its configuration and its admin port. What each has for
itself: state, learning, policy, metrics, listener and budgets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from poolpilot_picker import compiled
from poolpilot_picker.admin.board import PoolBoard, PoolStanding
from poolpilot_picker.admin.server import AdminServer
from poolpilot_picker.admin.views import Readiness
from poolpilot_picker.app import GIE_HEALTH_SERVICE, REPLACED_S, monotonic_ms
from poolpilot_picker.background import Background
from poolpilot_picker.config_use import exchange_settings, pool_settings, step_models
from poolpilot_picker.configuring import Configuration
from poolpilot_picker.dispatching import hold_back
from poolpilot_picker.extproc.held_bodies import HeldBodies
from poolpilot_picker.extproc.listener import ListenerSettings
from poolpilot_picker.facts import process_detail, process_facts
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.instruments.metrics import LABEL_SETS, PickerMetrics, Room
from poolpilot_picker.instruments.unserved import unserved
from poolpilot_picker.memory import body_budget
from poolpilot_picker.reading import FleetFeed, Reading
from poolpilot_picker.requests import NO_RULES, PoolRules
from poolpilot_picker.routing.registry import build_profile
from poolpilot_picker.served_pool import ServedPool
from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.sources.fleet_discovery import FleetDiscovery
from poolpilot_picker.sources.picker_services import Refused
from poolpilot_picker.sources.rested import Rested
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable
from poolpilot_picker.transports import new_transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.objects import Key
    from poolpilot_picker.admin.page import ProcessFacts
    from poolpilot_picker.app import Options
    from poolpilot_picker.config.load import LoadedConfig
    from poolpilot_picker.extproc.exchange import ExchangeSettings
    from poolpilot_picker.extproc.listener import Transport
    from poolpilot_picker.flow.pool import PoolSettings
    from poolpilot_picker.routing.pipeline import PluginGuard, Profile
    from poolpilot_picker.sources.picker_services import Settlement

log = logging.getLogger(__name__)

MIB: Final = 2**20
POOLS_AT_MOST: Final = 4
"""That fill what all pools together may hold of bodies: one of them has no more than this part."""
FRAMES_AT_ONCE: Final = 20
"""Of one connection before others have their turn: five decisions. With 200, as a picker of one pool has, a pool whose
sixteen connections are always full makes the others wait ten times as long (docs/kubernetes.md)."""
RECEIPTS_SHARE: Final = 20
"""Each pool remembers this part of the receipts that a picker of one pool does."""
LEAST_RECEIPTS: Final = 20
SHOWN: Final = 10
"""Pools named on the readiness page that are not served."""


class FleetPicker:
    """One running picker with many pools. A FleetSink: told by its discovery which."""

    def __init__(self, options: Options, now: Callable[[], float] = monotonic_ms) -> None:
        assert options.fleet is not None
        self.options = options
        self.draining = False
        self._now = now
        self._rng = random.Random(options.seed)
        self._background = Background()
        self._hurry = asyncio.Event()
        self._pools: dict[Key, ServedPool] = {}
        self._tasks: dict[ServedPool, asyncio.Task[None]] = {}
        self._leaving: dict[Transport, asyncio.Task[None]] = {}
        self._streams_ended: Counter[str] = Counter()
        """Of listeners that are gone."""
        self._refused: tuple[Refused, ...] = ()
        self._room = Room(2 * LABEL_SETS)
        self._configuration = Configuration(options.config_file, options.policy, self._apply_config)
        settings = self.config.settings
        # Half of it for messages that are still arriving, half for what has.
        self._bodies = HeldBodies(body_budget(settings.limits.held_body_bytes) // 2)
        self._models = step_models(settings)
        self._feed = FleetFeed()
        self._reading = Reading(self._feed, settings.telemetry, options.engine_token, self._feed.in_flight, now)
        # Each looks at all pools, which are thousands, and each event asks for them.
        self._updating = Rested(self._update_reading, now)
        self._standing = Rested(self._stand, now)
        self._showing = Rested(self._put, now)
        self._configuration.told = self._showing.soon
        fleet = options.fleet
        self._discovery = FleetDiscovery(
            fleet.access,
            self,
            picker=(fleet.namespace, fleet.name),
            namespaces=fleet.pool_namespaces,
            operator=fleet.operator,
            engines=tuple(BUILTIN),
            default_engine=options.engine,
            now=now,
        )
        self.board = PoolBoard()
        self.admin = AdminServer(
            options.admin,
            lambda: [one.pool for one in self._pools.values()],
            lambda: [(one.pool.name, one.metrics.registry) for one in self._pools.values()],
            self._facts,
            self.readiness,
            now,
            self._configuration.describe,
            self.board,
        )
        if compiled.in_force is None:
            log.warning("decisions take several times as long as they could: %s", compiled.describe())

    # ---- what main asks

    @property
    def streams(self) -> int:
        """Open streams."""
        return sum(transport.streams for transport in self._transports())

    def ready_line(self) -> dict[str, Any]:
        """What a program is told that started this one."""
        return {"port": 0, "admin_port": self.admin.port}

    def _transports(self) -> list[Transport]:
        return [one.transport for one in self._pools.values() if one.transport is not None] + list(self._leaving)

    # ---- configuration

    def _apply_config(self, config: LoadedConfig, guard: PluginGuard) -> None:
        """Puts a configuration into force in all pools; one that cannot be built changes nothing anywhere."""
        # Also without pools: what cannot be built must not be accepted.
        build_profile(config, guard)
        built = [(one, build_profile(config, guard)) for one in self._pools.values()]
        self.config, self._guard = config, guard
        for one, profile in built:
            one.pool.policy = profile
            one.pool.settings = self._pool_settings()
            one.settings = self._exchange_settings(one.rules, one.settings.bodies)

    def _profile(self) -> Profile:
        # It was built before: what is built again from the same configuration is sound.
        return build_profile(self.config, self._guard)

    def _pool_settings(self) -> PoolSettings:
        settings = pool_settings(self.config)
        kept = max(LEAST_RECEIPTS, settings.receipts_kept // RECEIPTS_SHARE)
        return msgspec.structs.replace(settings, receipts_kept=min(settings.receipts_kept, kept))

    def _exchange_settings(self, rules: PoolRules, bodies: HeldBodies | None) -> ExchangeSettings:
        return exchange_settings(self.config, rules, bodies)

    # ---- told by discovery

    def settle(self, settlement: Settlement) -> None:
        """Serves these pools from now on, and no others."""
        self._refused = settlement.refused
        taken = set(settlement.ports.values())
        for key in self._pools.keys() - settlement.ports.keys():
            one = self._pools.pop(key)
            log.info("%s is no longer served", "/".join(key))
            if one.port in taken:
                # Its port is another pool's: what still comes on its connections is not for this one.
                one.pool.apply_endpoints([])
            one.metrics.free()
            one.end()
        for key, port in settlement.ports.items():
            known = self._pools.get(key)
            if known is not None:
                known.move(port)
                continue
            try:
                self._open(key, port)
            except Exception:
                # One pool that cannot be made (a plugin's fault) must not end the watch for the others.
                log.critical("%s cannot be served", "/".join(key), exc_info=True)
                why = "the picker failed to make it; its log has the details"
                self._refused = (*self._refused, Refused(*key, port, why))
        self._updating.soon()
        self._show()

    def _open(self, key: Key, port: int) -> None:
        name = "/".join(key)
        bodies = HeldBodies(self._bodies.limit // POOLS_AT_MOST, self._bodies)
        one = self._pools[key] = ServedPool(
            key,
            port,
            pool=Pool(
                name,
                self._profile(),
                random.Random(self._rng.random()),
                self._pool_settings(),
                EndpointTable(self._models),
            ),
            metrics=PickerMetrics(CollectorRegistry(), self._room),
            settings=self._exchange_settings(NO_RULES, bodies),
            rules=NO_RULES,
            now=self._now,
            transport=self._transport,
            leave=self._leave,
            changed=self._show,
        )
        unserved(one.metrics, name)
        hold_back(one.pool, self.config, one.metrics, self._now, self._rng.random, bodies=bodies)
        task = self._tasks[one] = asyncio.get_running_loop().create_task(self._tended(one))
        task.add_done_callback(lambda _: self._tasks.pop(one, None))

    async def _tended(self, one: ServedPool) -> None:
        try:
            await one.tend()
        except Exception:
            log.critical("%s was ended by a fault", one.pool.name, exc_info=True)
            self._background.dead.append(one.pool.name)

    def _transport(self, one: ServedPool, port: int) -> Transport:
        options = self.options
        settings = ListenerSettings(
            address=f"{options.listen.rpartition(':')[0]}:{port}",
            max_receive_bytes=self._configuration.at_start.limits.max_body_bytes + 2 * MIB,
            tls=options.tls.certificates if options.tls is not None else None,
        )
        services = (*one.key[1:], one.pool.name, GIE_HEALTH_SERVICE)
        return new_transport(
            options.transport,
            settings,
            one.new_exchange,
            self._now,
            health_services=services,
            arriving_bytes=self._bodies.limit // POOLS_AT_MOST,
            frames_at_once=FRAMES_AT_ONCE,
        )

    def _leave(self, transport: Transport) -> None:
        """Takes no new streams there; those that are open have all the time they need."""

        async def drained() -> None:
            try:
                await transport.drain(REPLACED_S)
            finally:
                self._leaving.pop(transport, None)
                self._streams_ended.update(transport.ended)

        self._leaving[transport] = asyncio.get_running_loop().create_task(drained())

    def apply_endpoints(self, pool: Key, specs: list[EndpointSpec]) -> None:
        """The wanted endpoints of a pool."""
        one = self._pools.get(pool)
        if one is None:
            return
        added, removed = one.pool.apply_endpoints(specs)
        if added or removed:
            log.info(
                "endpoints changed",
                extra={
                    "pool": one.pool.name,
                    "added": [endpoint.address for endpoint in added],
                    "removed": [endpoint.address for endpoint in removed],
                },
            )
            self._show()
        self._updating.soon()

    def _update_reading(self) -> None:
        """All pools' endpoints, each once."""
        pools = [(one.feed, [endpoint.spec for endpoint in one.pool.table.wanted()]) for one in self._pools.values()]
        self._reading.update(self._feed.update(pools))

    def apply_rules(self, pool: Key, rules: PoolRules) -> None:
        """Objectives and rewrites of a pool."""
        one = self._pools.get(pool)
        if one is not None:
            one.rules = rules
            one.settings = self._exchange_settings(rules, one.settings.bodies)

    def turned(self) -> None:
        """What is missing to answer for pools may be another thing."""
        self._standing.soon()

    def _stand(self) -> None:
        for key, one in self._pools.items():
            one.stand(self._discovery.missing(key))
        self._show()

    # ---- views

    def _show(self) -> None:
        self._showing.soon()

    def _put(self) -> None:
        draining = "the picker is shutting down"
        pools = [
            PoolStanding(
                *key,
                port=one.port,
                serving=one.serving and not self.draining,
                reason=draining if self.draining else one.reason,
                endpoints=len(one.pool.table.wanted()),
                terminating=one.serving and self.draining,
            )
            for key, one in self._pools.items()
        ]
        pools += [PoolStanding(one.namespace, one.pool, one.port, False, one.reason) for one in self._refused]
        self.board.put(pools, self._configuration.refusal)

    def readiness(self) -> Readiness:
        """Ready as soon as everything has been listed and every pool has its listener, or cannot have one."""
        status = self._discovery.status
        listening = all(one.tried for one in self._pools.values())
        detail = process_detail(
            self._configuration,
            self._background,
            status,
            in_force="what was known last stays in force",
            draining=self.draining,
            tls=self.options.tls,
        )
        unserved = [one for one in self.board.page().pools if not one.serving]
        if unserved and not self.draining:
            named = [f"{one.namespace}/{one.name}: {one.reason}" for one in unserved[:SHOWN]]
            detail["pools"] = f"{len(unserved)} not served: {'; '.join(named)}"
        return Readiness(
            ready=status.ready and listening and not self.draining,
            alive=not self._background.dead,
            detail=detail,
            pools={one.pool.name: one.serving for one in self._pools.values()},
        )

    def _facts(self) -> ProcessFacts:
        ended = Counter(self._streams_ended)
        for transport in self._transports():
            ended.update(transport.ended)
        return process_facts(
            self._configuration,
            self._reading.telemetry.stats,
            streams_open=self.streams,
            streams_ended=ended,
            discovery_failures=self._discovery.status.failures,
            tls=self.options.tls,
            held=(self._bodies.bytes, self._bodies.limit),
        )

    # ---- life

    async def start(self) -> None:
        """Opens the admin port and begins to look for pools. Raises StartError where that is not possible."""
        await self.admin.start()
        self._background.spawn("telemetry", self._reading.telemetry.run())
        self._background.spawn("discovery", self._discovery.run())
        if (watching := self._configuration.watching()) is not None:
            self._background.spawn("configuration file", watching)
        if self.options.tls is not None:
            self._background.spawn("certificates", self.options.tls.run())

    async def stop(self, *, replaced: bool = False) -> None:
        """Readiness off, then no new streams, open ones finish within the drain time; then everything closes."""
        self.draining = True
        self._showing.at_once()
        for one in self._pools.values():
            if one.transport is not None:
                await one.transport.set_serving(serving=False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self.options.notice_s)
        tending = list(self._tasks.values())
        for one in self._pools.values():
            one.end()
        await asyncio.gather(*tending, return_exceptions=True)
        self._showing.at_once()
        drains = list(self._leaving.values())
        if drains:
            await asyncio.wait(drains, timeout=self.options.drain_s)
            for transport in list(self._leaving):
                transport.hurry()
            await asyncio.gather(*drains, return_exceptions=True)
        for one_of in (self._updating, self._standing, self._showing):
            one_of.still()
        await self._background.stop()
        await self._reading.close()
        self.board.close()
        await self.admin.stop()

    def hurry(self) -> None:
        """Makes `stop` wait no longer."""
        self._hurry.set()
        for transport in self._transports():
            transport.hurry()
