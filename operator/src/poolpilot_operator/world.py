"""What the reconcilers share: what is known of the cluster, how it is written to, and what came of each pool."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from poolpilot_kube.api import KubeApi
from poolpilot_kube.names import POOL_ANNOTATION
from poolpilot_kube.objects import InferencePool, Key, Object
from poolpilot_operator.conditions import Condition
from poolpilot_operator.events import Events
from poolpilot_operator.health import PickerHealth
from poolpilot_operator.models import LoraAdapter, Owned, Picker, PickerPod
from poolpilot_operator.ownership import Home
from poolpilot_operator.ports import Ports
from poolpilot_operator.resources.naming import made_for
from poolpilot_operator.store import Store
from poolpilot_operator.writer import Writer


class PoolState(msgspec.Struct, frozen=True):
    """What came of a pool at the last look."""

    picker: Key | None
    losers: tuple[Key, ...] = ()
    reason: str = ""
    """Empty: served, and well."""
    message: str = ""


class Counsel(msgspec.Struct, frozen=True):
    """What history says of a Picker's pools."""

    condition: Condition
    lines: tuple[dict[str, str], ...] = ()
    """As `status.advice` has them."""


class World(msgspec.Struct):
    """One for the process."""

    api: KubeApi
    home: Home
    image: str
    """Of pickers whose Picker names none."""
    listen_host: str
    assigned_users: bool
    pools: Store[InferencePool]
    pickers: Store[Picker]
    adapters: Store[LoraAdapter]
    pods: Store[PickerPod]
    """Of pickers."""
    made: dict[str, Store[Owned]]
    """By kind."""
    writer: Writer
    events: Events
    health: PickerHealth
    ports: Ports
    states: dict[Key, PoolState]
    counsel: dict[Key, Counsel]
    """By Picker; empty without a Prometheus."""
    now: Callable[[], datetime]


POOL: Final = "pool"
PICKER: Final = "picker"


def index(one: Object) -> list[Any]:
    """Under which pool and which Picker an object of ours is filed."""
    found: list[Any] = []
    picker, pool = made_for(one), one.metadata.annotations.get(POOL_ANNOTATION)
    if picker is not None:
        found.append((PICKER, *picker))
    if pool is not None:
        found.append((POOL, one.metadata.namespace, pool))
    return found


def pool_of(one: Object) -> Key | None:
    """The pool that an object of ours was made for."""
    name = one.metadata.annotations.get(POOL_ANNOTATION)
    return (one.metadata.namespace, name) if name is not None else None


def target_port(service: Owned) -> int | None:
    """The port in the record of a pool's Service; None if it is none."""
    ports = (service.spec or {}).get("ports") or [{}]
    port = ports[0].get("targetPort")
    return port if isinstance(port, int) else None
