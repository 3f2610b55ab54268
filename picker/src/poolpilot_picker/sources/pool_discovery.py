"""Where the pool's endpoints come from in Kubernetes: its InferencePool, or a label selector, and the pods they select.

Reads and never writes. While the API server cannot be reached, the last endpoints that were known stay in force; a pod
that goes, or is no longer ready, is no candidate from the moment that is heard, and its requests end in peace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.api import KubeApi
from poolpilot_kube.objects import PODS, POOLS, InferencePool, Key, Pod
from poolpilot_kube.watch import Watcher, WatchSettings
from poolpilot_picker.sources.discovery import DiscoveryStatus
from poolpilot_picker.sources.pod_endpoints import endpoints_of, engine_label, engine_of, one_per_address
from poolpilot_picker.sources.telemetry import monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from poolpilot_kube.access import Access
    from poolpilot_kube.watch import Change
    from poolpilot_picker.state.endpoints import EndpointSpec

log: Final = logging.getLogger(__name__)

_PAGE: Final = 100
"""Objects decoded at a time: requests are placed in between."""
_MOST_PROBLEMS: Final = 20
_REST: Final = 9.0
"""Between two times of handing over all endpoints, in times of what one takes: requests get the other nine tenths."""
_MOST_REST_MS: Final = 500.0


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
        engines: Collection[str],
        default_engine: str = "vllm",
        settings: WatchSettings | None = None,
        now: Callable[[], float] = monotonic_ms,
    ) -> None:
        """`members`: without an InferencePool, what it would say; `pool` then is a name only."""
        self._access = access
        self._apply = apply
        self._namespace = namespace
        self._name = pool
        self._members = members
        self._static = members is not None
        self._engines = engines
        self._default_engine = default_engine
        self._settings = settings or WatchSettings(page=_PAGE)
        self._now = now
        self._turn = asyncio.Event()
        self._reselected = asyncio.Event()
        self._pools: Watcher[InferencePool] | None = None
        self._pods: Watcher[Pod] | None = None
        self._made: dict[Key, list[EndpointSpec]] = {}
        """Endpoints of each pod that has any: one pod of thousands changes at a time."""
        self._made_from: tuple[Watcher[Pod], Members] | None = None
        """Whose pods, and by what, they are; with other ones, all have to be made again."""
        self._at: Counter[str] = Counter()
        """How many endpoints there are at each address."""
        self._said = False
        self._timer: asyncio.TimerHandle | None = None
        self._rested_ms = 0.0
        """When endpoints may be handed over again."""
        self._conflicts: tuple[str, ...] = ()
        self._status = DiscoveryStatus(path=f"InferencePool {namespace}/{pool}", missing=self._missing())

    @property
    def status(self) -> DiscoveryStatus:
        """How it goes now."""
        watches = [one.status for one in (self._pools, self._pods) if one is not None]
        self._status.problems = (*(one.problem for one in watches if one.problem), *self._conflicts)
        self._status.failures = sum(one.failures for one in watches)
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
                group.create_task(self._follow_pods(api))
        finally:
            self._still()

    async def _follow_pods(self, api: KubeApi) -> None:
        """One watch of pods after the other: a selector that changes needs another."""
        while True:
            self._reselected.clear()
            if self._members is None:
                await self._reselected.wait()
                continue
            pods: Watcher[Pod] = Watcher(
                api,
                PODS,
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
            self._take([], ready=False)
        elif before is None or after.selector != before.selector:
            # The endpoints stay until the pods of the new selector are known.
            log.info("the pool selects pods by %s", after.selector)
            self._reselected.set()
        else:
            self._pods_changed(())

    def _pods_changed(self, changes: Sequence[Change[Pod]]) -> None:
        pods, members = self._pods, self._members
        if pods is None or members is None or not pods.status.synced or self._reselected.is_set():
            return
        if self._made_from == (pods, members):
            touched = [self._make(change.key, change.new, members) for change in changes]
            if not any(touched):
                return
        else:
            self._made, self._at, self._made_from = {}, Counter(), (pods, members)
            for key, pod in pods.objects.items():
                self._make(key, pod, members)
        if not self._status.ready:
            self._say()
        elif self._timer is None:
            wait_s = max(0.0, self._rested_ms - self._now()) / 1000.0
            if wait_s:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._say)
            else:
                self._say()

    def _say(self) -> None:
        """Hands over all endpoints. That costs more the larger the pool is, so it rests in proportion in between."""
        self._still()
        if self._made_from is None or self._made_from != (self._pods, self._members):
            # Meanwhile it is another pool, or none: what is known of that one comes by itself.
            return
        pods, _ = self._made_from
        specs = [spec for made in self._made.values() for spec in made]
        conflicts: list[str] = []
        if len(self._at) < len(specs):
            specs, conflicts = one_per_address((pods.objects[key], made) for key, made in self._made.items())
        for conflict in conflicts[:_MOST_PROBLEMS]:
            if conflict not in self._conflicts:
                log.warning("%s", conflict)
        self._conflicts = tuple(conflicts[:_MOST_PROBLEMS])
        began_ms = self._now()
        self._take(specs, ready=True)
        now_ms = self._now()
        self._rested_ms = now_ms + min(_REST * (now_ms - began_ms), _MOST_REST_MS)

    def _still(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make(self, key: Key, pod: Pod | None, members: Members) -> bool:
        """Makes the endpoints of one pod; whether they are others than before."""
        before = self._made.pop(key, [])
        after = self._endpoints(pod, members) if pod is not None else []
        if after:
            self._made[key] = after
        for spec in before:
            self._at[spec.address] -= 1
            if not self._at[spec.address]:
                del self._at[spec.address]
        self._at.update(spec.address for spec in after)
        return before != after

    def _endpoints(self, pod: Pod, members: Members) -> list[EndpointSpec]:
        named = engine_label(pod.metadata.labels)
        if named is not None and engine_of(pod.metadata.labels, self._engines) is None:
            log.warning(
                "pod %s names the engine %r; known are %s: read as %s",
                pod.metadata.name,
                named,
                ", ".join(sorted(self._engines)),
                self._default_engine,
            )
        return endpoints_of(pod, members.ports, self._engines, self._default_engine)

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
            self._conflicts = (*self._conflicts, f"not applied: {error}")
        status.loaded_ms = self._now() if ready else None
        self._turn.set()

    def _missing(self) -> str:
        if self._members is None:
            if self._pools is not None and self._pools.status.synced:
                return f"there is no InferencePool {self._namespace}/{self._name}"
            return f"the InferencePool {self._namespace}/{self._name} has not been read yet"
        return f"the pods of {self._name} have not been listed yet"
