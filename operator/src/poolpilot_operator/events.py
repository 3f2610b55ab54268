"""Events that `kubectl describe` shows: each said once, not at every look.

An Event's name is made of what it says, so that another operator, or this one after a restart, does not say it again
for as long as the API server keeps it (an hour by default).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from poolpilot_kube.errors import KubeError, RefusedError
from poolpilot_operator.conditions import timestamp
from poolpilot_operator.difference import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.api import KubeApi
    from poolpilot_kube.objects import Key, Object

log: Final = logging.getLogger(__name__)

_COMPONENT: Final = "poolpilot-operator"
_MOST_REMEMBERED: Final = 8192
_MOST_MESSAGE: Final = 1024


class Events:
    """Posts and counts."""

    def __init__(self, api: KubeApi, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.posted = 0
        self._api = api
        self._now = now
        self._said: OrderedDict[tuple[Key, str], None] = OrderedDict()

    async def say(
        self, one: Object, api_version: str, kind: str, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Never fails: an Event that cannot be posted is logged."""
        meta = one.metadata
        name = f"{meta.name[:200].rstrip('-.')}.{digest([meta.uid, reason, message])}"
        said = (one.key, name)
        if said in self._said:
            return
        self._said[said] = None
        if len(self._said) > _MOST_REMEMBERED:
            self._said.popitem(last=False)
        now = timestamp(self._now())
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": api_version,
                "kind": kind,
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:_MOST_MESSAGE],
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        log.log(logging.WARNING if warning else logging.INFO, "%s %s/%s: %s", kind, *one.key, message)
        try:
            await self._api.send("POST", f"/api/v1/namespaces/{meta.namespace}/events", body=body)
            self.posted += 1
        except KubeError as error:
            if not (isinstance(error, RefusedError) and error.status == 409):
                self._said.pop(said, None)
                log.info("an Event could not be posted: %s", error)

    def forget(self, one: Object) -> None:
        """The object is well: the same trouble would be news."""
        for said in [said for said in self._said if said[0] == one.key]:
            del self._said[said]
