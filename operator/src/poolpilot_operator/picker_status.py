"""What is said of a Picker in its status: pure, of what came of its objects and pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_operator import disputes
from poolpilot_operator.conditions import Condition, holds, merged
from poolpilot_operator.models import Owned
from poolpilot_operator.pool_reconciler import describe
from poolpilot_operator.resources.naming import selector_text
from poolpilot_operator.world import Counsel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from poolpilot_kube.objects import Key
    from poolpilot_operator.models import Picker
    from poolpilot_operator.world import PoolState

_TELLING: Final = (("ReplicaFailure", "True"), ("Progressing", "False"), ("Available", "False"))
"""Conditions of a Deployment and their status where something is wrong, by how much they say."""
MOST_NAMED: Final = 64
"""Pools in `unhealthyPools`: a status must not grow with the cluster."""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a Picker, or with what was made for it."""

    reason: str
    message: str


class Outcome(msgspec.Struct, frozen=True):
    """Of one reconciliation."""

    refused: Problem | None = None
    """The Picker cannot be taken as it is."""
    missing: tuple[Problem, ...] = ()
    """What could not be made."""
    deployments: tuple[Owned, ...] = ()
    counsel: Counsel | None = None
    """None where there is no Prometheus to ask."""
    refusals: tuple[Problem, ...] = ()
    """Of the configuration, by picker pods."""
    disputes: tuple[str, ...] = ()
    """What others set otherwise again and again."""


def status(picker: Picker, outcome: Outcome, states: Mapping[Key, PoolState], now: datetime) -> dict[str, Any]:
    """The whole status."""
    mine = sorted((key, state) for key, state in states.items() if state.picker == picker.key)
    lost = sorted((key, state) for key, state in states.items() if picker.key in state.losers)
    unhealthy = [describe(state, key) for key, state in mine if state.reason]
    unhealthy += [
        {
            "namespace": key[0],
            "name": key[1],
            "reason": "ServedByAnother",
            "message": f"Picker {'/'.join(state.picker)} serves it" if state.picker else "",
        }
        for key, state in lost
    ]
    replicas = _sum(outcome.deployments, "replicas")
    ready = _sum(outcome.deployments, "readyReplicas")
    before = picker.status or {}
    return {
        "observedGeneration": picker.metadata.generation,
        "conditions": merged(
            before.get("conditions") or [],
            _conditions(picker, outcome, replicas, ready),
            picker.metadata.generation,
            now,
        ),
        "replicas": replicas,
        "readyReplicas": ready,
        "selector": selector_text(picker.key),
        "pools": {"served": len(mine), "healthy": sum(1 for _, state in mine if not state.reason)},
        "unhealthyPools": unhealthy[:MOST_NAMED],
        "advice": list(outcome.counsel.lines[:MOST_NAMED]) if outcome.counsel is not None else [],
    }


def _conditions(picker: Picker, outcome: Outcome, replicas: int, ready: int) -> list[Condition]:
    if outcome.refused is not None:
        accepted = holds("Accepted", False, outcome.refused.reason, outcome.refused.message)
    else:
        accepted = holds("Accepted", True, "Accepted", "the Picker is as it should be")
    if outcome.missing:
        first = outcome.missing[0]
        programmed = holds("Programmed", False, first.reason, "; ".join(one.message for one in outcome.missing))
    elif outcome.refused is not None:
        programmed = holds("Programmed", False, "NotAccepted", outcome.refused.message)
    else:
        programmed = holds("Programmed", True, "Programmed", "everything that it needs is there")
    return [
        accepted,
        programmed,
        _ready(picker, accepted, programmed, outcome.deployments, ready),
        _shared(replicas),
        _taken(outcome.refusals),
        *([outcome.counsel.condition] if outcome.counsel is not None else []),
        *_contested(outcome.disputes),
    ]


def _ready(
    picker: Picker, accepted: Condition, programmed: Condition, deployments: Sequence[Owned], ready: int
) -> Condition:
    for one in (accepted, programmed):
        if one.status != "True":
            return holds("Ready", False, one.reason, one.message)
    if not deployments:
        if picker.spec.placement == "PerNamespace":
            return holds("Ready", True, "NoPools", "no pool is served, so there are no pods")
        return holds("Ready", False, "NoPods", "there is no Deployment yet")
    if picker.spec.autoscaling is None and picker.spec.replicas == 0:
        return holds("Ready", False, "ScaledToZero", "spec.replicas is 0: no pool is served")
    empty = ["/".join(one.key) for one in deployments if not (one.status or {}).get("readyReplicas")]
    if empty:
        return holds(
            "Ready", False, "NoPodReady", f"no pod of Deployment {', '.join(empty)} is ready: {_why(deployments)}"
        )
    behind = [one for one in deployments if (one.status or {}).get("unavailableReplicas")]
    text = f"{ready} picker pods are ready" + (", others are not yet" if behind else "")
    return holds("Ready", True, "Ready", text)


def _why(deployments: Iterable[Owned]) -> str:
    """What keeps pods from being made says most (quota, admission); that none is available is said already."""
    told = [
        condition
        for one in deployments
        for condition in (one.status or {}).get("conditions") or ()
        if (condition.get("type"), condition.get("status")) in _TELLING
    ]
    told.sort(key=lambda one: _TELLING.index((one.get("type"), one.get("status"))))
    return next((str(one["message"]) for one in told if one.get("message")), "kubectl describe says more")


def _contested(told: Sequence[str]) -> list[Condition]:
    """There only while it is True, which is the trouble."""
    return [Condition(disputes.CONDITION, "True", disputes.REASON, "; ".join(told))] if told else []


def _taken(refusals: Sequence[Problem]) -> Condition:
    if not refusals:
        return holds("ConfigurationTaken", True, "Taken", "no picker pod has refused the newest configuration")
    return holds("ConfigurationTaken", False, refusals[0].reason, refusals[0].message)


def _shared(replicas: int) -> Condition:
    if replicas <= 1:
        return holds("StateShared", True, "OnePicker", "")
    text = (
        f"{replicas} picker pods do not know of each other's requests: each places as if it were alone, and caps and "
        "budgets are divided by the ready ones"
    )
    return holds("StateShared", False, "SeveralPickers", text)


def _sum(deployments: Iterable[Owned], field: str) -> int:
    return sum(int((one.status or {}).get(field) or 0) for one in deployments)
