"""Objects as far as only the doctor reads them: narrow structs like those of `poolpilot_kube.objects`."""

from __future__ import annotations

from typing import Any

import msgspec

from poolpilot_kube.objects import InferencePool, Narrow, Object, ObjectMeta, Pod, PoolRef


class Condition(Narrow, frozen=True):
    """One of a status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class ParentRef(Narrow, frozen=True):
    """A gateway."""

    name: str
    namespace: str = ""


class Parent(Narrow, frozen=True):
    """What one gateway says of a pool."""

    parent_ref: ParentRef
    conditions: tuple[Condition, ...] = ()


class PoolStatus(Narrow, frozen=True):
    """Written by gateways."""

    parents: tuple[Parent, ...] = ()


class Pool(InferencePool, frozen=True):
    """A pool with what gateways say of it."""

    status: PoolStatus = PoolStatus()


class ContainerPort(Narrow, frozen=True):
    """A port that a container declares."""

    container_port: int


class Container(Narrow, frozen=True):
    """One of a pod."""

    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class PodSpec(Narrow, frozen=True):
    """What it runs."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()

    @property
    def ports(self) -> set[int]:
        """All that are declared, also by sidecars: init containers that do not end."""
        sidecars = (one for one in self.init_containers if one.restart_policy == "Always")
        return {port.container_port for one in (*self.containers, *sidecars) for port in one.ports}


class ModelPod(Pod, frozen=True):
    """A pod with the ports that it declares."""

    spec: PodSpec = PodSpec()


class EndpointConditions(Narrow, frozen=True):
    """Absent is ready."""

    ready: bool = True


class SliceEndpoint(Narrow, frozen=True):
    """One backend."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()


class SlicePort(Narrow, frozen=True):
    """A port of all backends."""

    port: int = 0
    name: str | None = None


class EndpointSlice(Object, frozen=True):
    """Backends of a Service."""

    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


class PickerPools(Narrow, frozen=True):
    """Which pools a Picker may serve."""

    select: str = "Labelled"
    namespaces: tuple[str, ...] = ()


class PickerTls(Narrow, frozen=True):
    """TLS of the port that gateways call."""

    mode: str = "SelfSigned"


class PickerConfig(Narrow, frozen=True):
    """What its pods run by, where it is in the object itself."""

    inline: str | None = None


class PickerSpec(Narrow, frozen=True):
    """As far as it matters to others."""

    config: PickerConfig = PickerConfig()
    pools: PickerPools = PickerPools()
    tls: PickerTls = PickerTls()
    replicas: int = 1


class UnhealthyPool(Narrow, frozen=True):
    """A served pool that is not well."""

    namespace: str
    name: str
    reason: str
    message: str = ""


class PickerStatus(Narrow, frozen=True):
    """Written by the operator."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    replicas: int = 0
    ready_replicas: int = 0
    unhealthy_pools: tuple[UnhealthyPool, ...] = ()


class Picker(Object, frozen=True):
    """poolpilot.dev/v1alpha1."""

    spec: PickerSpec = PickerSpec()
    status: PickerStatus = PickerStatus()


class AdapterSpec(Narrow, frozen=True):
    """As far as it matters here."""

    pool_ref: PoolRef


class AdapterStatus(Narrow, frozen=True):
    """Written by the operator."""

    conditions: tuple[Condition, ...] = ()


class LoraAdapter(Object, frozen=True):
    """poolpilot.dev/v1alpha1."""

    spec: AdapterSpec
    status: AdapterStatus = AdapterStatus()


class Definition(Object, frozen=True):
    """A CustomResourceDefinition, by its name and annotations."""


class BackendRef(Narrow, frozen=True):
    """A back end of a route or of an extension policy."""

    name: str
    group: str = ""
    kind: str = "Service"
    namespace: str = ""
    port: int = 0


class TargetRef(Narrow, frozen=True):
    """What a policy is for."""

    name: str
    kind: str = ""


class RouteRule(Narrow, frozen=True):
    """A rule of an HTTPRoute."""

    backend_refs: tuple[BackendRef, ...] = ()


class RouteSpec(Narrow, frozen=True):
    """Of an HTTPRoute."""

    parent_refs: tuple[ParentRef, ...] = ()
    rules: tuple[RouteRule, ...] = ()


class HttpRoute(Object, frozen=True):
    """gateway.networking.k8s.io/v1."""

    spec: RouteSpec = RouteSpec()


class BodyProcessing(Narrow, frozen=True):
    """One direction of `processingMode`; absent is no body."""

    body: str = ""


class ProcessingMode(Narrow, frozen=True):
    """What the picker gets to see."""

    request: BodyProcessing | None = None
    response: BodyProcessing | None = None
    allow_mode_override: bool = False


class ExtProc(Narrow, frozen=True):
    """One external processor."""

    backend_refs: tuple[BackendRef, ...] = ()
    message_timeout: str = ""
    processing_mode: ProcessingMode = ProcessingMode()


class AncestorStatus(Narrow, frozen=True):
    """What a gateway says of a policy."""

    conditions: tuple[Condition, ...] = ()


class PolicyStatus(Narrow, frozen=True):
    """By gateway."""

    ancestors: tuple[AncestorStatus, ...] = ()


class PolicySpec(Narrow, frozen=True):
    """Of the three policies of Envoy Gateway, all fields that matter here."""

    target_refs: tuple[TargetRef, ...] = ()
    target_ref: TargetRef | None = None
    ext_proc: tuple[ExtProc, ...] = ()
    load_balancer: dict[str, Any] = msgspec.field(default_factory=dict)
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
    connection: dict[str, Any] = msgspec.field(default_factory=dict)

    def targets(self, kind: str) -> set[str]:
        """Names of the objects of this kind that it is for."""
        given = (*self.target_refs, *((self.target_ref,) if self.target_ref is not None else ()))
        return {one.name for one in given if one.kind == kind}


class Policy(Object, frozen=True):
    """EnvoyExtensionPolicy, BackendTrafficPolicy or ClientTrafficPolicy of gateway.envoyproxy.io/v1alpha1."""

    spec: PolicySpec = PolicySpec()
    status: PolicyStatus = PolicyStatus()


class RuleSpec(Narrow, frozen=True):
    """Of a DestinationRule."""

    host: str = ""


class DestinationRule(Object, frozen=True):
    """networking.istio.io."""

    spec: RuleSpec = RuleSpec()


class Nameless(msgspec.Struct):
    """An object that could not be read as its kind, for the finding that says so."""

    metadata: ObjectMeta = ObjectMeta()
