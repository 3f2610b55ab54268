"""The pods of pools that have adapters, and of no others: followed from the first adapter of a pool to its last."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from poolpilot_kube.objects import Narrow, Pod, Resource
from poolpilot_kube.pods import active_ports, engine_label
from poolpilot_kube.watch import Watcher
from poolpilot_operator.lora.engines import Endpoint
from poolpilot_operator.lora.placement import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.api import KubeApi
    from poolpilot_kube.objects import InferencePool, Key
    from poolpilot_kube.watch import WatchSettings


class Container(Narrow, frozen=True):
    """How a container was started."""

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class PodSpec(Narrow, frozen=True):
    """As far as it says how many adapters an engine holds."""

    containers: tuple[Container, ...] = ()


class EnginePod(Pod, frozen=True):
    """A pod with the flags of its engine."""

    spec: PodSpec = PodSpec()


PODS: Final = Resource("", "v1", "pods", EnginePod)
_SLOTS: Final = re.compile(r"--(?:max-loras|max-loras-per-batch)[ =](\d+)(?= |$)")
_ENABLED: Final = re.compile(r"--enable-lora(?= |$|=true)")
_DEFAULT_SLOTS: Final = {"vllm": 1, "sglang": 8}
"""Of an engine with --enable-lora and no number."""


class FollowedPods:
    """By pool."""

    def __init__(self, api: KubeApi, changed: Callable[[Key], None], settings: WatchSettings | None) -> None:
        """`changed` hears of a pool whose pods changed."""
        self._api = api
        self._changed = changed
        self._settings = settings
        self._watchers: dict[Key, tuple[str, Watcher[EnginePod], asyncio.Task[None]]] = {}

    def of(self, pool: InferencePool) -> Watcher[EnginePod]:
        """Follows the pods that the pool selects now; look at `synced` before its objects count."""
        key, labels = pool.key, str(pool.spec.selector)
        known = self._watchers.get(key)
        if known is not None and known[0] == labels:
            return known[1]
        self.leave(key)
        watcher = Watcher(
            self._api, PODS, lambda _: self._changed(key), namespace=key[0], labels=labels, settings=self._settings
        )
        self._watchers[key] = labels, watcher, asyncio.create_task(watcher.run())
        return watcher

    def leave(self, key: Key) -> None:
        """The pool has no adapters any more."""
        known = self._watchers.pop(key, None)
        if known is not None:
            known[2].cancel()

    async def close(self) -> None:
        """Ends all watches."""
        tasks = [task for _, _, task in self._watchers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watchers.clear()


def endpoints_of(pods: list[EnginePod], ports: list[int]) -> list[Endpoint]:
    """The endpoints that could take an adapter, in a fixed order."""
    found = []
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        active = active_ports(pod.metadata.annotations)
        if pod.ready:
            engine = engine_label(pod.metadata.labels) or "vllm"
            slots = _slots(pod, engine)
            found += [
                Endpoint(Place(pod.metadata.uid, port), pod.metadata.name, pod.status.pod_ip, engine, slots)
                for port in ports
                if active is None or port in active
            ]
    return found


def _slots(pod: EnginePod, engine: str) -> int | None:
    """What the flags of a pod say; None if nothing."""
    flags = " ".join(part for one in pod.spec.containers for part in (*one.command, *one.args))
    found = _SLOTS.search(flags)
    if found is not None:
        return int(found[1])
    return _DEFAULT_SLOTS.get(engine) if _ENABLED.search(flags) else None
