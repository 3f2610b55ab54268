"""The operator in this process, before a real API server; and what tests ask of the cluster meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from poolpilot_kube.api import KubeApi
from poolpilot_kube.watch import WatchSettings
from poolpilot_lab.control_plane.api import Api, ApiError
from poolpilot_operator.app import Operator, Options
from poolpilot_operator.leadership import LeaseTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from picker_program import PickerProgram
    from poolpilot_kube.access import Access
    from poolpilot_kube.objects import Pod
    from stand_in_pickers import PickerPods

T = TypeVar("T")

QUICK = WatchSettings(first_backoff_s=0.05, most_backoff_s=0.5)
IMAGE = "registry.example/poolpilot-picker:1"
_SOON_S = 5.0
"""Statuses follow within it; what is looked at again just in case comes later."""


@contextlib.asynccontextmanager
async def running_operator(
    access: Access, namespace: str, pods: PickerPods | RealPods, *watched: str, **options: Any
) -> AsyncIterator[Operator]:
    """An operator at home in `namespace` that watches it and `watched`; nothing else if `everywhere`."""
    everywhere = options.pop("everywhere", False)
    more = {name: options.pop(name) for name in ("now", "engine_url") if name in options}
    wanted = {
        "identity": "operator-1",
        "image": IMAGE,
        "elect": False,
        "watch": QUICK,
        "watched": () if everywhere else tuple(sorted({namespace, *watched})),
        "lease": LeaseTimes(lease_s=3.0, deadline_s=2.0, retry_s=0.2, call_s=1.0),
        **options,
    }
    async with KubeApi(access, timeout_s=10.0) as api:
        operator = Operator(
            api, Options(namespace=namespace, **wanted), rng=random.Random(1), url_of=pods.url_of, **more
        )
        task = asyncio.create_task(operator.run())
        try:
            await asyncio.wait({task, asyncio.create_task(operator.synced.wait())}, return_when="FIRST_COMPLETED")
            if task.done():
                task.result()
            yield operator
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def eventually(check: Callable[[], Awaitable[T]], what: str = "", limit_s: float = 30.0) -> T:
    """The first answer that is true. AssertionError with the last one if none is in time."""
    last: Any = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                last = await check()
                if last:
                    return last
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what or 'never'}: {last!r}") from None


async def true(value: Any) -> bool:
    """For `eventually`: what needs no waiting to be looked at."""
    return bool(value)


async def same(answer: Awaitable[Any], wanted: Any) -> bool:
    """For `eventually`: whether the answer is the wanted one."""
    return bool(await answer == wanted)


async def quiet(operator: Operator) -> None:
    """Waits until everything has been looked at and nothing is left to do, nor will be in the next seconds.

    A status is written a moment after what it tells of: who counts writes waits for that.
    """

    async def check() -> bool:
        looked = operator.reconciled["picker"] >= len(operator.world.pickers)
        looked = looked and operator.reconciled["pool"] >= len(operator.world.pools)
        soon = [due for one in operator.queues for due in one._due.values() if due < one._now() + _SOON_S]
        return operator.synced.is_set() and looked and operator.idle and not soon

    await eventually(check, "quiet")


class RealPods:
    """The one pod of a Picker, which answers where a picker program of this machine does."""

    def __init__(self, picker: PickerProgram) -> None:
        self._picker = picker

    def url_of(self, _: Pod) -> str:
        return f"http://127.0.0.1:{self._picker.admin_port}"


class Cluster:
    """What a test reads and writes as a user who may do everything."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return await self.api.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def service(self, namespace: str, name: str) -> dict[str, Any] | None:
        return await self.get("v1", "Service", namespace, name)

    async def picker(self, namespace: str, name: str) -> dict[str, Any]:
        found = await self.get("poolpilot.dev/v1alpha1", "Picker", namespace, name)
        assert found is not None
        return found

    async def condition(self, namespace: str, name: str, type_: str) -> dict[str, Any]:
        """A condition of a Picker; empty if it has none of that type."""
        status = (await self.picker(namespace, name)).get("status", {})
        return next((one for one in status.get("conditions", ()) if one["type"] == type_), {})

    async def counts(self, namespace: str, served: int, healthy: int, name: str = "default") -> dict[str, Any] | None:
        """The status of a Picker; None while it counts otherwise."""
        status: dict[str, Any] = (await self.picker(namespace, name)).get("status", {})
        pools = status.get("pools", {})
        return status if (pools.get("served"), pools.get("healthy")) == (served, healthy) else None

    async def slice_addresses(self, namespace: str, service: str) -> list[str] | None:
        """Of the endpoints that the operator gave a Service; None without an EndpointSlice."""
        found = await self.get("discovery.k8s.io/v1", "EndpointSlice", namespace, f"{service}-poolpilot")
        if found is None:
            return None
        return [address for one in found.get("endpoints") or () for address in one["addresses"]]

    async def events(self, namespace: str, name: str) -> dict[str, str]:
        """Reason → message of the Events of an object."""
        listed = msgspec.json.decode(await self.api.call("GET", f"/api/v1/namespaces/{namespace}/events"))
        return {one["reason"]: one["message"] for one in listed["items"] if one["involvedObject"]["name"] == name}

    async def event(self, namespace: str, name: str, reason: str) -> str | None:
        """The message of an object's Event with this reason, which may come after others; None while there is none."""
        return (await self.events(namespace, name)).get(reason)

    async def made_pool(
        self, namespace: str, name: str, *ports: int, picker: str | None = "default", **spec: Any
    ) -> Any:
        """An InferencePool whose Service is `NAME-picker`."""
        ref = {"name": f"{name}-picker", "port": {"number": 9002}}
        manifest = {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {} if picker is None else {"poolpilot.dev/picker": picker},
            },
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "targetPorts": [{"number": port} for port in ports or (8000,)],
                "endpointPickerRef": ref,
                **spec,
            },
        }
        manifest["spec"] = {key: value for key, value in manifest["spec"].items() if value is not None}
        return await self.api.apply(manifest)

    async def made_picker(self, namespace: str, name: str = "default", **spec: Any) -> Any:
        wanted = {"tls": {"mode": "Disabled"}, **{name: value for name, value in spec.items() if value is not None}}
        return await self.api.apply(
            {
                "apiVersion": "poolpilot.dev/v1alpha1",
                "kind": "Picker",
                "metadata": {"name": name, "namespace": namespace},
                "spec": wanted,
            }
        )

    async def ready_pod(
        self,
        picker: tuple[str, str],
        name: str,
        ip: str,
        namespace: str = "",
        *,
        other_ip: str = "",
        phase: str = "Running",
    ) -> Any:
        """A pod of a Picker, as its Deployment and a kubelet would make it; `other_ip`: of the other family."""
        namespace = namespace or picker[0]
        labels = {
            "app.kubernetes.io/managed-by": "poolpilot",
            "app.kubernetes.io/component": "picker",
            "poolpilot.dev/picker": picker[1],
            "poolpilot.dev/picker-namespace": picker[0],
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": "node", "containers": [{"name": "picker", "image": "picker"}]},
        }
        await self.api.apply(manifest)
        status = {
            "phase": phase,
            "podIP": ip,
            "podIPs": [{"ip": one} for one in (ip, other_ip) if one],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        return await self.api.set_status(manifest, status)

    async def ended(self, name: str, namespace: str) -> None:
        """A pod is gone at once, as after its grace: no kubelet confirms here."""
        await self.api.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        await self.api.delete(
            {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        )
