"""What is said of a LoraAdapter in its status: pure, of what came of each endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_operator.conditions import Condition, holds, merged

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from poolpilot_operator.models import LoraAdapter

MOST_ENDPOINTS: Final = 256
_ORDER: Final = {"Failed": 0, "Pending": 1, "Unloading": 2, "Loaded": 3}


class EndpointState(msgspec.Struct, frozen=True):
    """How far an endpoint is."""

    pod: str
    port: int
    state: str
    """Pending, Loaded, Failed or Unloading."""
    message: str = ""
    off: bool = False
    """The engine does not load adapters while it runs."""


def status(
    adapter: LoraAdapter, wanted: int, endpoints: Iterable[EndpointState], now: datetime, short: str = ""
) -> dict[str, Any]:
    """The whole status; `short` says why it is on fewer endpoints than it asks for."""
    found = sorted(endpoints, key=lambda one: (_ORDER[one.state], one.pod, one.port))
    loaded = sum(1 for one in found if one.state == "Loaded")
    conditions = [
        holds("Accepted", True, "Accepted", f"placed in InferencePool {adapter.spec.pool_ref.name}"),
        _ready(wanted, loaded, found, short),
        _supported(found),
    ]
    return _whole(adapter, conditions, now, wanted, loaded, found)


def refused(adapter: LoraAdapter, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """Of an adapter that cannot be placed at all."""
    conditions = [holds("Accepted", False, reason, message), holds("Ready", False, reason, message)]
    return _whole(adapter, conditions, now, 0, 0, [])


def _ready(wanted: int, loaded: int, found: list[EndpointState], short: str) -> Condition:
    failed = [one for one in found if one.state == "Failed"]
    if failed:
        text = f"{len(failed)} of {wanted} endpoints failed; {failed[0].pod}:{failed[0].port}: {failed[0].message}"
        return holds("Ready", False, "LoadFailed", text)
    if short:
        return holds("Ready", False, "NoRoom", short)
    if wanted == 0:
        return holds("Ready", False, "NoEndpoints", "the pool has no endpoint that could take it")
    if loaded < wanted:
        waiting = next((one for one in found if one.state == "Pending" and one.message), None)
        why = f"; {waiting.pod}:{waiting.port}: {waiting.message}" if waiting is not None else ""
        return holds("Ready", False, "Loading", f"loaded on {loaded} of {wanted} endpoints{why}")
    return holds("Ready", True, "Loaded", f"loaded on {loaded} endpoints")


def _supported(found: list[EndpointState]) -> Condition:
    off = [one for one in found if one.off]
    if off:
        text = f"{len(off)} endpoints do not load adapters while they run; {off[0].pod}:{off[0].port}: {off[0].message}"
        return holds("LoadingSupported", False, "RuntimeLoadingOff", text)
    if not found:
        return Condition("LoadingSupported", "Unknown", "NoEndpoints", "")
    return holds("LoadingSupported", True, "RuntimeLoadingOn", "")


def _whole(
    adapter: LoraAdapter,
    conditions: list[Condition],
    now: datetime,
    wanted: int,
    loaded: int,
    found: list[EndpointState],
) -> dict[str, Any]:
    generation = adapter.metadata.generation
    return {
        "observedGeneration": generation,
        "conditions": merged((adapter.status or {}).get("conditions") or [], conditions, generation, now),
        "adapterName": adapter.adapter,
        "wanted": wanted,
        "loaded": loaded,
        "endpoints": [
            {
                "pod": one.pod,
                "port": one.port,
                "state": one.state,
                **({"message": one.message[:1024]} if one.message else {}),
            }
            for one in found[:MOST_ENDPOINTS]
        ],
    }
