"""Events of a pod: what `kubectl describe` says of what happened to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

import aiohttp

from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.kubelet.status import timestamp

if TYPE_CHECKING:
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.kubelet.objects import Json, PodMeta

log: Final = logging.getLogger(__name__)

LOST: Final = (OSError, aiohttp.ClientError)
"""The API server does not answer."""
_MOST_CHARACTERS: Final = 1000


class Events:
    """Of one pod. Nobody waits for them, and one that cannot be written is lost."""

    def __init__(self, api: Api, pod: PodMeta, node: str) -> None:
        self._api = api
        self._pod = pod
        self._node = node
        self._under_way: set[asyncio.Task[None]] = set()

    def tell(self, reason: str, message: str) -> None:
        """A warning, unless the reason is one of a kubelet's everyday work."""
        log.info("%s/%s: %s: %s", self._pod.namespace, self._pod.name, reason, message)
        task = asyncio.create_task(self._write(self._event(reason, message)))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _write(self, event: Json) -> None:
        with contextlib.suppress(ApiError, *LOST):
            await self._api.create(event)

    def _event(self, reason: str, message: str) -> Json:
        pod, now = self._pod, timestamp()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{pod.name}.{time.time_ns():x}", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": "Normal" if reason == "Killing" else "Warning",
            "reason": reason,
            "message": message[:_MOST_CHARACTERS],
            "source": {"component": "kubelet", "host": self._node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
