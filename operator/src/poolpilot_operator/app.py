"""The operator composed: watches feed the queues, workers of the leader reconcile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_kube.errors import KubeError, RefusedError
from poolpilot_kube.names import MANAGED_BY, MANAGED_BY_LABEL
from poolpilot_kube.objects import POOLS, InferencePool, Key, Pod
from poolpilot_operator.events import Events
from poolpilot_operator.health import PickerHealth, admin_url
from poolpilot_operator.history.prometheus import Prometheus
from poolpilot_operator.history.reader import EVERY_S, HistoryReader
from poolpilot_operator.leadership import Lease, LeaseTimes
from poolpilot_operator.lora.demand import Demand
from poolpilot_operator.lora.engines import Endpoint, Engines
from poolpilot_operator.lora.followed import FollowedPods
from poolpilot_operator.lora.reconciler import AdapterReconciler
from poolpilot_operator.models import (
    ADAPTERS,
    CLUSTER_WATCHED,
    KINDS,
    PICKER_PODS,
    PICKERS,
    WATCHED,
    LoraAdapter,
    Picker,
    PickerPod,
)
from poolpilot_operator.ownership import Home
from poolpilot_operator.picker_reconciler import PickerReconciler
from poolpilot_operator.pool_reconciler import PoolReconciler
from poolpilot_operator.ports import Ports
from poolpilot_operator.resources.naming import COMPONENT_LABEL, made_for
from poolpilot_operator.store import ALL, Store
from poolpilot_operator.triggers import Triggers, pool_asked, pool_of_adapter
from poolpilot_operator.workqueue import WorkQueue
from poolpilot_operator.world import World, index, pool_of
from poolpilot_operator.writer import BusyError, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.api import KubeApi

log: Final = logging.getLogger(__name__)

LEASE: Final = "poolpilot-operator"
_POOL_WORKERS: Final = 8
_PICKER_WORKERS: Final = 2
_ADAPTER_WORKERS: Final = 4
_STATUS_DELAY_S: Final = 1.0
"""A Picker whose pools change is looked at that much later: many pools change together."""
_HEARING_S: Final = 5.0
_STOP_S: Final = 5.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What flags say."""

    namespace: str
    watched: tuple[str, ...] = ()
    """Empty is every namespace."""
    identity: str
    image: str = ""
    default_picker: str = "default"
    listen_host: str = "[::]"
    """Where picker pods listen, as in their flags."""
    assigned_users: bool = False
    """The cluster gives picker pods their user, and takes none that names one."""
    elect: bool = True
    prometheus_url: str = ""
    """Empty: no advice from history."""
    history_s: float = EVERY_S
    """Between two looks at it."""
    lease: LeaseTimes = LeaseTimes()
    watch: Any = None
    """WatchSettings of all watches."""


class Operator:
    """One process's operator. Everything runs while `run` runs."""

    def __init__(
        self,
        api: KubeApi,
        options: Options,
        *,
        rng: random.Random | None = None,
        url_of: Callable[[Pod], str] = admin_url,
        engine_url: Callable[[Endpoint], str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`url_of`, `engine_url`: where a picker pod's admin port and an engine are reached; `now`: of certificates."""
        self.options = options
        self.rng = rng or random.Random()
        self.pool_queue: WorkQueue[Key] = WorkQueue("pool", self.rng)
        self.picker_queue: WorkQueue[Key] = WorkQueue("picker", self.rng)
        self.adapter_queue: WorkQueue[Key] = WorkQueue("adapters", self.rng)
        """Keys of pools: the adapters of a pool share its slots."""
        self.reconciled: dict[str, int] = {"pool": 0, "picker": 0, "adapters": 0}
        self.synced = asyncio.Event()
        self.started_s = time.monotonic()
        triggers = Triggers(self.pool_queue, self.picker_queue, self.adapter_queue, self.synced)
        home = Home(options.namespace, options.watched, options.default_picker)
        namespaces = options.watched or (ALL,)
        ours, settings = f"{MANAGED_BY_LABEL}={MANAGED_BY}", options.watch
        kinds = (*WATCHED, *(() if options.watched else CLUSTER_WATCHED))
        stores = {
            kind: Store(
                api,
                KINDS[kind],
                (ALL,) if kind in CLUSTER_WATCHED else self._with_home(namespaces),
                labels=ours,
                heard=triggers.heard_made(kind),
                index=index,
                settings=settings,
            )
            for kind in kinds
        }
        self.world = World(
            api=api,
            home=home,
            image=options.image,
            listen_host=options.listen_host,
            assigned_users=options.assigned_users,
            pools=Store[InferencePool](api, POOLS, namespaces, heard=triggers.heard_pool, settings=settings),
            pickers=Store[Picker](
                api, PICKERS, self._with_home(namespaces), heard=triggers.heard_picker, settings=settings
            ),
            adapters=Store[LoraAdapter](
                api, ADAPTERS, namespaces, heard=triggers.heard_adapter, index=pool_asked, settings=settings
            ),
            pods=Store[PickerPod](
                api,
                PICKER_PODS,
                self._with_home(namespaces),
                labels=f"{ours},{COMPONENT_LABEL}=picker",
                heard=triggers.heard_pod,
                index=index,
                settings=settings,
            ),
            made=stores,
            writer=Writer(api, stores, options.namespace),
            events=Events(api),
            health=PickerHealth(triggers.heard_health, refused=triggers.heard_refusal, rng=self.rng, url_of=url_of),
            ports=Ports(),
            states={},
            counsel={},
            now=now,
        )
        triggers.world = self.world
        self.lease = Lease(api, options.namespace, LEASE, options.identity, self._led, self.rng, times=options.lease)
        self._pool_reconciler = PoolReconciler(self.world, self._pools_changed)
        self._picker_reconciler = PickerReconciler(self.world, self._passed)
        self._followed = FollowedPods(api, self.adapter_queue.add, settings)
        self._engines = Engines(engine_url)
        self._demand = Demand(lambda: list(self.world.pods), url_of)
        self.adapter_reconciler = AdapterReconciler(self.world, self._followed, self._engines, self._demand.rates)
        self._workers: set[asyncio.Task[None]] = set()
        self._unseen: set[Key] = set()
        """Pools that have not been looked at since leading began."""

    @property
    def stores(self) -> list[Store[Any]]:
        """All that is watched."""
        world = self.world
        return [world.pools, world.pickers, world.adapters, world.pods, *world.made.values()]

    @property
    def queues(self) -> tuple[WorkQueue[Key], ...]:
        """Of all kinds."""
        return self.pool_queue, self.picker_queue, self.adapter_queue

    @property
    def leading(self) -> bool:
        """Whether this process writes."""
        return self.lease.leading if self.options.elect else self.synced.is_set()

    @property
    def idle(self) -> bool:
        """Nothing is left to do now; delayed keys are not counted."""
        return all(queue.idle for queue in self.queues)

    async def run(self) -> None:
        """Until cancelled. Whatever the API server does is no reason to end."""
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(store.run()) for store in self.stores]
            lead = group.create_task(self._lead())
            try:
                await asyncio.gather(*(store.synced() for store in self.stores))
                log.info("everything is known", extra={"objects": sum(len(store) for store in self.stores)})
                self.synced.set()
                await asyncio.Event().wait()
            finally:
                for task in (lead, *watches):
                    task.cancel()
                await self._stop_workers()
                # The group would cancel it once more, in the middle of giving the Lease back.
                await asyncio.wait({lead}, timeout=_STOP_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_S):
                        clients = (self.world.health, self._followed, self._engines, self._demand)
                        await asyncio.gather(*(one.close() for one in clients))

    # ---- leading

    async def _lead(self) -> None:
        # A candidate that knows nothing yet would only take the Lease from one that does.
        await self.synced.wait()
        await self._pickers_heard()
        if self.options.elect:
            await self.lease.run()
        else:
            self._led(True)

    async def _pickers_heard(self) -> None:
        """Waits a moment for what picker pods say, so that the first look does not take them for absent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEARING_S):
                await self.world.health.heard_all()

    def _passed(self) -> bool:
        """Whether every pool has been looked at, so that a Picker's status counts all of them."""
        return not self._unseen

    def _led(self, leading: bool) -> None:
        if leading:
            self._add_all()
            self._start_workers()
        else:
            for task in self._workers:
                task.cancel()

    def _start_workers(self) -> None:
        for queue, count, reconcile in (
            (self.pool_queue, _POOL_WORKERS, self._pool_reconciler.reconcile),
            (self.picker_queue, _PICKER_WORKERS, self._picker_reconciler.reconcile),
            (self.adapter_queue, _ADAPTER_WORKERS, self.adapter_reconciler.reconcile),
        ):
            for _ in range(count):
                self._start(queue.work(self._counted(queue.name, reconcile), _wait_of))
        if self.options.prometheus_url:
            prometheus = Prometheus(self.options.prometheus_url)
            self._start(HistoryReader(self.world, prometheus, self._pools_changed, self.options.history_s).run())

    def _start(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    def _counted(self, name: str, reconcile: Callable[[Key], Any]) -> Callable[[Key], Any]:
        async def counted(key: Key) -> float | None:
            self.reconciled[name] += 1
            try:
                again: float | None = await reconcile(key)
            finally:
                if name == self.pool_queue.name:
                    self._unseen.discard(key)
            return again

        return counted

    async def _stop_workers(self) -> None:
        tasks = list(self._workers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add_all(self) -> None:
        """Whatever is there, and whatever was made for something that is not."""
        world = self.world
        pools = {pool.key for pool in world.pools}
        pickers = {picker.key for picker in world.pickers}
        adapters = {key for one in world.adapters for key in [pool_of_adapter(one)]}
        for kind, store in world.made.items():
            for one in store:
                pool, picker = pool_of(one), made_for(one)
                if pool is not None:
                    (adapters if kind == "ConfigMap" else pools).add(pool)
                if picker is not None:
                    pickers.add(picker)
        self._unseen = set(pools)
        for key in sorted(pools):
            self.pool_queue.add(key)
        for key in sorted(adapters):
            self.adapter_queue.add(key)
        for key in sorted(pickers):
            # After the pools, whose state is part of its status.
            self.picker_queue.add_after(key, 0.5 if pools else 0.0)

    def _with_home(self, namespaces: tuple[str, ...]) -> tuple[str, ...]:
        home = self.options.namespace
        return namespaces if ALL in namespaces or home in namespaces else (*namespaces, home)

    def _pools_changed(self, picker: Key) -> None:
        found = self.world.pickers.get(picker)
        if found is not None:
            self.picker_queue.add_after(picker, _STATUS_DELAY_S)


def _wait_of(error: Exception) -> tuple[float | None, bool]:
    if isinstance(error, RefusedError):
        return error.retry_after_s, True
    return None, isinstance(error, KubeError | BusyError)
