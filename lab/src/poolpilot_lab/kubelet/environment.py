"""What a container knows of itself: environment variables, `$(NAME)` in its command, the downward API. Pure."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolpilot_lab.kubelet.objects import ConfigMap, Json, NodePod, Secret

_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_META: Final = re.compile(r"metadata\.(labels|annotations)(?:\['(?P<key>.+)'\])?")
_UNITS: Final = {
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)},
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
}


class MissingError(Exception):
    """Something a container refers to is not there (yet); the message says what."""


class Sources(Protocol):
    """The ConfigMaps and Secrets of the cluster."""

    def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        """None if there is none."""

    def secret(self, namespace: str, name: str) -> Secret | None:
        """None if there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod runs."""

    node: str
    host: str
    """The node's address."""
    ip: str
    """The pod's."""


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the variable's value, or stays if there is none; `$$` is a dollar that begins no reference."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def field_value(pod: NodePod, path: str, place: Place) -> str:
    """A field as the downward API gives it. Raises MissingError for one that it does not have."""
    fixed: dict[str, str] = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": place.node,
        "spec.serviceAccountName": pod.spec.get("serviceAccountName", "default"),
        "status.hostIP": place.host,
        "status.hostIPs": place.host,
        "status.podIP": place.ip,
        "status.podIPs": place.ip,
    }
    if path in fixed:
        return fixed[path]
    match = _META.fullmatch(path)
    if match is None:
        raise MissingError(f"fieldRef {path!r} is no field of the downward API")
    values = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
    if match["key"] is not None:
        return values.get(match["key"], "")
    return "".join(f"{key}={json.dumps(value, ensure_ascii=False)}\n" for key, value in sorted(values.items()))


def resource_value(container: Json, reference: Json, allocatable: Mapping[str, str]) -> str:
    """A request or limit, in whole multiples of the divisor; a limit that is not set is what the node has."""
    which, _, name = reference["resource"].partition(".")
    resources = container.get("resources", {})
    limits = resources.get("limits", {})
    given = limits.get(name) if which == "limits" else resources.get("requests", {}).get(name, limits.get(name))
    fallback = allocatable.get(name, "0") if which == "limits" else "0"
    divisor = quantity(reference.get("divisor") or "1") or 1.0
    amount = quantity(given if given is not None else fallback) / divisor
    return str(int(-(-round(amount, 9) // 1)))


def quantity(text: str | float) -> float:
    """As Kubernetes writes amounts: 500m, 1.5Gi, 1e3."""
    text = str(text)
    for suffix, factor in _UNITS.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def keys_of(found: ConfigMap | Secret) -> dict[str, bytes]:
    """Everything in it, decoded."""
    binary = getattr(found, "binary_data", None)
    if binary is None:
        return {key: base64.b64decode(value) for key, value in found.data.items()}
    return {
        **{key: value.encode() for key, value in found.data.items()},
        **{key: base64.b64decode(value) for key, value in binary.items()},
    }


def environment(
    pod: NodePod,
    container: Json,
    sources: Sources,
    place: Place,
    base: Mapping[str, str],
    allocatable: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Variables of a container: `base`, then `envFrom`, then `env`, in their order. Raises MissingError."""
    variables = dict(base)
    namespace = pod.metadata.namespace
    for one in container.get("envFrom", ()):
        kind, reference = _reference(one, {"configMapRef": "ConfigMap", "secretRef": "Secret"})
        found = found_keys(sources, namespace, kind, reference["name"], optional=reference.get("optional", False))
        variables |= {f"{one.get('prefix', '')}{key}": value.decode() for key, value in (found or {}).items()}
    for one in container.get("env", ()):
        value = _value(pod, container, one, sources, place, variables, allocatable or {})
        if value is not None:
            variables[one["name"]] = value
    return variables


def _value(
    pod: NodePod,
    container: Json,
    variable: Json,
    sources: Sources,
    place: Place,
    known: Mapping[str, str],
    allocatable: Mapping[str, str],
) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return expanded(variable.get("value", ""), known)
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"], place)
    if "resourceFieldRef" in source:
        return resource_value(container, source["resourceFieldRef"], allocatable)
    kind, reference = _reference(source, {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"})
    optional = reference.get("optional", False)
    found = found_keys(sources, pod.metadata.namespace, kind, reference["name"], optional=optional)
    if found is None:
        return None
    if reference["key"] not in found:
        if optional:
            return None
        raise MissingError(f"{kind} {pod.metadata.namespace}/{reference['name']} has no key {reference['key']!r}")
    return found[reference["key"]].decode()


def _reference(source: Json, kinds: Mapping[str, str]) -> tuple[str, Json]:
    for name, kind in kinds.items():
        if name in source:
            return kind, source[name]
    raise MissingError(f"{', '.join(sorted(source))}: this node knows {', '.join(sorted(kinds))} only")


def found_keys(
    sources: Sources, namespace: str, kind: str, name: str, *, optional: bool = False
) -> dict[str, bytes] | None:
    """What is in a ConfigMap or a Secret; None if it is not there and need not be, else MissingError."""
    find: Callable[[str, str], Any] = sources.config_map if kind == "ConfigMap" else sources.secret
    found = find(namespace, name)
    if found is not None:
        return keys_of(found)
    if optional:
        return None
    raise MissingError(f"{kind} {namespace}/{name} is not there")


def port_number(container: Json, port: int | str) -> int:
    """Of a port by number or by the name that the container gives it. Raises MissingError."""
    if isinstance(port, int):
        return port
    ports: Sequence[Json] = container.get("ports", ())
    for one in ports:
        if one.get("name") == port:
            return int(one["containerPort"])
    if port.isdecimal():
        return int(port)
    raise MissingError(f"container {container['name']!r} has no port named {port!r}")
