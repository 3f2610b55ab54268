"""Pods as a picker keeps them: of thousands of pods in a cluster most are in no pool, and all of them are in memory."""

from __future__ import annotations

from sys import intern
from typing import Final

from msgspec.structs import force_setattr

from poolpilot_kube.names import ACTIVE_PORTS
from poolpilot_kube.objects import PODS, Pod, PodCondition, Resource

_READY: Final = {status: (PodCondition("Ready", status),) for status in ("True", "False", "Unknown")}


class SlimPod(Pod, frozen=True):
    """Without the annotations and conditions that nobody here reads; what repeats from pod to pod is there once."""

    def __post_init__(self) -> None:
        meta, status = self.metadata, self.status
        kept = {name: meta.annotations[name] for name in ACTIVE_PORTS if name in meta.annotations}
        force_setattr(meta, "annotations", kept or _NOTHING)
        force_setattr(meta, "labels", {intern(key): intern(value) for key, value in meta.labels.items()} or _NOTHING)
        force_setattr(meta, "namespace", intern(meta.namespace))
        ready = next((one.status for one in status.conditions if one.type == "Ready"), "")
        force_setattr(status, "conditions", _READY.get(ready, ()))
        force_setattr(status, "phase", intern(status.phase))


_NOTHING: Final[dict[str, str]] = {}
SLIM_PODS: Final[Resource[Pod]] = Resource(PODS.group, PODS.version, PODS.plural, SlimPod)
