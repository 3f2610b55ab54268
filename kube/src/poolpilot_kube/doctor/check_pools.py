"""Does every InferencePool have pods that can be served, and does it ask for a Picker that is there?"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from poolpilot_kube.doctor.findings import Finding, Level
from poolpilot_kube.names import ACTIVE_PORTS, PICKER_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.models import ModelPod, Picker, Pool
    from poolpilot_kube.doctor.reading import Cluster
    from poolpilot_kube.objects import Key

DEFAULT_PICKER: Final = "default"
"""Name of the Picker that the chart brings, unless it is told otherwise."""


def check_pools(cluster: Cluster) -> Iterator[Finding]:
    """Labels, pickers and pods of each pool."""
    for pool in cluster.pools:
        yield from _asks(pool, cluster)
        yield from _pods(pool, cluster)
    yield from _shared_names(cluster)
    yield from _shared_pods(cluster)


def about(pool: Pool) -> str:
    """How findings name it."""
    return f"InferencePool {pool.metadata.namespace}/{pool.metadata.name}"


def picker_of(pool: Pool, cluster: Cluster) -> Picker | None:
    """The Picker that it asks for by its label, or that takes all pools of its namespace."""
    name, namespace = pool.metadata.labels.get(PICKER_LABEL), pool.metadata.namespace
    if name is not None:
        # A label without a value asks for the Picker that a release brings.
        name = name or DEFAULT_PICKER
        named = [one for one in cluster.pickers if one.metadata.name == name]
        # One of the pool's own namespace, else one that serves more than its own: the operator's.
        named.sort(key=lambda one: one.metadata.namespace != namespace)
        return next((one for one in named if _may_serve(one, namespace)), None)
    everything = (one for one in cluster.pickers if one.spec.pools.select == "All")
    return next((one for one in everything if namespace in one.spec.pools.namespaces), None)


def members(pool: Pool, cluster: Cluster) -> list[ModelPod]:
    """Pods that its selector chooses and that are not going."""
    wanted = pool.spec.selector.match_labels.items()
    return [
        pod
        for pod in cluster.pods.get(pool.metadata.namespace, ())
        if pod.metadata.deletion_timestamp is None and wanted <= pod.metadata.labels.items()
    ]


def _may_serve(picker: Picker, namespace: str) -> bool:
    allowed = picker.spec.pools.namespaces
    return picker.metadata.namespace == namespace or not allowed or namespace in allowed


def _asks(pool: Pool, cluster: Cluster) -> Iterator[Finding]:
    name = pool.metadata.labels.get(PICKER_LABEL)
    if not cluster.knows("pickers.poolpilot.dev"):
        return
    if picker_of(pool, cluster) is None:
        there = ", ".join(f"{one.metadata.name} (in {one.metadata.namespace})" for one in cluster.pickers)
        if name is None:
            yield Finding(
                Level.INFO,
                "pool-not-asking",
                about(pool),
                f"is not served by poolpilot: it has no label {PICKER_LABEL}",
                f"if it should be: kubectl label inferencepool {pool.metadata.name} -n {pool.metadata.namespace} "
                f"{PICKER_LABEL}={cluster.pickers[0].metadata.name if cluster.pickers else 'default'}",
            )
        else:
            where = f"; looked in {', '.join(cluster.namespaces)} only" if cluster.namespaces else ""
            yield Finding(
                Level.WARNING if cluster.namespaces else Level.ERROR,
                "picker-missing",
                about(pool),
                f"asks for the Picker {name!r} ({PICKER_LABEL}), and none of that name may serve it{where}",
                f"name one of these in the label: {there}" if there else f"make a Picker called {name}",
            )
        return
    yield from _reference(pool)


def _reference(pool: Pool) -> Iterator[Finding]:
    reference = pool.spec.endpoint_picker_ref
    if reference is None:
        yield Finding(
            Level.ERROR,
            "pool-without-picker-ref",
            about(pool),
            "has no spec.endpointPickerRef, so gateways do not know whom to ask, and no Service is made",
            f"set spec.endpointPickerRef: {{name: {pool.metadata.name}-picker, port: {{number: 9002}}}}",
        )
    elif reference.kind not in {"", "Service"} or reference.group:
        yield Finding(
            Level.ERROR,
            "picker-ref-kind",
            about(pool),
            f"spec.endpointPickerRef is a {reference.group or 'core'}/{reference.kind}; poolpilot makes Services only",
            "leave its group and kind out",
        )


def _pods(pool: Pool, cluster: Cluster) -> Iterator[Finding]:
    if not cluster.knows("pods"):
        return
    pods = members(pool, cluster)
    if not pods:
        yield Finding(
            Level.WARNING,
            "pool-without-pods",
            about(pool),
            f"its selector {pool.spec.selector} chooses no pod of its namespace",
            "compare it with: kubectl get pods --show-labels",
        )
        return
    if not any(pod.ready for pod in pods):
        yield Finding(
            Level.ERROR,
            "no-ready-pods",
            about(pool),
            f"none of its {len(pods)} pods is ready, for example {pods[0].metadata.name}",
            f"kubectl describe pod {pods[0].metadata.name} -n {pool.metadata.namespace}",
        )
    yield from _ports(pool, pods)


def _ports(pool: Pool, pods: list[ModelPod]) -> Iterator[Finding]:
    wanted = {port.number for port in pool.spec.target_ports}
    for pod in pods:
        declared = pod.spec.ports
        if declared and not wanted & declared:
            yield Finding(
                Level.WARNING,
                "target-port",
                about(pool),
                f"spec.targetPorts are {_numbers(wanted)}; pod {pod.metadata.name} declares {_numbers(declared)}",
                "set spec.targetPorts to the port of the model server",
            )
            return
    for pod in pods:
        given = next((pod.metadata.annotations[key] for key in ACTIVE_PORTS if key in pod.metadata.annotations), None)
        if given is not None and not wanted & {int(part) for part in given.split(",") if part.strip().isdecimal()}:
            yield Finding(
                Level.WARNING,
                "active-ports",
                f"Pod {pod.metadata.namespace}/{pod.metadata.name}",
                f"its annotation of active ports is {given!r}, none of {_numbers(wanted)}: it gets no requests",
                "name target ports of the pool, separated by commas, or take the annotation away",
            )


def _shared_names(cluster: Cluster) -> Iterator[Finding]:
    by_service: dict[Key, list[Pool]] = defaultdict(list)
    for pool in cluster.pools:
        if pool.spec.endpoint_picker_ref is not None:
            by_service[pool.metadata.namespace, pool.spec.endpoint_picker_ref.name].append(pool)
    for (_, service), pools in by_service.items():
        if len(pools) > 1 and any(picker_of(pool, cluster) is not None for pool in pools):
            names = ", ".join(pool.metadata.name for pool in pools)
            yield Finding(
                Level.ERROR,
                "shared-picker-service",
                about(pools[0]),
                f"the pools {names} share the picker Service {service}; every pool needs one of its own",
                "give each pool an endpointPickerRef.name of its own",
            )


def _shared_pods(cluster: Cluster) -> Iterator[Finding]:
    pools: dict[Key, list[Pool]] = defaultdict(list)
    for pool in cluster.pools:
        for member in members(pool, cluster):
            pools[member.key].append(pool)
    told: set[tuple[str, ...]] = set()
    for (_, pod), owners in pools.items():
        names = tuple(pool.metadata.name for pool in owners)
        if len(owners) > 1 and names not in told:
            told.add(names)
            yield Finding(
                Level.WARNING,
                "shared-pods",
                about(owners[0]),
                f"the pools {', '.join(names)} share pods, for example {pod}: each is blind to the other's requests",
                "narrow the selectors, unless the pools have different target ports",
            )


def _numbers(ports: set[int]) -> str:
    return ", ".join(map(str, sorted(ports)))
