"""All objects of one kind in the namespaces that the operator watches, from one watch each, with one index."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Generic, TypeAlias

from poolpilot_kube.objects import Key, ObjectT
from poolpilot_kube.watch import Change, Watcher, WatchStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from poolpilot_kube.api import KubeApi
    from poolpilot_kube.objects import Resource
    from poolpilot_kube.watch import WatchSettings

IndexOf: TypeAlias = Callable[[ObjectT], "Collection[Hashable]"]
Heard: TypeAlias = Callable[["Change[ObjectT]"], None]

ALL: Final = ""
"""Every namespace."""


class Store(Generic[ObjectT]):
    """Objects by key while `run` runs."""

    def __init__(
        self,
        api: KubeApi,
        resource: Resource[ObjectT],
        namespaces: Sequence[str],
        *,
        labels: str = "",
        heard: Heard[ObjectT] | None = None,
        index: IndexOf[ObjectT] | None = None,
        settings: WatchSettings | None = None,
    ) -> None:
        """`namespaces`: those to watch, or ALL. `heard` learns of each change; `index` files an object under keys."""
        self.resource = resource
        self._heard = heard
        self._index_of = index
        self._index: defaultdict[Hashable, set[Key]] = defaultdict(set)
        self._watchers: dict[str, Watcher[ObjectT]] = {
            namespace: Watcher(api, resource, self._apply, namespace=namespace, labels=labels, settings=settings)
            for namespace in namespaces
        }

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watcher in self._watchers.values():
                group.create_task(watcher.run())

    async def synced(self) -> None:
        """Returns when everything has been listed once."""
        for watcher in self._watchers.values():
            await watcher.synced.wait()

    def get(self, key: Key) -> ObjectT | None:
        """The object as it was last heard of."""
        watcher = self._watcher(key[0])
        return watcher.objects.get(key) if watcher is not None else None

    def watches(self, namespace: str) -> bool:
        """Whether the objects of this namespace are known here."""
        return self._watcher(namespace) is not None

    def filed(self, under: Hashable) -> list[ObjectT]:
        """What the index has, by name."""
        found = (self.get(key) for key in sorted(self._index.get(under, ())))
        return [one for one in found if one is not None]

    def __iter__(self) -> Iterator[ObjectT]:
        """All objects; nothing may be awaited meanwhile."""
        for watcher in self._watchers.values():
            yield from watcher.objects.values()

    def __len__(self) -> int:
        """How many."""
        return sum(len(watcher.objects) for watcher in self._watchers.values())

    def wrote(self, key: Key, answer: bytes) -> None:
        """What the server answered to a write."""
        watcher = self._watcher(key[0])
        if watcher is not None:
            watcher.wrote(answer)

    def deleted(self, one: ObjectT) -> None:
        """The server deleted this very object."""
        watcher = self._watcher(one.metadata.namespace)
        if watcher is not None:
            watcher.deleted(one)

    @property
    def status(self) -> list[WatchStatus]:
        """Of every watch."""
        return [watcher.status for watcher in self._watchers.values()]

    def _watcher(self, namespace: str) -> Watcher[ObjectT] | None:
        return self._watchers.get(namespace) or self._watchers.get(ALL)

    def _apply(self, changes: Sequence[Change[ObjectT]]) -> None:
        for change in changes:
            if self._index_of is not None:
                self._file(change)
            if self._heard is not None:
                self._heard(change)

    def _file(self, change: Change[ObjectT]) -> None:
        index_of = self._index_of
        assert index_of is not None
        for one in index_of(change.old) if change.old is not None else ():
            filed = self._index[one]
            filed.discard(change.key)
            if not filed:
                del self._index[one]
        for one in index_of(change.new) if change.new is not None else ():
            self._index[one].add(change.key)
