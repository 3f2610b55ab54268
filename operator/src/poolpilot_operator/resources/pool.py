"""What a served pool gets in its own namespace: a Service without a selector, and the EndpointSlice that fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from poolpilot_kube.names import (
    DEFAULT_PICKER_PORT,
    H2C,
    POOL_ANNOTATION,
    POOL_GROUP,
    SERVICE_NAME_LABEL,
    SLICE_MANAGER,
    SLICE_MANAGER_LABEL,
)
from poolpilot_operator.resources.naming import labels, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_kube.objects import EndpointPickerRef, InferencePool, Key
    from poolpilot_operator.models import Owned


class PickerEndpoint(msgspec.Struct, frozen=True, order=True):
    """A picker pod that serves a pool."""

    namespace: str
    pod: str
    uid: str
    addresses: tuple[str, ...]
    """Of one family or of both; a slice has those of its own."""
    node: str = ""
    terminating: bool = False


def reference_problem(ref: EndpointPickerRef | None) -> tuple[str, str] | None:
    """Why a pool cannot get a Service, as (reason, message); None if it can."""
    if ref is None:
        return (
            "EndpointPickerRefMissing",
            "spec.endpointPickerRef is not set: it names the Service under which gateways find the picker of this pool",
        )
    if ref.kind not in {"", "Service"} or ref.group:
        kind = f"{ref.kind}.{ref.group}" if ref.group else ref.kind
        return (
            "EndpointPickerRefUnsupported",
            f"spec.endpointPickerRef is a {kind}; allowed is a Service of the core group",
        )
    return None


def service(pool: InferencePool, picker: Key, port: int) -> dict[str, Any]:
    """`port`: where the Picker's pods listen for this pool."""
    ref = pool.spec.endpoint_picker_ref
    assert ref is not None
    number = ref.port.number if ref.port is not None else DEFAULT_PICKER_PORT
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": ref.name,
            "namespace": pool.metadata.namespace,
            "labels": labels(picker, "pool"),
            "annotations": {POOL_ANNOTATION: pool.metadata.name},
            "ownerReferences": [owner(pool)],
        },
        "spec": {
            "type": "ClusterIP",
            # None: whoever sets one of these would lead the Service elsewhere than to pickers.
            "selector": None,
            "externalName": None,
            "externalIPs": None,
            "ports": [
                {"name": "grpc", "protocol": "TCP", "port": number, "targetPort": port, "appProtocol": H2C},
            ],
        },
    }


def slice_name(service_name: str, address_type: str) -> str:
    """Of the EndpointSlice of a Service; the type of a slice cannot change."""
    return shortened(f"{service_name}-poolpilot{'-v6' if address_type == 'IPv6' else ''}", 253)


def families(made: Owned) -> tuple[str, ...]:
    """IP families of a Service: nothing leads from a Service of one family to endpoints of the other."""
    return tuple((made.spec or {}).get("ipFamilies") or ("IPv4",))


def reached(endpoint: PickerEndpoint, address_type: str) -> str | None:
    """Its address in a slice of this type; None where it has none of that family."""
    return next((one for one in endpoint.addresses if (":" in one) == (address_type == "IPv6")), None)


def endpoint_slice(
    pool: InferencePool, picker: Key, port: int, endpoints: Iterable[PickerEndpoint], address_type: str = "IPv4"
) -> dict[str, Any]:
    """The picker pods that serve the pool, as far as they have an address of the slice's family."""
    ref = pool.spec.endpoint_picker_ref
    assert ref is not None
    found = [(one, reached(one, address_type)) for one in sorted(endpoints)]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(ref.name, address_type),
            "namespace": pool.metadata.namespace,
            "labels": {
                **labels(picker, "pool"),
                SERVICE_NAME_LABEL: ref.name,
                SLICE_MANAGER_LABEL: SLICE_MANAGER,
            },
            "annotations": {POOL_ANNOTATION: pool.metadata.name},
            "ownerReferences": [owner(pool)],
        },
        "addressType": address_type,
        "ports": [{"name": "grpc", "protocol": "TCP", "port": port, "appProtocol": H2C}],
        "endpoints": [_endpoint(one, address) for one, address in found if address is not None],
    }


def owner(pool: InferencePool) -> dict[str, Any]:
    """The object goes when the pool goes."""
    return {
        "apiVersion": f"{POOL_GROUP}/v1",
        "kind": "InferencePool",
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "controller": True,
    }


def owning_pool(one: Owned) -> str | None:
    """The name of the InferencePool that an object goes with."""
    refs = one.metadata.owner_references
    return next((str(ref.get("name", "")) for ref in refs if ref.get("kind") == "InferencePool"), None)


def made_for_pool(one: Owned) -> bool:
    """Whether an object of ours was made for a pool, not for the Picker that it names too."""
    return POOL_ANNOTATION in one.metadata.annotations or owning_pool(one) is not None


def _endpoint(one: PickerEndpoint, address: str) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": {"ready": not one.terminating, "serving": True, "terminating": one.terminating},
        **({"nodeName": one.node} if one.node else {}),
        "targetRef": {"kind": "Pod", "namespace": one.namespace, "name": one.pod, "uid": one.uid},
    }
