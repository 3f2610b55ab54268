"""The pools of a Picker: their Services say which and where, the API says the rest. Few watches, however many pools.

In each namespace, or once for the cluster, one watch of Services (this Picker's only), InferencePools, pods, objectives
and rewrites; a pod goes to the pools that select it. While the API server cannot be reached, all stays as it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from poolpilot_kube.api import KubeApi
from poolpilot_kube.names import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    OPERATOR_LABEL,
    PICKER_LABEL,
    PICKER_NAMESPACE_LABEL,
)
from poolpilot_kube.objects import POOLS, SERVICES, InferencePool, Pod, Service
from poolpilot_kube.watch import Watcher, WatchSettings
from poolpilot_picker.sources.discovery import DiscoveryStatus
from poolpilot_picker.sources.picker_services import Settlement, settle
from poolpilot_picker.sources.pod_groups import MOST_PROBLEMS, PodGroup
from poolpilot_picker.sources.pool_rules import RuleBook
from poolpilot_picker.sources.rested import Rested
from poolpilot_picker.sources.selectors import SelectorIndex
from poolpilot_picker.sources.slim_pods import SLIM_PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from poolpilot_kube.access import Access
    from poolpilot_kube.objects import Key
    from poolpilot_kube.watch import Change
    from poolpilot_picker.requests.rules import PoolRules
    from poolpilot_picker.state.endpoints import EndpointSpec

log: Final = logging.getLogger(__name__)

_PAGE: Final = 100
"""Objects decoded at a time: requests are placed in between."""


class FleetSink(Protocol):
    """Who serves the pools. Calls come from the event loop's thread and must not raise."""

    def settle(self, settlement: Settlement) -> None:
        """These pools are to be served from now on, and no others."""

    def apply_endpoints(self, pool: Key, specs: list[EndpointSpec]) -> None:
        """The wanted endpoints of a pool that is served."""

    def apply_rules(self, pool: Key, rules: PoolRules) -> None:
        """Its objectives and rewrites."""

    def turned(self) -> None:
        """What `FleetDiscovery.missing` says may have changed."""


class _Followed:
    """A pool that is served, as the API has it."""

    def __init__(self, group: PodGroup) -> None:
        self.group = group
        self.pool: InferencePool | None = None
        self.listed = False
        """Its pods are known."""


class FleetDiscovery:
    """Follows the pools of one Picker while `run` runs, and tells `sink`."""

    def __init__(
        self,
        access: Access,
        sink: FleetSink,
        *,
        picker: Key,
        namespaces: Sequence[str] = (),
        operator: str = "",
        engines: Collection[str],
        default_engine: str = "vllm",
        settings: WatchSettings | None = None,
        now: Callable[[], float],
    ) -> None:
        """`picker`: (namespace, name); without `namespaces`, pools of all are served.

        `operator`: namespace of the one whose Services count; empty is any.
        """
        self._access = access
        self._sink = sink
        self._picker = picker
        self._operator = operator
        self._namespaces = tuple(namespaces) or ("",)
        self._engines = engines
        self._default_engine = default_engine
        self._settings = settings or WatchSettings(page=_PAGE)
        self._now = now
        self._scopes: dict[str, _Scope] = {}
        self._followed: dict[Key, _Followed] = {}
        self._ports: dict[Key, int] = {}
        self._settling = Rested(self._settle, now)
        self._status = DiscoveryStatus(path=f"the pools of Picker {'/'.join(picker)}", missing=self._unlisted())

    @property
    def status(self) -> DiscoveryStatus:
        """How it goes now."""
        status, scopes = self._status, list(self._scopes.values())
        status.missing = self._unlisted()
        if status.loaded_ms is None and not status.missing:
            status.loaded_ms = self._now()
        problems = [problem for scope in scopes for problem in scope.problems]
        problems += [problem for one in self._followed.values() for problem in one.group.problems]
        status.problems = tuple(problems[:MOST_PROBLEMS])
        status.failures = sum(scope.failures for scope in scopes)
        return status

    def missing(self, pool: Key) -> str:
        """Why a pool cannot be answered for yet; empty where it can."""
        scope, followed = self._scope(pool), self._followed.get(pool)
        if scope is None or followed is None:
            return "no Service asks for it"
        if followed.pool is None:
            return scope.without_pool(pool)
        if not followed.listed:
            return "its pods have not been listed yet"
        return "" if scope.rules.known else "objectives and rewrites have not been listed yet"

    async def run(self) -> None:
        """Watches until cancelled."""
        try:
            async with KubeApi(self._access, user_agent="poolpilot-picker") as api, asyncio.TaskGroup() as group:
                self._scopes = {one: _Scope(self, api, one) for one in self._namespaces}
                for scope in self._scopes.values():
                    for work in scope.work():
                        group.create_task(work)
        finally:
            self._settling.still()
            for one in self._followed.values():
                one.group.still()

    def _scope(self, pool: Key) -> _Scope | None:
        return self._scopes.get("") or self._scopes.get(pool[0])

    def _unlisted(self) -> str:
        unlisted = [name for scope in self._scopes.values() for name in scope.unlisted()]
        if self._scopes and not unlisted:
            return ""
        return f"not listed yet: {', '.join(unlisted[:3]) or 'everything'}"

    # ---- told by the scopes

    def services_changed(self, _: Sequence[Change[Service]]) -> None:
        """Who is to be served may have changed."""
        self._settling.soon()

    def _settle(self) -> None:
        services = [one for scope in self._scopes.values() for one in scope.services.objects.values()]
        settlement = settle(services, self._ports)
        gone, before = self._ports.keys() - settlement.ports.keys(), self._ports.keys()
        added = settlement.ports.keys() - before
        self._ports = dict(settlement.ports)
        for key in gone:
            self._followed.pop(key).group.still()
        for key in added:
            self._followed[key] = _Followed(self._group(key))
        self._sink.settle(settlement)
        for scope in self._scopes.values():
            scope.unfollow(key for key in gone if self._scope(key) is scope)
            scope.follow([key for key in added if self._scope(key) is scope])
        self._sink.turned()

    def _group(self, key: Key) -> PodGroup:
        return PodGroup(
            lambda specs: self._said(key, specs),
            engines=self._engines,
            default_engine=self._default_engine,
            now=self._now,
        )

    def _said(self, key: Key, specs: list[EndpointSpec]) -> None:
        followed = self._followed.get(key)
        if followed is None:
            return
        try:
            self._sink.apply_endpoints(key, specs)
        except Exception:
            # Whatever is wrong with one set of endpoints must not end the watch for the others.
            log.exception("endpoints of %s were not applied", "/".join(key))


class _Scope:
    """What is watched in one namespace, or in all of them."""

    def __init__(self, fleet: FleetDiscovery, api: KubeApi, namespace: str) -> None:
        self._fleet = fleet
        self._namespace = namespace
        self._index = SelectorIndex()
        settings = fleet._settings
        where, picker = fleet._picker
        # What the operator sees too, and takes away where it did not make it: users may write Services.
        labels = {MANAGED_BY_LABEL: MANAGED_BY, PICKER_LABEL: picker, PICKER_NAMESPACE_LABEL: where}
        if fleet._operator:
            labels[OPERATOR_LABEL] = fleet._operator
        self.services: Watcher[Service] = Watcher(
            api,
            SERVICES,
            fleet.services_changed,
            namespace=namespace,
            labels=",".join(f"{name}={value}" for name, value in labels.items()),
            settings=settings,
        )
        self.pools: Watcher[InferencePool] = Watcher(
            api, POOLS, self._pools_changed, namespace=namespace, settings=settings
        )
        self.pods: Watcher[Pod] = Watcher(api, SLIM_PODS, self._pods_changed, namespace=namespace, settings=settings)
        self.rules = RuleBook(api, self._rules_changed, namespace=namespace, settings=settings)
        self._watchers: tuple[Watcher[Any], ...] = (self.services, self.pools, self.pods)
        self._names = ("Services", "InferencePools", "pods")
        self._pods_known = False

    def work(self) -> list[Any]:
        """What has to run."""
        return [*(one.run() for one in self._watchers), self.rules.run()]

    @property
    def problems(self) -> list[str]:
        """What is wrong now."""
        return [one.status.problem for one in self._watchers if one.status.problem] + self.rules.problems

    @property
    def failures(self) -> int:
        """Answers of the API server that failed."""
        return sum(one.status.failures for one in self._watchers) + self.rules.failures

    def unlisted(self) -> list[str]:
        """What is not known yet."""
        where = f" of {self._namespace}" if self._namespace else ""
        pairs = zip(self._watchers, self._names, strict=True)
        found = [f"{name}{where}" for one, name in pairs if not one.status.synced]
        return found if self.rules.known else [*found, f"objectives and rewrites{where}"]

    def without_pool(self, pool: Key) -> str:
        """Why an InferencePool is not known."""
        if self.pools.status.synced:
            return f"there is no InferencePool {'/'.join(pool)}"
        return "the InferencePools have not been listed yet"

    # ---- pools

    def follow(self, pools: Collection[Key]) -> None:
        """These are served from now on."""
        self._select(pools)
        if self.rules.known:
            self._tell_rules(pools)

    def unfollow(self, pools: Iterable[Key]) -> None:
        """These no longer."""
        for key in pools:
            self._index.set(key, None)

    def _pools_changed(self, changes: Sequence[Change[InferencePool]]) -> None:
        followed = self._fleet._followed
        self._select([change.key for change in changes if change.key in followed])
        self._fleet._sink.turned()

    def _select(self, pools: Collection[Key]) -> None:
        """Takes in what the InferencePools say, and the pods that they select if these are others than before."""
        followed = self._fleet._followed
        again: set[Key] = set()
        for key in pools:
            one, pool = followed[key], self.pools.objects.get(key)
            before, one.pool = one.pool, pool
            if pool is None:
                self._index.set(key, None)
                one.group.begin(())
                one.listed = False
                if before is not None:
                    log.warning("there is no InferencePool %s any more", "/".join(key))
                    one.group.say()
            elif before is None or (pool.spec.selector, pool.spec.target_ports) != (
                before.spec.selector,
                before.spec.target_ports,
            ):
                self._index.set(key, pool.spec.selector.match_labels)
                one.group.begin(tuple(port.number for port in pool.spec.target_ports))
                again.add(key)
        if again:
            self._fill(again)

    # ---- pods

    def _pods_changed(self, changes: Sequence[Change[Pod]]) -> None:
        followed, index = self._fleet._followed, self._index
        if not self._pods_known:
            self._pods_known = True
            self._fill({key for key, one in followed.items() if one.pool is not None and self._holds(key)})
            return
        touched: dict[Key, None] = {}
        for change in changes:
            now = index.matching(change.new)
            for key in {*now, *index.matching(change.old)}:
                if followed[key].group.tell(change.key, change.new if key in now else None):
                    touched[key] = None
        for key in touched:
            followed[key].group.say_soon()

    def _holds(self, pool: Key) -> bool:
        return not self._namespace or pool[0] == self._namespace

    def _fill(self, pools: set[Key]) -> None:
        """Makes the endpoints of pools from all pods, in one go."""
        if not self._pods_known:
            return
        followed = self._fleet._followed
        for key, pod in self.pods.objects.items():
            for pool in self._index.matching(pod):
                if pool in pools:
                    followed[pool].group.tell(key, pod)
        for pool in pools:
            followed[pool].listed = True
            followed[pool].group.say()
        self._fleet._sink.turned()

    # ---- rules

    def _rules_changed(self, pools: Collection[Key] | None) -> None:
        if not self.rules.known:
            return
        followed = self._fleet._followed
        self._tell_rules(
            [key for key in (followed if pools is None else pools) if key in followed and self._holds(key)]
        )
        if pools is None:
            self._fleet._sink.turned()

    def _tell_rules(self, pools: Collection[Key]) -> None:
        if not pools:
            return
        for key, rules in self.rules.rules(set(pools)).items():
            self._fleet._sink.apply_rules(key, rules)
