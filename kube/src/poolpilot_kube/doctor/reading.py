"""What the doctor looks at: one list of each kind, as far as it is served and may be read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.doctor.findings import Finding, Level
from poolpilot_kube.doctor.models import (
    Definition,
    DestinationRule,
    EndpointSlice,
    HttpRoute,
    LoraAdapter,
    ModelPod,
    Nameless,
    Picker,
    Policy,
    Pool,
)
from poolpilot_kube.errors import RefusedError
from poolpilot_kube.names import OUR_GROUP, POOL_GROUP, SERVICE_NAME_LABEL
from poolpilot_kube.objects import SERVICES, Key, ObjectT, Resource, Service
from poolpilot_kube.patience import patiently

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from poolpilot_kube.api import KubeApi

ENVOY_GATEWAY: Final = "gateway.envoyproxy.io"
AI_GATEWAY: Final = "aigateway.envoyproxy.io"
ISTIO: Final = "networking.istio.io"
_GATEWAY_API: Final = "gateway.networking.k8s.io"

_PAGE: Final = 500
_POOLS: Final = Resource(POOL_GROUP, "v1", "inferencepools", Pool)
_PODS: Final = Resource("", "v1", "pods", ModelPod)
_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", EndpointSlice)
_PICKERS: Final = Resource(OUR_GROUP, "v1alpha1", "pickers", Picker)
_ADAPTERS: Final = Resource(OUR_GROUP, "v1alpha1", "loraadapters", LoraAdapter)
_DEFINITIONS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", Definition)
_ROUTES: Final = Resource(_GATEWAY_API, "v1", "httproutes", HttpRoute)
_EXTENSIONS: Final = Resource(ENVOY_GATEWAY, "v1alpha1", "envoyextensionpolicies", Policy)
_BACKENDS: Final = Resource(ENVOY_GATEWAY, "v1alpha1", "backendtrafficpolicies", Policy)
_CLIENTS: Final = Resource(ENVOY_GATEWAY, "v1alpha1", "clienttrafficpolicies", Policy)
_RULES: Final = Resource(ISTIO, "v1", "destinationrules", DestinationRule)

RIGHTS: Final = (
    ("", ("pods", "services")),
    ("discovery.k8s.io", ("endpointslices",)),
    (POOL_GROUP, ("inferencepools",)),
    (OUR_GROUP, ("pickers", "loraadapters")),
    (_GATEWAY_API, ("httproutes",)),
    (ENVOY_GATEWAY, ("envoyextensionpolicies", "backendtrafficpolicies", "clienttrafficpolicies")),
    (ISTIO, ("destinationrules",)),
)
"""What it has to be allowed to list, by group, in the namespaces it looks at. Kinds that are not served do no harm."""
RIGHTS_CLUSTER: Final = (("apiextensions.k8s.io", ("customresourcedefinitions",)),)
"""The same, of what is in no namespace; it does without."""


class Cluster(msgspec.Struct, kw_only=True):
    """What there is. A kind that is not served or may not be read is an empty list."""

    served: frozenset[str] = frozenset()
    """PLURAL.GROUP/VERSION of the groups that matter here."""
    namespaces: tuple[str, ...] = ()
    """That were looked at; empty is all."""
    unread: frozenset[str] = frozenset()
    """PLURAL.GROUP that may not be read: nothing can be said of what is missing there."""
    pools: list[Pool] = []
    pods: dict[str, list[ModelPod]] = {}
    """By namespace, of those that have pools."""
    services: dict[Key, Service] = {}
    slices: dict[Key, list[EndpointSlice]] = {}
    """By Service."""
    pickers: list[Picker] = []
    adapters: list[LoraAdapter] = []
    definitions: list[Definition] = []
    routes: list[HttpRoute] = []
    extensions: list[Policy] = []
    backends: list[Policy] = []
    clients: list[Policy] = []
    rules: list[DestinationRule] = []
    problems: list[Finding] = []
    """Of reading itself."""

    def serves(self, resource: str) -> bool:
        """Whether PLURAL.GROUP is served in some version."""
        return any(one.partition("/")[0] == resource for one in self.served)

    def knows(self, resource: str) -> bool:
        """Whether that something is missing in the lists of this PLURAL.GROUP means anything."""
        return resource not in self.unread


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _GroupVersion(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct):
    name: str
    versions: tuple[_GroupVersion, ...] = ()


class _Groups(msgspec.Struct):
    groups: tuple[_Group, ...] = ()


class _Kind(msgspec.Struct):
    name: str


class _Kinds(msgspec.Struct):
    resources: tuple[_Kind, ...] = ()


async def read(api: KubeApi, namespaces: Sequence[str] = ()) -> Cluster:
    """Everything. Raises UnreachableError, or RefusedError where not even the groups may be read."""
    cluster = Cluster(served=await _served(api), namespaces=tuple(namespaces), problems=[])
    cluster.pools = await _listed(api, _POOLS, cluster)
    cluster.pickers = await _listed(api, _PICKERS, cluster)
    cluster.adapters = await _listed(api, _ADAPTERS, cluster)
    cluster.services = {one.key: one for one in await _listed(api, SERVICES, cluster)}
    for one in await _listed(api, _SLICES, cluster):
        service = (one.metadata.namespace, one.metadata.labels.get(SERVICE_NAME_LABEL, ""))
        cluster.slices.setdefault(service, []).append(one)
    cluster.routes = await _listed(api, _ROUTES, cluster)
    cluster.extensions = await _listed(api, _EXTENSIONS, cluster)
    cluster.backends = await _listed(api, _BACKENDS, cluster)
    cluster.clients = await _listed(api, _CLIENTS, cluster)
    cluster.rules = await _listed(api, _RULES, cluster)
    cluster.definitions = await _listed(api, _DEFINITIONS, cluster, everywhere=True)
    for namespace in sorted({pool.metadata.namespace for pool in cluster.pools}):
        # Not those of all namespaces: model servers are few among the pods of a cluster.
        cluster.pods[namespace] = await _listed(api, _PODS, cluster, within=(namespace,))
    return cluster


def seen(cluster: Cluster) -> dict[str, int]:
    """How many of each kind there are, without kinds of which there is none."""
    counted = {
        "InferencePools": len(cluster.pools),
        "Pickers": len(cluster.pickers),
        "LoraAdapters": len(cluster.adapters),
        "Services": len(cluster.services),
        "EndpointSlices": sum(map(len, cluster.slices.values())),
        "pods": sum(map(len, cluster.pods.values())),
        "HTTPRoutes": len(cluster.routes),
        "EnvoyExtensionPolicies": len(cluster.extensions),
    }
    return {kind: number for kind, number in counted.items() if number}


async def _served(api: KubeApi) -> frozenset[str]:
    groups = msgspec.json.decode(await patiently(partial(api.get, "/apis")), type=_Groups).groups
    wanted = {group for group, _ in (*RIGHTS, *RIGHTS_CLUSTER)} | {AI_GATEWAY, "inference.networking.x-k8s.io"}
    found = set()
    for group in groups:
        if group.name not in wanted:
            continue
        for version in group.versions:
            try:
                said = await patiently(partial(api.get, f"/apis/{version.group_version}"))
            except RefusedError:
                # A group whose definition is just going.
                continue
            kinds = msgspec.json.decode(said, type=_Kinds).resources
            number = version.group_version.partition("/")[2]
            found |= {f"{kind.name}.{group.name}/{number}" for kind in kinds if "/" not in kind.name}
    return frozenset(found)


async def _listed(
    api: KubeApi,
    resource: Resource[ObjectT],
    cluster: Cluster,
    *,
    within: Sequence[str] | None = None,
    everywhere: bool = False,
) -> list[ObjectT]:
    if resource.group and f"{resource}/{resource.version}" not in cluster.served:
        return []
    namespaces = within if within is not None else cluster.namespaces
    found: list[ObjectT] = []
    for path in [resource.path()] if everywhere or not namespaces else [resource.path(one) for one in namespaces]:
        try:
            async for raw in _items(api, path):
                one = _decoded(raw, resource, cluster.problems)
                if one is not None:
                    found.append(one)
        except RefusedError as error:
            if error.status not in {401, 403, 404}:
                raise
            cluster.unread |= {str(resource)}
            cluster.problems.append(_unread(resource, error))
    return found


async def _items(api: KubeApi, path: str) -> AsyncIterator[msgspec.Raw]:
    query = {"limit": str(_PAGE)}
    while True:
        page = msgspec.json.decode(await patiently(partial(api.get, path, query)), type=_Page)
        for item in page.items or ():
            yield item
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_


def _decoded(raw: msgspec.Raw, resource: Resource[ObjectT], problems: list[Finding]) -> ObjectT | None:
    try:
        return msgspec.json.decode(raw, type=resource.model)
    except msgspec.ValidationError as error:
        metadata = msgspec.json.decode(raw, type=Nameless).metadata
        about = f"{resource} {metadata.namespace}/{metadata.name}".replace(" /", " ")
        problems.append(
            Finding(Level.WARNING, "unreadable", about, f"is not as its kind has to be: {error}", "look at the object")
        )
        return None


def _unread(resource: Resource[ObjectT], error: RefusedError) -> Finding:
    namespaced = str(resource) != "customresourcedefinitions.apiextensions.k8s.io"
    return Finding(
        Level.WARNING if namespaced else Level.INFO,
        "not-allowed",
        str(resource),
        f"cannot be listed: {error}",
        "let this user list them; nothing is said of them here" if namespaced else "",
    )
