"""What the operator loaded where, kept in a ConfigMap of the pool's namespace: only that is ever unloaded.

Written before an adapter is loaded and after it is unloaded, so that whatever happens between, nothing of ours is
forgotten. It goes with the InferencePool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_kube.names import MANAGED_BY, MANAGED_BY_LABEL, POOL_ANNOTATION
from poolpilot_operator.lora.placement import Place
from poolpilot_operator.resources.naming import shortened
from poolpilot_operator.resources.pool import owner

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from poolpilot_kube.objects import InferencePool, Key
    from poolpilot_operator.models import Owned

_KEY: Final = "loaded.json"

Loaded = dict[str, set[Place]]
"""Adapter → where."""


def record_name(pool: str) -> str:
    """Of the ConfigMap. With a dot, which no object of a Picker has in its name: one may be called `adapters-llama`."""
    return shortened(f"poolpilot-adapters.{pool}", 253)


def record_key(pool: Key) -> Key:
    """Of the ConfigMap."""
    return pool[0], record_name(pool[1])


def read(found: Owned | None) -> Loaded:
    """Nothing where there is no record; what cannot be read was not written by us."""
    text = (found.data or {}).get(_KEY, "{}") if found is not None else "{}"
    try:
        listed = msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError:
        return {}
    loaded: Loaded = {}
    for name, places in listed.items():
        parts = [place.rpartition(":") for place in places]
        loaded[name] = {Place(uid, int(port)) for uid, _, port in parts if port.isdecimal()}
    return loaded


def manifest(pool: InferencePool, loaded: Mapping[str, Collection[Place]]) -> dict[str, Any]:
    """The ConfigMap."""
    listed = {
        name: [f"{place.uid}:{place.port}" for place in sorted(places)]
        for name, places in sorted(loaded.items())
        if places
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": record_name(pool.metadata.name),
            "namespace": pool.metadata.namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY, "app.kubernetes.io/component": "adapters"},
            "annotations": {POOL_ANNOTATION: pool.metadata.name},
            "ownerReferences": [owner(pool)],
        },
        "data": {_KEY: msgspec.json.encode(listed).decode()},
    }
