"""All objects of a resource, kept up to date: a list, then a watch from there, for as long as it runs.

What is promised: `objects` is at any time what the server had at some moment not long ago, whatever happens to
connections. A watch that ends is resumed from the last resourceVersion heard; where that is too old, everything is
listed again, and what vanished meanwhile is reported like any deletion. The list is also repeated now and then, because
a lost event is not noticed by anything else. Why not the official client's informer: docs/adr/0007-watches.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, TypeAlias

import msgspec

from poolpilot_kube.backoff import Backoff
from poolpilot_kube.errors import KubeError, RefusedError
from poolpilot_kube.known import Change as Change
from poolpilot_kube.known import Known, newer
from poolpilot_kube.objects import Key, Object, ObjectMeta, ObjectT, Resource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from poolpilot_kube.api import KubeApi

log: Final = logging.getLogger(__name__)

_SHORT_S: Final = 1.0
"""A watch that ends sooner without a word is a failure, however politely it ended."""


Apply: TypeAlias = Callable[["Sequence[Change[ObjectT]]"], None]
"""Hears of changes, as many at a time as came together, and of every list, also of one that changed nothing. `objects`
is up to date already. Must not raise."""


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    page: int = 250
    """Objects of one answer to a list: how much is decoded at a time."""
    silence_s: float = 80.0
    """A watch from which nothing came for so long is dead. A server that is asked to sends a bookmark every minute."""
    watch_s: float = 270.0
    """About how long a watch is asked to last."""
    relist_s: float = 900.0
    """About how often everything is listed again."""
    first_backoff_s: float = 0.2
    most_backoff_s: float = 30.0


class WatchStatus(msgspec.Struct):
    """For readiness and metrics. Times in seconds of the watcher's clock."""

    synced: bool = False
    """Everything has been listed at least once."""
    heard_s: float | None = None
    """When the server last said anything."""
    failing_since_s: float | None = None
    problem: str = ""
    """What is wrong now; empty while all is well."""
    lists: int = 0
    watches: int = 0
    failures: int = 0
    undecodable: int = 0
    stale: int = 0
    """Events that said nothing new: repeated, or overtaken."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: ObjectMeta


class _Failure(msgspec.Struct):
    code: int = 500
    message: str = ""


class Watcher(Generic[ObjectT]):
    """Follows one resource in one namespace, or in all, while `run` runs."""

    def __init__(
        self,
        api: KubeApi,
        resource: Resource[ObjectT],
        apply: Apply[ObjectT],
        *,
        namespace: str = "",
        name: str = "",
        labels: str = "",
        settings: WatchSettings | None = None,
        failed: Callable[[Exception], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`name` and `labels` (a label selector) narrow what the server sends; `failed` hears of every failure."""
        self.status = WatchStatus()
        self.synced = asyncio.Event()
        self._api = api
        self._resource = resource
        self._apply = apply
        self._path = resource.path(namespace)
        self._query = {
            **({"fieldSelector": f"metadata.name={name}"} if name else {}),
            **({"labelSelector": labels} if labels else {}),
        }
        self._settings = settings or WatchSettings()
        self._failed = failed
        self._now = now
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._decode = msgspec.json.Decoder(resource.model).decode
        self._backoff = Backoff(self._rng, self._settings.first_backoff_s, self._settings.most_backoff_s)
        self._version = ""
        """Where the next watch begins; empty: everything has to be listed."""
        self._known: Known[ObjectT] = Known()
        self._relist_at = 0.0

    @property
    def objects(self) -> dict[Key, ObjectT]:
        """As last heard of, by key; to be read only."""
        return self._known.objects

    async def run(self) -> None:
        """Until cancelled. Whatever the server does is no reason to end."""
        while True:
            try:
                if not self._version or self._now() >= self._relist_at:
                    await self._list()
                await self._watch()
            except KubeError as error:
                # A kind that is gone may come back as another, with none of its objects.
                if isinstance(error, RefusedError) and (error.expired or error.status == 404):
                    self._version = ""
                await self._fail(error)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # Not an answer of an API server, or a broken one: nothing that was said after it is known.
                self._version = ""
                await self._fail(error)

    def wrote(self, answer: bytes) -> None:
        """The server's answer to a write of ours: known at once, not only when the watch tells it."""
        one = self._decoded(msgspec.Raw(answer))
        change = self._known.answered(one) if isinstance(one, Object) else None
        if change is not None:
            self._apply([change])

    def deleted(self, one: Object) -> None:
        """The server says that this very object is gone. If it lingers, the watch tells of it again."""
        change = self._known.ended(one)
        if change is not None:
            self._apply([change])

    # ---- what is asked

    async def _list(self) -> None:
        settings = self._settings
        found: dict[Key, ObjectT] = {}
        undecodable: set[Key] = set()
        query = {**self._query, "limit": str(settings.page)}
        self._known.list_begins()
        while True:
            page = msgspec.json.decode(await self._api.get(self._path, query), type=_Page)
            for item in page.items or ():
                one = self._decoded(item)
                if isinstance(one, Object):
                    found[one.key] = one
                elif one is not None:
                    undecodable.add(one)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        # An object that cannot be read is not one that is gone.
        found.update({key: self.objects[key] for key in undecodable if key in self.objects})
        self._heard()
        self._version = page.metadata.resource_version
        self._relist_at = self._now() + self._spread(settings.relist_s)
        self.status.lists += 1
        self.status.synced = True
        self._apply(self._known.listed(found, self._version))
        self.synced.set()

    async def _watch(self) -> None:
        settings, began, heard = self._settings, self._now(), False
        query = {
            **self._query,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(self._spread(settings.watch_s))),
        }
        self.status.watches += 1
        async with aclosing(self._api.watch(self._path, query, settings.silence_s)) as batches:
            async for lines in batches:
                self._heard()
                if not lines:
                    continue
                heard = True
                self._take(lines)
                # Not already after a list: a server that refuses every watch must not be listed all the time.
                self._backoff.reset()
                if self._now() >= self._relist_at:
                    return
        if heard:
            return
        if self._now() - began < _SHORT_S:
            raise KubeError(f"watch of {self._path}: ended at once")
        self._backoff.reset()

    # ---- what was said

    def _take(self, lines: Sequence[bytes]) -> None:
        """One batch of events; what came before a bad one counts."""
        changes: list[Change[ObjectT]] = []
        try:
            for line in lines:
                if line.strip():
                    change = self._event(msgspec.json.decode(line, type=_Event))
                    if change is not None:
                        changes.append(change)
        finally:
            if changes:
                self._apply(changes)

    def _event(self, event: _Event) -> Change[ObjectT] | None:
        if event.type == "BOOKMARK":
            version = msgspec.json.decode(event.object, type=_Bookmark).metadata.resource_version
            self._version = version or self._version
            return None
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=_Failure)
            raise RefusedError(f"watch of {self._path}", failure.code, failure.message)
        if event.type not in {"ADDED", "MODIFIED", "DELETED"}:
            # A kind of event that is newer than this program.
            return None
        one = self._decoded(event.object)
        if not isinstance(one, Object):
            return None
        version = one.metadata.resource_version
        deleted = event.type == "DELETED"
        if self._known.stale(one, deleted=deleted):
            self.status.stale += 1
            return None
        self._version = version if not self._version or newer(version, self._version) else self._version
        return self._known.drop(one.key, version) if deleted else self._known.put(one)

    def _decoded(self, raw: msgspec.Raw) -> ObjectT | Key | None:
        """The object; its key where it is not as its kind has to be, None where even that is not known."""
        try:
            return self._decode(raw)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            self.status.undecodable += 1
            try:
                key = msgspec.json.decode(raw, type=Object).key
            except msgspec.ValidationError:
                key = None
            log.warning("%s %s cannot be read and is passed over: %s", self._resource, "/".join(key or ("?",)), error)
            return key

    # ---- how it goes

    def _heard(self) -> None:
        status = self.status
        status.heard_s = self._now()
        if status.failing_since_s is not None:
            log.info("%s: the API server answers again", self._resource)
            status.failing_since_s, status.problem = None, ""

    async def _fail(self, error: Exception) -> None:
        status, problem = self.status, str(error)
        status.failures += 1
        if status.failing_since_s is None:
            status.failing_since_s = self._now()
        if problem != status.problem:
            # An expired version is how watches end when the server was away; it costs a list and nothing else. That a
            # cluster does not have a kind is for who asked for it to judge.
            usual = isinstance(error, RefusedError) and (error.expired or error.status == 404)
            level = logging.INFO if usual else logging.WARNING
            log.log(level, "%s: %s", self._resource, problem)
        status.problem = problem
        if self._failed is not None:
            self._failed(error)
        await self._sleep(self._backoff.after_failure(getattr(error, "retry_after_s", None)))

    def _spread(self, seconds: float) -> float:
        """Many clients that began together must not come back together."""
        return seconds * (0.9 + 0.2 * self._rng.random())
