"""A pod's status as the API has it, from what is known of its containers. Pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolpilot_lab.kubelet.environment import Place
    from poolpilot_lab.kubelet.objects import Json

CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
"""Those that a kubelet writes; others belong to others."""


def timestamp(moment: datetime.datetime | None = None) -> str:
    """RFC 3339 in whole seconds, now unless told otherwise."""
    moment = moment or datetime.datetime.now(datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class ContainerStatus:
    """One container; `state` and `last_state` have one key: waiting, running or terminated."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Json = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    def wait(self, reason: str, message: str = "") -> None:
        """It does not run yet, or not now."""
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self.ready = self.started = False

    def run(self, container_id: str, *, started: bool) -> None:
        """It runs. Without a startup probe it is `started` at once."""
        self.state = {"running": {"startedAt": timestamp()}}
        self.container_id, self.started = container_id, started

    def end(self, code: int) -> None:
        """It ended."""
        began = self.state.get("running", {}).get("startedAt") or timestamp()
        reason = "Completed" if code == 0 else "Error"
        ended = {
            "exitCode": code,
            "reason": reason,
            "startedAt": began,
            "finishedAt": timestamp(),
            "containerID": self.container_id,
        }
        self.state = {"terminated": ended}
        self.ready = self.started = False

    def again(self, reason: str, message: str) -> None:
        """It ended and will be started again."""
        self.last_state = self.state
        self.restarts += 1
        self.wait(reason, message)

    def json(self) -> Json:
        """As in `containerStatuses`."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "containerID": self.container_id,
            "restartCount": self.restarts,
            "ready": self.ready,
            "started": self.started,
            "state": self.state,
            "lastState": self.last_state,
        }


@dataclass(slots=True)
class PodState:
    """What a node knows of a pod."""

    containers: list[ContainerStatus]
    init: list[ContainerStatus]
    sidecars: list[ContainerStatus] = field(default_factory=list)
    """Those of `init` that run on."""
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    initialized: bool = False
    sandboxed: bool = False
    started_at: str = field(default_factory=timestamp)
    _since: dict[str, tuple[bool, str]] = field(default_factory=dict)
    """Per condition: its value, and since when it has it."""

    @property
    def ready(self) -> bool:
        """All containers are, also those beside them."""
        return self.phase == "Running" and all(one.ready for one in (*self.containers, *self.sidecars))

    def json(self, place: Place, before: Mapping[str, object]) -> Json:
        """`before`: the status that the pod has, for the conditions of others."""
        values = {
            "PodReadyToStartContainers": self.sandboxed,
            "Initialized": self.initialized,
            "Ready": self.ready,
            "ContainersReady": self.ready,
            "PodScheduled": True,
        }
        known: Sequence[Json] = before.get("conditions") or ()  # type: ignore[assignment]
        others = [one for one in known if one["type"] not in CONDITIONS]
        addresses = {"podIP": place.ip, "podIPs": [{"ip": place.ip}]} if self.sandboxed else {}
        return {
            "phase": self.phase,
            "reason": self.reason or None,
            "message": self.message or None,
            "hostIP": place.host,
            "hostIPs": [{"ip": place.host}],
            **addresses,
            "startTime": self.started_at,
            "conditions": [*(self._condition(name, value) for name, value in values.items()), *others],
            "containerStatuses": [one.json() for one in self.containers],
            "initContainerStatuses": [one.json() for one in self.init],
        }

    def _condition(self, name: str, value: bool) -> Json:
        if self._since.get(name, (None,))[0] is not value:
            self._since[name] = value, timestamp()
        return {"type": name, "status": str(value), "lastTransitionTime": self._since[name][1]}
