"""Names and labels of what the operator makes. The same input gives the same name, always."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from poolpilot_kube.names import MANAGED_BY, MANAGED_BY_LABEL, OUR_GROUP, PICKER_LABEL, PICKER_NAMESPACE_LABEL

if TYPE_CHECKING:
    from poolpilot_kube.objects import Key, Object
    from poolpilot_operator.models import Picker

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MADE_FOR: Final = "poolpilot.dev/made-for"
"""Annotation of what carries no label of its Picker: NAMESPACE/NAME of the Picker."""
_MOST_NAME: Final = 52
"""Names of pods add 11 characters to a Deployment's, and a label's value ends at 63."""


def shortened(name: str, most: int = _MOST_NAME) -> str:
    """The name, or as much as fits with a digest of all of it."""
    if len(name) <= most:
        return name
    return f"{name[: most - 9].rstrip('-.')}-{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def labels(picker: Key, component: str) -> dict[str, str]:
    """On everything that is made for a Picker."""
    return {
        MANAGED_BY_LABEL: MANAGED_BY,
        "app.kubernetes.io/name": "poolpilot-picker",
        COMPONENT_LABEL: component,
        PICKER_LABEL: picker[1],
        PICKER_NAMESPACE_LABEL: picker[0],
    }


def pod_labels(picker: Key) -> dict[str, str]:
    """What selects a Picker's pods in a namespace."""
    return {COMPONENT_LABEL: "picker", PICKER_LABEL: picker[1], PICKER_NAMESPACE_LABEL: picker[0]}


def selector_text(picker: Key) -> str:
    """The same as a label selector."""
    return ",".join(f"{name}={value}" for name, value in sorted(pod_labels(picker).items()))


def made_for(one: Object) -> Key | None:
    """The Picker that an object was made for."""
    found = one.metadata.labels
    if PICKER_LABEL in found and PICKER_NAMESPACE_LABEL in found:
        return found[PICKER_NAMESPACE_LABEL], found[PICKER_LABEL]
    namespace, slash, name = one.metadata.annotations.get(MADE_FOR, "").partition("/")
    return (namespace, name) if slash else None


def base_name(picker: Key, namespace: str) -> str:
    """Name of what is made for a Picker in a namespace. Without dots, which a Service's may not have."""
    name = f"poolpilot-{picker[1]}" if namespace == picker[0] else f"poolpilot-{picker[0]}-{picker[1]}"
    if "." in name:
        return f"{shortened(name.replace('.', '-'), _MOST_NAME - 9)}-{_digest(name)}"
    return shortened(name)


def cluster_name(picker: Key) -> str:
    """Name of what is made for a Picker and has no namespace."""
    return f"poolpilot-picker:{picker[0]}:{picker[1]}"


def owned_by(picker: Picker, namespace: str) -> list[dict[str, Any]]:
    """ownerReferences in the Picker's own namespace: the object goes with it. Elsewhere the API allows none."""
    if namespace != picker.metadata.namespace:
        return []
    return [
        {
            "apiVersion": f"{OUR_GROUP}/v1alpha1",
            "kind": "Picker",
            "name": picker.metadata.name,
            "uid": picker.metadata.uid,
            "controller": True,
        }
    ]


def metadata(
    picker: Picker, namespace: str, name: str, component: str = "picker", *, owned: bool = True
) -> dict[str, Any]:
    """Of an object that is made for a Picker. What outlives the Picker for a while is not `owned` by it."""
    owners = owned_by(picker, namespace) if owned else []
    return {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "labels": labels(picker.key, component),
        **({"ownerReferences": owners} if owners else {}),
    }
