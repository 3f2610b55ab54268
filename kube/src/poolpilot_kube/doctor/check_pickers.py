"""Do Pickers and LoraAdapters say that all is well, and does anybody act on them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_kube.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_kube.doctor.models import Condition, Picker
    from poolpilot_kube.doctor.reading import Cluster

_ADVICE: Final = {"StateShared", "LoadingSupported", "MetricsHistoryAvailable"}
"""Conditions that are False where all is as it should be."""
_TROUBLE: Final = {
    "CRDOutdated": "apply the definitions of the operator's version: the chart poolpilot-crds",
    "Contested": "let one of the two leave the field alone",
}
"""Conditions of which True is the trouble, and what to do."""
_MOST: Final = 5


def check_pickers(cluster: Cluster) -> Iterator[Finding]:
    """Their status."""
    for picker in cluster.pickers:
        yield from _acted_on(picker)
        yield from _pods(picker)
        yield from _conditions(_named(picker), picker.status.conditions)
        for pool in picker.status.unhealthy_pools[:_MOST]:
            yield Finding(
                Level.WARNING,
                "unhealthy-pool",
                f"InferencePool {pool.namespace}/{pool.name}",
                f"{_named(picker)} says {pool.reason}: {pool.message or 'no more'}",
                "",
            )
    if not cluster.pickers and cluster.knows("pickers.poolpilot.dev") and cluster.serves("pickers.poolpilot.dev"):
        where = f" in {', '.join(cluster.namespaces)}" if cluster.namespaces else ""
        yield Finding(
            Level.INFO if cluster.namespaces else Level.WARNING,
            "no-picker",
            "Picker",
            f"there is none{where}, so no pool is served",
            "install the chart poolpilot, which brings one called default",
        )
    pools = {pool.key for pool in cluster.pools}
    for adapter in cluster.adapters:
        name = f"LoraAdapter {adapter.metadata.namespace}/{adapter.metadata.name}"
        if (adapter.metadata.namespace, adapter.spec.pool_ref.name) not in pools:
            yield Finding(
                Level.ERROR,
                "adapter-without-pool",
                name,
                f"its pool {adapter.spec.pool_ref.name} is not in this namespace",
                "make the pool, or the adapter anew with another spec.poolRef: it cannot be changed",
            )
        yield from _conditions(name, adapter.status.conditions)


def _named(picker: Picker) -> str:
    return f"Picker {picker.metadata.namespace}/{picker.metadata.name}"


def _acted_on(picker: Picker) -> Iterator[Finding]:
    status, change = picker.status, "see whether the operator runs and may act: kubectl get pods, kubectl logs"
    if not status.conditions:
        yield Finding(Level.ERROR, "operator-silent", _named(picker), "no operator has said anything of it", change)
    elif status.observed_generation < picker.metadata.generation:
        yield Finding(
            Level.ERROR,
            "operator-behind",
            _named(picker),
            f"its spec is of generation {picker.metadata.generation}, "
            f"and the operator acted on {status.observed_generation} last",
            change,
        )


def _pods(picker: Picker) -> Iterator[Finding]:
    status = picker.status
    if not status.conditions or picker.spec.replicas == 0:
        return
    if status.ready_replicas == 0:
        yield Finding(
            Level.ERROR,
            "no-picker-pods",
            _named(picker),
            f"none of its {status.replicas} picker pods is ready",
            f"kubectl get pods -n {picker.metadata.namespace} -l poolpilot.dev/picker={picker.metadata.name}",
        )
    elif status.ready_replicas < status.replicas:
        yield Finding(
            Level.WARNING,
            "picker-pods-missing",
            _named(picker),
            f"{status.ready_replicas} of its {status.replicas} picker pods are ready",
            f"kubectl get pods -n {picker.metadata.namespace} -l poolpilot.dev/picker={picker.metadata.name}",
        )


def _conditions(name: str, conditions: tuple[Condition, ...]) -> Iterator[Finding]:
    for condition in conditions:
        if condition.type in _TROUBLE and condition.status == "True":
            yield Finding(
                Level.WARNING,
                "condition",
                name,
                f"is {condition.type}: {condition.reason}: {condition.message}",
                _TROUBLE[condition.type],
            )
        if condition.status != "False" or condition.type in _TROUBLE:
            continue
        advice = condition.type in _ADVICE
        yield Finding(
            Level.INFO if advice else Level.ERROR,
            "condition",
            name,
            f"is not {condition.type}: {condition.reason}: {condition.message}",
            "",
        )
