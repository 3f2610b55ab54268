"""Who writes: the holder of a Lease. Others are warm and wait.

Not by the `leaderelection` of the package kubernetes: its requests have no time limit, so a leader whose API server
hangs goes on believing that it leads (docs/adr/0008-the-operators-shell.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_kube.errors import KubeError, RefusedError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from poolpilot_kube.api import KubeApi

log: Final = logging.getLogger(__name__)


class LeaseTimes(msgspec.Struct, frozen=True):
    """Seconds."""

    lease_s: float = 15.0
    """So long others wait for a holder that says nothing."""
    deadline_s: float = 10.0
    """A holder that could not renew for so long stops to lead: before others may begin."""
    retry_s: float = 2.0
    call_s: float = 5.0
    """Of one request."""


class Lease:
    """Runs for the Lease `namespace/name` as `identity` while `run` runs."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        identity: str,
        changed: Callable[[bool], None],
        rng: random.Random,
        *,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` hears at once when leading begins and ends; it must not wait."""
        self.leading = False
        self.holder = ""
        """Who holds the Lease, as last read."""
        self.problem = ""
        self.renewed_s: float | None = None
        """When the Lease was last renewed by us, by the clock."""
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._meta = {"name": name, "namespace": namespace}
        self._identity = identity
        self._changed = changed
        self._rng = rng
        self._times = times or LeaseTimes()
        self._clock = clock
        self._seen: tuple[Any, ...] | None = None
        """(resourceVersion, holder) of the Lease, and since when it has been so."""
        self._seen_s = 0.0

    async def run(self) -> None:
        """Until cancelled; gives the Lease back then."""
        times = self._times
        watchdog = asyncio.create_task(self._watch_deadline())
        try:
            while True:
                try:
                    async with asyncio.timeout(times.call_s):
                        await self._try()
                    self.problem = ""
                except (KubeError, TimeoutError, msgspec.MsgspecError) as error:
                    self._failed(error)
                await asyncio.sleep(times.retry_s * (0.8 + 0.4 * self._rng.random()))
        finally:
            watchdog.cancel()
            was = self.leading
            self._lead(False)
            if was:
                await self._release()

    async def _try(self) -> None:
        began = self._clock()
        try:
            lease = msgspec.json.decode(await self._api.get(self._path))
        except RefusedError as error:
            if error.status != 404:
                raise
            body = {**self._head(), "metadata": self._meta, "spec": self._spec(0, None)}
            await self._write("POST", self._collection, body, began)
            return
        spec, version = lease.get("spec") or {}, lease["metadata"]["resourceVersion"]
        self.holder = spec.get("holderIdentity") or ""
        if self._seen != (version, self.holder):
            self._seen, self._seen_s = (version, self.holder), began
        mine = self.holder == self._identity
        lasts_s = float(spec.get("leaseDurationSeconds") or self._times.lease_s)
        if self.holder and not mine and began - self._seen_s < lasts_s:
            self._lead(False)
            return
        transitions = int(spec.get("leaseTransitions") or 0) + (0 if mine else 1)
        acquired = spec.get("acquireTime") if mine else None
        # Labels and annotations are those of who brought the Lease, for example a release.
        kept = {name: value for name, value in lease["metadata"].items() if name != "managedFields"}
        body = {**self._head(), "metadata": {**kept, "resourceVersion": version}}
        body["spec"] = self._spec(transitions, acquired)
        await self._write("PUT", self._path, body, began)

    async def _write(self, method: str, path: str, body: dict[str, Any], began: float) -> None:
        try:
            await self._api.send(method, path, body=body)
        except RefusedError as error:
            if error.status != 409:
                raise
            # Another was faster.
            self._lead(False)
            return
        # From before the request: nobody may count from later than we do.
        self.renewed_s, self.holder = began, self._identity
        self._lead(True)

    async def _watch_deadline(self) -> None:
        """Stops leading in time, whatever a request is waiting for."""
        while True:
            now, renewed = self._clock(), self.renewed_s
            if self.leading and renewed is not None and now - renewed >= self._times.deadline_s:
                log.warning("the Lease could not be renewed for %.0f s: no longer leading", now - renewed)
                self._lead(False)
            await asyncio.sleep(self._times.deadline_s / 20)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(self._times.call_s):
                lease = msgspec.json.decode(await self._api.get(self._path))
                if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    lease["metadata"].pop("managedFields", None)
                    await self._api.send("PUT", self._path, body=lease)
        except (KubeError, TimeoutError, msgspec.MsgspecError) as error:
            log.info("the Lease could not be given back: %s", error)

    def _lead(self, leading: bool) -> None:
        if leading != self.leading:
            self.leading = leading
            log.info("leading" if leading else "not leading")
            self._changed(leading)

    def _failed(self, error: Exception) -> None:
        problem = str(error) or type(error).__name__
        if problem != self.problem:
            log.warning("Lease %s/%s: %s", self._meta["namespace"], self._meta["name"], problem)
        self.problem = problem

    def _head(self) -> dict[str, Any]:
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}

    def _spec(self, transitions: int, acquired: str | None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.lease_s)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
