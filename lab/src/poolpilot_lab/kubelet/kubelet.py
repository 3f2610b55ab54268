"""The node's loop: runs the pods bound to it, keeps their volumes fresh, and serves Services, names and logs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from poolpilot_kube.watch import Watcher
from poolpilot_lab.kubelet import node as node_object
from poolpilot_lab.kubelet import objects
from poolpilot_lab.kubelet.dns import serve
from poolpilot_lab.kubelet.logs import LogServer
from poolpilot_lab.kubelet.network import NAMES, Addresses
from poolpilot_lab.kubelet.pod import Node, Pod
from poolpilot_lab.kubelet.services import Proxy, Services

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from poolpilot_kube.api import KubeApi
    from poolpilot_kube.watch import Change
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.kubelet.objects import ConfigMap, NodePod, Secret

log: Final = logging.getLogger(__name__)

_TOKENS_S: Final = 2_400.0
"""How often tokens are renewed: they last an hour, unless a pod asks for less than is good for it."""


class Store:
    """ConfigMaps and Secrets of the whole cluster, as the watches have them."""

    def __init__(self, kube: KubeApi, changed: Callable[[Sequence[Change[Any]]], None]) -> None:
        self.config_maps = Watcher(kube, objects.CONFIG_MAPS, changed)
        self.secrets = Watcher(kube, objects.SECRETS, changed)

    def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        """None if there is none."""
        return self.config_maps.objects.get((namespace, name))

    def secret(self, namespace: str, name: str) -> Secret | None:
        """None if there is none."""
        return self.secrets.objects.get((namespace, name))


class Kubelet:
    """One node."""

    def __init__(self, kube: KubeApi, api: Api, make_node: Callable[[Store], Node], version: str) -> None:
        """`kube` reads, `api` writes. `version`: what the node says of itself."""
        self._kube = kube
        self._api = api
        self._version = version
        self._store = Store(kube, self._sources_changed)
        self._node = make_node(self._store)
        self._addresses = Addresses()
        self._numbers = 0
        self._pods: dict[str, Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._services = Services()
        self._proxy = Proxy(self._services)
        self._services_changed = asyncio.Event()
        self._fault: asyncio.Future[None] | None = None

    async def run(self, tls: ssl.SSLContext, ready: Callable[[], None] = lambda: None) -> None:
        """Until it is cancelled; then everything that runs is killed. `tls` is for `kubectl logs`."""
        self._fault = asyncio.get_running_loop().create_future()
        logs = LogServer(self._pod)
        names = await serve(self._services.resolve, NAMES)
        try:
            port = await logs.start(self._node.host, tls)
            async with asyncio.TaskGroup() as group:
                for watcher in (
                    self._store.config_maps,
                    self._store.secrets,
                    Watcher(self._kube, objects.SERVICES, self._heard_services),
                    Watcher(self._kube, objects.SLICES, self._heard_slices),
                ):
                    group.create_task(watcher.run())
                    await watcher.synced.wait()
                await node_object.register(self._api, self._node.name, self._node.host, port, self._version)
                group.create_task(Watcher(self._kube, objects.PODS, self._heard_pods).run())
                group.create_task(node_object.stay(self._api, self._node.name))
                group.create_task(self._serve_services())
                group.create_task(self._renew_tokens())
                group.create_task(self._fail())
                ready()
        finally:
            names.close()
            self._proxy.close()
            for pod in self._pods.values():
                pod.gone()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await logs.stop()

    # ── pods ─────────────────────────────────────────────────────────────────

    def _heard_pods(self, changes: Sequence[Change[NodePod]]) -> None:
        for one in changes:
            known = one.new or one.old
            assert known is not None, "a change has one side at least"
            if known.spec.get("nodeName") == self._node.name:
                self._heard_pod(one)

    def _heard_pod(self, change: Change[NodePod]) -> None:
        old, new = change.old, change.new
        replaced = old is not None and (new is None or new.metadata.uid != old.metadata.uid)
        if replaced and old is not None and old.metadata.uid in self._pods:
            self._pods[old.metadata.uid].gone()
        if new is None:
            return
        pod = self._pods.get(new.metadata.uid)
        if pod is None:
            if new.status.get("phase") in ("Succeeded", "Failed"):
                return
            pod = self._begin(new)
        pod.update(new)
        if old is not None and (old.metadata.labels, old.metadata.annotations) != (
            new.metadata.labels,
            new.metadata.annotations,
        ):
            pod.refresh()

    def _begin(self, new: NodePod) -> Pod:
        self._numbers += 1
        pod = Pod(new, self._node, self._api, self._addresses.take(), self._numbers)
        uid = new.metadata.uid
        self._pods[uid] = pod
        task = asyncio.create_task(pod.run())
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._end(uid, done))
        return pod

    def _end(self, uid: str, task: asyncio.Task[None]) -> None:
        self._addresses.give_back(self._pods.pop(uid).address)
        del self._tasks[uid]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a pod's task failed", exc_info=error)
            if self._fault is not None and not self._fault.done():
                self._fault.set_exception(error)

    async def _fail(self) -> None:
        """A fault of ours ends the kubelet: a test must not wait for a pod that nobody runs."""
        assert self._fault is not None, "run sets it"
        await self._fault

    def _pod(self, namespace: str, name: str) -> Pod | None:
        for pod in self._pods.values():
            if pod.pod.key == (namespace, name):
                return pod
        return None

    # ── what pods read ───────────────────────────────────────────────────────

    def _sources_changed(self, changes: Sequence[Change[Any]]) -> None:
        namespaces = {one.key[0] for one in changes}
        for pod in self._pods.values():
            if pod.pod.metadata.namespace in namespaces:
                pod.refresh()

    async def _renew_tokens(self) -> None:
        while True:
            await asyncio.sleep(_TOKENS_S)
            for pod in list(self._pods.values()):
                await pod.renew()

    # ── Services ─────────────────────────────────────────────────────────────

    def _heard_services(self, changes: Sequence[Change[objects.NodeService]]) -> None:
        self._services.apply_services(changes)
        self._services_changed.set()

    def _heard_slices(self, changes: Sequence[Change[objects.EndpointSlice]]) -> None:
        self._services.apply_slices(changes)

    async def _serve_services(self) -> None:
        while True:
            await self._services_changed.wait()
            self._services_changed.clear()
            await self._proxy.follow()
