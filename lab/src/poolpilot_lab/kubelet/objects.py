"""Objects as a node needs them: identities typed, specs as the API sends them. All of them JSON dictionaries below."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from poolpilot_kube.objects import Narrow, Object, ObjectMeta, Resource, Service, ServiceSpec

Json: TypeAlias = dict[str, Any]


class PodMeta(ObjectMeta, frozen=True):
    """Of a pod that may be about to end."""

    deletion_grace_period_seconds: int | None = None


class NodePod(Object, frozen=True):
    """A pod with all of its spec."""

    metadata: PodMeta
    spec: Json = msgspec.field(default_factory=dict)
    status: Json = msgspec.field(default_factory=dict)


class ConfigMap(Object, frozen=True):
    """Texts, and bytes in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(Object, frozen=True):
    """Bytes in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


class NodeServiceSpec(ServiceSpec, frozen=True):
    """With the address that a node has to serve."""

    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    publish_not_ready_addresses: bool = False


class NodeService(Service, frozen=True):
    """A Service."""

    spec: NodeServiceSpec = NodeServiceSpec()


class SliceConditions(Narrow, frozen=True):
    """Absent means ready, serving and not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(Narrow, frozen=True):
    """One pod."""

    addresses: tuple[str, ...] = ()
    conditions: SliceConditions = SliceConditions()

    @property
    def ready(self) -> bool:
        """May get connections."""
        return self.conditions.ready is not False

    @property
    def last_resort(self) -> bool:
        """May get connections while no other is ready."""
        return self.conditions.serving is not False and self.conditions.terminating is True


class SlicePort(Narrow, frozen=True):
    """Belongs to the port of that name of the Service."""

    port: int = 0
    name: str | None = None


class EndpointSlice(Object, frozen=True):
    """Some of a Service's endpoints."""

    address_type: str = "IPv4"
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


PODS: Final = Resource("", "v1", "pods", NodePod)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", ConfigMap)
SECRETS: Final = Resource("", "v1", "secrets", Secret)
SERVICES: Final = Resource("", "v1", "services", NodeService)
SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", EndpointSlice)
