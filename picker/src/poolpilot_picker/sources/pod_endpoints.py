"""A pod of an InferencePool → its endpoints: each target port that is active is one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_kube.pods import active_ports as active_ports
from poolpilot_kube.pods import engine_label as engine_label
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from poolpilot_kube.objects import Pod


def endpoints_of(pod: Pod, ports: Sequence[int], engines: Collection[str], default_engine: str) -> list[EndpointSpec]:
    """Endpoints of a pod that may get requests; none for any other. `ports` as the pool lists them.

    The identity is (UID of the pod, port): an address that comes back with another pod is another endpoint. The name is
    that of the pod with the port's rank in the pool's list.
    """
    if not pod.ready:
        return []
    meta = pod.metadata
    active = active_ports(meta.annotations)
    return [
        EndpointSpec(
            host=pod.status.pod_ip,
            port=port,
            uid=meta.uid,
            labels=meta.labels,
            engine=engine_of(meta.labels, engines) or default_engine,
            name=f"{meta.name}-rank-{rank}",
        )
        for rank, port in enumerate(ports)
        if active is None or port in active
    ]


def engine_of(labels: Mapping[str, str], engines: Collection[str]) -> str | None:
    """The engine that a pod's labels name, if it is one of `engines`."""
    named = engine_label(labels)
    return named if named in engines else None


def one_per_address(pods: Iterable[tuple[Pod, list[EndpointSpec]]]) -> tuple[list[EndpointSpec], list[str]]:
    """(endpoints, problems). Of pods with one address the youngest has it: others are probably gone."""
    taken: dict[str, EndpointSpec] = {}
    problems: list[str] = []
    for _, specs in sorted(pods, key=lambda one: (one[0].metadata.creation_timestamp or "", one[0].metadata.name)):
        for spec in specs:
            other = taken.get(spec.address)
            if other is not None:
                problems.append(f"{other.name} and {spec.name} are both ready at {spec.address}: the younger counts")
            taken[spec.address] = spec
    return list(taken.values()), problems
