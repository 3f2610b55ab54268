"""Which pools a Picker is to serve, and on which ports: what the Services in the pools' namespaces say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from poolpilot_kube.names import POOL_ANNOTATION, POOL_PORTS
from poolpilot_kube.objects import Key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_kube.objects import Service


class Refused(msgspec.Struct, frozen=True):
    """A Service that makes no pool be served, and why."""

    namespace: str
    pool: str
    """Empty where the Service names none."""
    port: int
    """0 where it is none."""
    reason: str


class Settlement(msgspec.Struct, frozen=True):
    """Who is served where. A pool has one port, and a port one pool."""

    ports: Mapping[Key, int]
    refused: tuple[Refused, ...] = ()


def settle(services: Iterable[Service], serving: Mapping[Key, int]) -> Settlement:
    """Decides between Services. What is `serving` now goes first, then who is older: nobody is moved by a newcomer."""
    ports: dict[Key, int] = {}
    said_by: dict[Key, Service] = {}
    owners: dict[int, Key] = {}
    refused: list[Refused] = []
    claims: list[tuple[bool, str, Key, Key, int, Service]] = []
    for service in services:
        meta = service.metadata
        if meta.deletion_timestamp is not None:
            continue
        pool, port, problem = _read(service)
        if problem:
            refused.append(Refused(meta.namespace, pool, port, f"Service {meta.name} {problem}"))
            continue
        key = (meta.namespace, pool)
        claims.append((serving.get(key) != port, meta.creation_timestamp or "", service.key, key, port, service))
    for _, _, _, key, port, service in sorted(claims, key=lambda claim: claim[:4]):
        owner = owners.setdefault(port, key)
        if ports.get(key, port) != port:
            other = said_by[key].metadata.name
            reason = f"is not heeded: the pool is served on port {ports[key]}, as Service {other} says"
        elif owner != key:
            reason = f"cannot have port {port}: it is that of InferencePool {'/'.join(owner)}"
        else:
            ports[key] = port
            said_by.setdefault(key, service)
            continue
        if owner == key and ports.get(key) != port:
            del owners[port]
        refused.append(Refused(*key, port, f"Service {service.metadata.name} {reason}"))
    return Settlement(ports, tuple(sorted(refused, key=lambda one: (one.namespace, one.pool, one.port, one.reason))))


def _read(service: Service) -> tuple[str, int, str]:
    """(pool, port, what is wrong)."""
    pool = service.metadata.annotations.get(POOL_ANNOTATION, "")
    first = service.spec.ports[0].target_port if service.spec.ports else None
    port = first if isinstance(first, int) else 0
    if not pool:
        return pool, port, f"has no annotation {POOL_ANNOTATION}: it names the InferencePool"
    if port not in POOL_PORTS:
        allowed = f"allowed are {POOL_PORTS.start} to {POOL_PORTS.stop - 1}"
        return pool, port, f"has no port; {allowed}" if first is None else f"has the targetPort {first!r}; {allowed}"
    return pool, port, ""
