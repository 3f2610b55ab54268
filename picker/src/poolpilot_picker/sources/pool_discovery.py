"""Where the pool's endpoints come from in Kubernetes: its InferencePool, or a label selector, and the pods they select.

Reads and never writes. While the API server cannot be reached, the last endpoints that were known stay in force; a pod
that goes, or is no longer ready, is no candidate from the moment that is heard, and its requests end in peace.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.api import KubeApi
from poolpilot_kube.objects import POOLS, InferencePool, Pod
from poolpilot_kube.watch import Watcher, WatchSettings
from poolpilot_picker.sources.discovery import DiscoveryStatus
from poolpilot_picker.sources.pod_groups import PodGroup
from poolpilot_picker.sources.pool_rules import RuleBook
from poolpilot_picker.sources.slim_pods import SLIM_PODS
from poolpilot_picker.sources.telemetry import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from poolpilot_kube.access import Access
    from poolpilot_kube.objects import Key
    from poolpilot_kube.watch import Change
    from poolpilot_picker.requests.rules import PoolRules
    from poolpilot_picker.state.endpoints import EndpointSpec

log: Final = logging.getLogger(__name__)

_PAGE: Final = 100
"""Objects decoded at a time: requests are placed in between."""


class Members(msgspec.Struct, frozen=True):
    """Which pods, and which of their ports."""

    selector: str
    """A label selector as the API takes it."""
    ports: tuple[int, ...]


class PoolDiscovery:
    """Endpoints of one pool, handed to `apply` at each change, while `run` runs."""

    def __init__(
        self,
        access: Access,
        apply: Callable[[list[EndpointSpec]], None],
        *,
        namespace: str,
        pool: str,
        members: Members | None = None,
        apply_rules: Callable[[PoolRules], None] | None = None,
        engines: Collection[str],
        default_engine: str = "vllm",
        settings: WatchSettings | None = None,
        now: Callable[[], float] = monotonic_ms,
    ) -> None:
        """`members`: without an InferencePool, what it would say; `pool` then is a name only, and has no rules."""
        self._access = access
        self._apply = apply
        self._apply_rules = apply_rules
        self._namespace = namespace
        self._name = pool
        self._members = members
        self._static = members is not None
        self._settings = settings or WatchSettings(page=_PAGE)
        self._now = now
        self._turn = asyncio.Event()
        self._reselected = asyncio.Event()
        self._pools: Watcher[InferencePool] | None = None
        self._pods: Watcher[Pod] | None = None
        self._rules: RuleBook | None = None
        self._group = PodGroup(self._taken, engines=engines, default_engine=default_engine, now=now)
        self._made_from: tuple[Watcher[Pod], Members] | None = None
        """Whose pods, and by what, they are; with other ones, all have to be made again."""
        self._said = False
        self._refused = ""
        """Why endpoints could not be taken; empty where they could."""
        self._status = DiscoveryStatus(path=f"InferencePool {namespace}/{pool}", missing=self._missing())

    @property
    def status(self) -> DiscoveryStatus:
        """How it goes now."""
        watches = [one.status for one in (self._pools, self._pods) if one is not None]
        problems = [one.problem for one in watches if one.problem]
        rules = self._rules
        if rules is not None:
            problems += rules.problems
        self._status.problems = (*problems, *self._group.problems, *filter(None, (self._refused,)))
        self._status.failures = sum(one.failures for one in watches) + (rules.failures if rules is not None else 0)
        self._status.missing = self._missing()
        return self._status

    @property
    def turned(self) -> asyncio.Event:
        """Set when readiness may have changed."""
        return self._turn

    def load(self) -> list[EndpointSpec]:
        """Nothing: an API server may take its time, and `run` asks it."""
        return []

    async def run(self) -> None:
        """Watches until cancelled."""
        try:
            async with KubeApi(self._access, user_agent="poolpilot-picker") as api, asyncio.TaskGroup() as group:
                if not self._static:
                    self._pools = Watcher(
                        api,
                        POOLS,
                        self._pool_changed,
                        namespace=self._namespace,
                        name=self._name,
                        settings=self._settings,
                    )
                    group.create_task(self._pools.run())
                    self._rules = RuleBook(api, self._rules_changed, namespace=self._namespace, settings=self._settings)
                    group.create_task(self._rules.run())
                group.create_task(self._follow_pods(api))
        finally:
            self._group.still()

    async def _follow_pods(self, api: KubeApi) -> None:
        """One watch of pods after the other: a selector that changes needs another."""
        while True:
            self._reselected.clear()
            if self._members is None:
                await self._reselected.wait()
                continue
            pods: Watcher[Pod] = Watcher(
                api,
                SLIM_PODS,
                self._pods_changed,
                namespace=self._namespace,
                labels=self._members.selector,
                settings=self._settings,
            )
            self._pods = pods
            tasks = [asyncio.create_task(work) for work in (pods.run(), self._reselected.wait())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    # ---- what is heard

    def _pool_changed(self, _: Sequence[Change[InferencePool]]) -> None:
        assert self._pools is not None
        pool = self._pools.objects.get((self._namespace, self._name))
        before = self._members
        if pool is None:
            if before is not None or not self._said:
                log.warning("there is no InferencePool %s/%s", self._namespace, self._name)
            self._members, self._pods = None, None
        else:
            ports = tuple(port.number for port in pool.spec.target_ports)
            self._members = Members(str(pool.spec.selector), ports)
        after = self._members
        if after == before and self._said:
            return
        if after is None:
            self._reselected.set()
            self._group.still()
            self._take([], ready=False)
        elif before is None or after.selector != before.selector:
            # The endpoints stay until the pods of the new selector are known.
            log.info("the pool selects pods by %s", after.selector)
            self._reselected.set()
            self._group.still()
        else:
            self._pods_changed(())

    def _pods_changed(self, changes: Sequence[Change[Pod]]) -> None:
        pods, members, group = self._pods, self._members, self._group
        if pods is None or members is None or not pods.status.synced or self._reselected.is_set():
            return
        if self._made_from == (pods, members):
            touched = [group.tell(change.key, change.new) for change in changes]
            if not any(touched):
                return
        else:
            self._made_from = (pods, members)
            group.begin(members.ports)
            for key, pod in pods.objects.items():
                group.tell(key, pod)
        if self._status.ready:
            group.say_soon()
        else:
            self._say_first()

    def _say_first(self) -> None:
        """The first time; not before it is known how requests are to be treated."""
        pods, members = self._pods, self._members
        ruled = self._rules is None or self._rules.known
        if not self._status.ready and ruled and members is not None and self._made_from == (pods, members):
            self._group.say()

    def _rules_changed(self, _: Collection[Key] | None) -> None:
        assert self._rules is not None
        key = (self._namespace, self._name)
        if self._apply_rules is not None:
            self._apply_rules(self._rules.rules((key,))[key])
        self._say_first()

    def _taken(self, specs: list[EndpointSpec]) -> None:
        self._take(specs, ready=True)

    def _take(self, specs: list[EndpointSpec], *, ready: bool) -> None:
        status = self._status
        self._said = True
        status.loads += 1
        status.endpoints = len(specs)
        try:
            self._apply(specs)
        except Exception as error:
            # Whatever is wrong with one set of endpoints must not end the watch for the next.
            log.exception("%s", status.path)
            self._refused = f"not applied: {error}"
        else:
            self._refused = ""
        status.loaded_ms = self._now() if ready else None
        self._turn.set()

    def _missing(self) -> str:
        if self._members is None:
            if self._pools is not None and self._pools.status.synced:
                return f"there is no InferencePool {self._namespace}/{self._name}"
            return f"the InferencePool {self._namespace}/{self._name} has not been read yet"
        if self._rules is not None and not self._rules.known:
            return f"objectives and rewrites of {self._name} have not been listed yet"
        return f"the pods of {self._name} have not been listed yet"
