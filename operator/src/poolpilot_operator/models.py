"""What the operator reads of objects: its own kinds in full, what it made itself as far as it can differ."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from poolpilot_kube.names import OUR_GROUP
from poolpilot_kube.objects import Narrow, Object, ObjectMeta, Pod, PodStatus, PoolRef, Resource


class OwnedMeta(ObjectMeta, frozen=True):
    """Metadata with owners."""

    owner_references: tuple[dict[str, Any], ...] = ()


class Owned(Object, frozen=True):
    """An object that the operator made: every field that it ever sets, as JSON has it."""

    metadata: OwnedMeta
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    data: dict[str, str] | None = None
    rules: list[Any] | None = None
    role_ref: dict[str, Any] | None = None
    subjects: list[Any] | None = None
    address_type: str | None = None
    endpoints: list[Any] | None = None
    ports: list[Any] | None = None


class PodAddress(Narrow, frozen=True):
    """One of a pod's, of either family."""

    ip: str = ""


class PickerPodStatus(PodStatus, frozen=True):
    """With all addresses; `pod_ip` is the first of them."""

    pod_ips: tuple[PodAddress, ...] = msgspec.field(default=(), name="podIPs")


class PickerPod(Pod, frozen=True):
    """A pod of a Picker."""

    status: PickerPodStatus = PickerPodStatus()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of both families, where it has both."""
        return tuple(one.ip for one in self.status.pod_ips if one.ip) or (self.status.pod_ip,)


class NameRef(Narrow, frozen=True):
    """An object in the same namespace."""

    name: str


class KeyRef(Narrow, frozen=True):
    """A key of a ConfigMap or a Secret in the same namespace."""

    name: str
    key: str = ""


class IssuerRef(Narrow, frozen=True):
    """An issuer of cert-manager."""

    name: str
    kind: str = "Issuer"
    group: str = "cert-manager.io"


class PoolsSpec(Narrow, frozen=True):
    """Which pools."""

    select: str = "Labelled"
    namespaces: tuple[str, ...] = ()


class ConfigSpec(Narrow, frozen=True):
    """One of the three is given."""

    policy: str | None = None
    inline: str | None = None
    config_map_ref: KeyRef | None = None


class AutoscalingSpec(Narrow, frozen=True):
    """Bounds of an autoscaler."""

    max_replicas: int
    min_replicas: int = 1
    target_cpu: int = msgspec.field(default=60, name="targetCPUUtilizationPercentage")


class SchedulingSpec(Narrow, frozen=True):
    """Where pods run."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    priority_class_name: str = ""


class TlsSpec(Narrow, frozen=True):
    """Where the certificate comes from."""

    mode: str = "SelfSigned"
    secret_ref: NameRef | None = None
    issuer_ref: IssuerRef | None = None


class CredentialsSpec(Narrow, frozen=True):
    """A bearer token."""

    secret_ref: KeyRef


class PickerSpec(Narrow, frozen=True):
    """As crds/poolpilot.dev_pickers.yaml says."""

    pools: PoolsSpec = PoolsSpec()
    config: ConfigSpec = ConfigSpec(policy="predicted-finish")
    replicas: int = 1
    autoscaling: AutoscalingSpec | None = None
    workers: int = 1
    placement: str = "Shared"
    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: tuple[NameRef, ...] = ()
    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    scheduling: SchedulingSpec = SchedulingSpec()
    tls: TlsSpec = TlsSpec()
    engine_credentials: CredentialsSpec | None = None


class Picker(Object, frozen=True):
    """An installation of endpoint pickers; its status as the server has it."""

    spec: PickerSpec = PickerSpec()
    status: dict[str, Any] | None = None


class AdapterSource(Narrow, frozen=True):
    """One of the two is given."""

    path: str = ""
    repository: str = ""

    @property
    def where(self) -> str:
        """As engines take it."""
        return self.path or self.repository


class LoraAdapterSpec(Narrow, frozen=True):
    """As crds/poolpilot.dev_loraadapters.yaml says."""

    pool_ref: PoolRef
    source: AdapterSource
    adapter_name: str = ""
    base_model: str = ""
    endpoints: int | None = None
    pinned: bool = False
    engine_credentials: CredentialsSpec | None = None


class LoraAdapter(Object, frozen=True):
    """An adapter that is wanted on endpoints of a pool."""

    spec: LoraAdapterSpec
    status: dict[str, Any] | None = None

    @property
    def adapter(self) -> str:
        """The name that requests ask for."""
        return self.spec.adapter_name or self.metadata.name


def _owned(group: str, version: str, plural: str) -> Resource[Owned]:
    return Resource(group, version, plural, Owned)


PICKERS: Final = Resource(OUR_GROUP, "v1alpha1", "pickers", Picker)
PICKER_PODS: Final = Resource("", "v1", "pods", PickerPod)
ADAPTERS: Final = Resource(OUR_GROUP, "v1alpha1", "loraadapters", LoraAdapter)

SERVICES: Final = _owned("", "v1", "services")
SLICES: Final = _owned("discovery.k8s.io", "v1", "endpointslices")
DEPLOYMENTS: Final = _owned("apps", "v1", "deployments")
CONFIG_MAPS: Final = _owned("", "v1", "configmaps")
ACCOUNTS: Final = _owned("", "v1", "serviceaccounts")
ROLES: Final = _owned("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS: Final = _owned("rbac.authorization.k8s.io", "v1", "rolebindings")
BUDGETS: Final = _owned("policy", "v1", "poddisruptionbudgets")
AUTOSCALERS: Final = _owned("autoscaling", "v2", "horizontalpodautoscalers")
NETWORK_POLICIES: Final = _owned("networking.k8s.io", "v1", "networkpolicies")
CLUSTER_ROLES: Final = _owned("rbac.authorization.k8s.io", "v1", "clusterroles")
CLUSTER_ROLE_BINDINGS: Final = _owned("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
MONITORS: Final = _owned("monitoring.coreos.com", "v1", "servicemonitors")
CERTIFICATES: Final = _owned("cert-manager.io", "v1", "certificates")
SECRETS: Final = _owned("", "v1", "secrets")

KINDS: Final = {
    "Service": SERVICES,
    "EndpointSlice": SLICES,
    "Deployment": DEPLOYMENTS,
    "ConfigMap": CONFIG_MAPS,
    "ServiceAccount": ACCOUNTS,
    "Role": ROLES,
    "RoleBinding": ROLE_BINDINGS,
    "PodDisruptionBudget": BUDGETS,
    "HorizontalPodAutoscaler": AUTOSCALERS,
    "NetworkPolicy": NETWORK_POLICIES,
    "ClusterRole": CLUSTER_ROLES,
    "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS,
    "ServiceMonitor": MONITORS,
    "Certificate": CERTIFICATES,
    "Secret": SECRETS,
}
"""By the kind of a manifest."""

WATCHED: Final = (
    "Service",
    "EndpointSlice",
    "Deployment",
    "ConfigMap",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "PodDisruptionBudget",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
)
"""Watched by the label of what the operator made. Secrets are read by name only, optional kinds where there are any."""
CLUSTER_WATCHED: Final = ("ClusterRole", "ClusterRoleBinding")
"""The same where the operator watches all namespaces."""
