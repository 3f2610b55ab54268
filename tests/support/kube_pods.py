"""Pools and pods of a namespace on a real API server, with the status that a kubelet would write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.api import Api

RBAC = "rbac.authorization.k8s.io"


async def allow(api: Api, user: str, rules: list[dict[str, Any]], namespace: str | None = None) -> None:
    """Gives a user a role of its own name: in a namespace, or everywhere."""
    kind = "ClusterRole" if namespace is None else "Role"
    meta = {"name": user} if namespace is None else {"name": user, "namespace": namespace}
    await api.apply({"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": meta, "rules": rules})
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": meta,
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": user},
    }
    await api.apply(binding)


class Namespace:
    """One namespace, made by `made`."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name

    async def made(self) -> None:
        """With the ServiceAccount that a controller would make."""
        await self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._meta("default")}
        await self.api.apply(account)

    def _meta(self, name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "namespace": self.name, **more}

    def pool(self, name: str, labels: dict[str, str], *ports: int) -> dict[str, Any]:
        """An InferencePool."""
        return {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": self._meta(name),
            "spec": {
                "selector": {"matchLabels": labels},
                "targetPorts": [{"number": port} for port in ports],
                "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
            },
        }

    def pod(self, name: str, labels: dict[str, str], **annotations: str) -> dict[str, Any]:
        """A pod on a node, so that its deletion takes its grace period."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self._meta(name, labels=labels, annotations=annotations),
            "spec": {"nodeName": "node", "containers": [{"name": "engine", "image": "engine"}]},
        }

    async def run(self, name: str, ip: str, labels: dict[str, str], *, ready: bool = True) -> dict[str, Any]:
        """Makes a pod that runs at an address."""
        pod = await self.api.apply(self.pod(name, labels))
        await self.set_ready(name, ip, ready=ready)
        return pod

    async def set_ready(self, name: str, ip: str, *, ready: bool) -> None:
        """What its kubelet says."""
        condition = {"type": "Ready", "status": str(ready)}
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}
        await self.api.set_status({"apiVersion": "v1", "kind": "Pod", "metadata": self._meta(name)}, status)

    async def annotate(self, name: str, labels: dict[str, str], annotations: dict[str, str]) -> None:
        """Sets annotations of a pod, and its labels."""
        pod = self.pod(name, labels)
        pod["metadata"]["annotations"] = annotations
        await self.api.apply(pod)

    async def terminate(self, name: str) -> None:
        """Begins the deletion of a pod, as a Deployment does; no kubelet ends it."""
        await self.api.call("DELETE", f"/api/v1/namespaces/{self.name}/pods/{name}?gracePeriodSeconds=600")

    async def remove(self, name: str) -> None:
        """The pod is gone."""
        await self.api.call("DELETE", f"/api/v1/namespaces/{self.name}/pods/{name}?gracePeriodSeconds=0")
