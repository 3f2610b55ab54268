"""Kubernetes objects as far as poolpilot reads them: narrow structs, decoded straight from what the API server sends.

A field that is not listed is not kept: a pod takes a few hundred bytes here instead of several kilobytes. Types follow
the API's; what it leaves out where it is empty has a default.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import msgspec

from poolpilot_kube.names import LEGACY_GROUP, POOL_GROUP, ROUTER_GROUP

Key: TypeAlias = tuple[str, str]
"""(namespace, name)."""


class Narrow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object."""


class ObjectMeta(Narrow, frozen=True):
    """Identity and what users hang on an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    """RFC 3339, UTC: the text sorts by age."""
    deletion_timestamp: str | None = None
    """Set as soon as the object is being deleted."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Object(Narrow, frozen=True):
    """What every object has."""

    metadata: ObjectMeta

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return (self.metadata.namespace, self.metadata.name)


ObjectT = TypeVar("ObjectT", bound=Object)


class Resource(msgspec.Struct, Generic[ObjectT], frozen=True):
    """Where a kind is found, and how its objects are decoded."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    model: type[ObjectT]

    def path(self, namespace: str = "") -> str:
        """The collection, in one namespace or in all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


# ── pods ─────────────────────────────────────────────────────────────────────


class PodCondition(Narrow, frozen=True):
    """One of `status.conditions`; status is True, False or Unknown."""

    type: str
    status: str


class PodStatus(Narrow, frozen=True):
    """What the kubelet says."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] = ()


_ENDED = frozenset({"Succeeded", "Failed"})
"""Phases that no pod leaves again."""


class Pod(Object, frozen=True):
    """A pod."""

    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good: nobody answers at its address, or somebody else."""
        return self.status.phase in _ENDED

    @property
    def ready(self) -> bool:
        """May get requests: Ready, with an address, not being deleted, and not at its end.

        A kubelet that ends a pod by itself (node shutdown, eviction) has left Ready true on a pod that has Failed, and
        its address may be another pod's by then.
        """
        return (
            self.metadata.deletion_timestamp is None
            and not self.ended
            and bool(self.status.pod_ip)
            and any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)
        )


# ── services ─────────────────────────────────────────────────────────────────


class ServicePort(Narrow, frozen=True):
    """One of `spec.ports`; `target_port` is a number, or the name of a container's port."""

    port: int
    target_port: int | str = 0
    name: str = ""
    app_protocol: str = ""


class ServiceSpec(Narrow, frozen=True):
    """Without a selector, whoever made the Service says where it leads."""

    ports: tuple[ServicePort, ...] = ()
    selector: dict[str, str] = {}
    type: str = "ClusterIP"


class Service(Object, frozen=True):
    """A Service."""

    spec: ServiceSpec = ServiceSpec()


# ── upstream's kinds ─────────────────────────────────────────────────────────


class PoolSelector(Narrow, frozen=True):
    """`spec.selector` of a pool."""

    match_labels: dict[str, str] = {}

    def __str__(self) -> str:
        """As the API takes it in `labelSelector`."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.match_labels.items()))


class TargetPort(Narrow, frozen=True):
    """One port of every pod."""

    number: int


class PickerPort(Narrow, frozen=True):
    """The port of a pool's endpoint picker."""

    number: int


class EndpointPickerRef(Narrow, frozen=True):
    """Who picks for a pool."""

    name: str
    group: str = ""
    kind: str = "Service"
    port: PickerPort | None = None
    failure_mode: str = "FailClose"


class InferencePoolSpec(Narrow, frozen=True):
    """Which pods, which ports, which picker."""

    selector: PoolSelector
    target_ports: tuple[TargetPort, ...]
    app_protocol: str = "http"
    endpoint_picker_ref: EndpointPickerRef | None = None


class InferencePool(Object, frozen=True):
    """inference.networking.k8s.io/v1."""

    spec: InferencePoolSpec


class PoolRef(Narrow, frozen=True):
    """A pool in the namespace of the object that refers to it."""

    name: str
    group: str = POOL_GROUP
    kind: str = "InferencePool"


class InferenceObjectiveSpec(Narrow, frozen=True):
    """How important the requests are that name the objective; absent is 0, below 0 is shed first."""

    pool_ref: PoolRef
    priority: int = 0


class InferenceObjective(Object, frozen=True):
    """v1alpha2 of both groups."""

    spec: InferenceObjectiveSpec


class ModelMatch(Narrow, frozen=True):
    """The model that a request asks for."""

    value: str
    type: str = "Exact"


class RewriteMatch(Narrow, frozen=True):
    """What a request must ask for."""

    model: ModelMatch


class RewriteTarget(Narrow, frozen=True):
    """A model to ask for instead; weights count only relative to each other."""

    model_rewrite: str
    weight: int | None = None


class RewriteRule(Narrow, frozen=True):
    """Any match must hold; without matches every request does."""

    matches: tuple[RewriteMatch, ...] = ()
    targets: tuple[RewriteTarget, ...] = ()


class InferenceModelRewriteSpec(Narrow, frozen=True):
    """Rules for one pool."""

    pool_ref: PoolRef
    rules: tuple[RewriteRule, ...] = ()


class InferenceModelRewrite(Object, frozen=True):
    """v1alpha2 of both groups."""

    spec: InferenceModelRewriteSpec


PODS: Resource[Pod] = Resource("", "v1", "pods", Pod)
SERVICES: Resource[Service] = Resource("", "v1", "services", Service)
POOLS: Resource[InferencePool] = Resource(POOL_GROUP, "v1", "inferencepools", InferencePool)
OBJECTIVES: tuple[Resource[InferenceObjective], ...] = tuple(
    Resource(group, "v1alpha2", "inferenceobjectives", InferenceObjective) for group in (ROUTER_GROUP, LEGACY_GROUP)
)
"""By preference: where a cluster has both, the first is read."""
REWRITES: tuple[Resource[InferenceModelRewrite], ...] = tuple(
    Resource(group, "v1alpha2", "inferencemodelrewrites", InferenceModelRewrite)
    for group in (ROUTER_GROUP, LEGACY_GROUP)
)
"""By preference: where a cluster has both, the first is read."""
