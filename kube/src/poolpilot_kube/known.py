"""What is known of the objects of a resource, told by three that know nothing of each other: lists, events of watches
and answers to our own writes. Whatever comes late, what is known never goes back to an earlier moment.

resourceVersions of one resource grow with time: Kubernetes promises it since 1.35, and every API server on etcd did so
before. Versions that are not numbers cannot be compared; then the word that comes last counts.
"""

from __future__ import annotations

from typing import Final, Generic

import msgspec

from poolpilot_kube.objects import Key, Object, ObjectT

_MOST: Final = 1024
"""Deletions that are remembered one by one."""


class Change(msgspec.Struct, Generic[ObjectT], frozen=True):
    """`old` is None for an object that is new to us, `new` for one that is gone."""

    key: Key
    old: ObjectT | None
    new: ObjectT | None


class Known(Generic[ObjectT]):
    """The newest state heard of every object."""

    def __init__(self) -> None:
        self.objects: dict[Key, ObjectT] = {}
        self._gone: dict[Key, str] = {}
        """resourceVersions of deletions: what happened before them must not bring the object back."""
        self._ended: dict[str, None] = {}
        """uids of what we deleted. The answer does not tell the version of the deletion, but a word of such an object
        that does not call it terminating is of before."""
        self._floor = ""
        """What is not known has not been there at this version, nor since as far as we heard."""
        self._earlier: frozenset[str] = frozenset()
        """Of `_ended`: those that a running list cannot have seen any more."""
        self._meanwhile: dict[Key, ObjectT | None] | None = None
        """While a list runs: what answers say, which it may not have seen yet."""

    def stale(self, one: ObjectT, *, deleted: bool = False) -> bool:
        """Whether this word of an object, or of its deletion, says nothing new."""
        key, version = one.key, one.metadata.resource_version
        if not deleted and self._over(one):
            return True
        old = self.objects.get(key)
        if old is not None:
            return not newer(version, old.metadata.resource_version, deleted=deleted)
        return not (newer(version, self._floor) and newer(version, self._gone.get(key, "")))

    def put(self, one: ObjectT) -> Change[ObjectT]:
        """This is how it is now."""
        key, old = one.key, self.objects.get(one.key)
        self._gone.pop(key, None)
        self.objects[key] = one
        return Change(key, old, one)

    def drop(self, key: Key, version: str) -> Change[ObjectT] | None:
        """It is gone since this version."""
        self._bury(key, version)
        old = self.objects.pop(key, None)
        return Change(key, old, None) if old is not None else None

    # ---- answers

    def answered(self, one: ObjectT) -> Change[ObjectT] | None:
        """The answer to a write."""
        if self.stale(one):
            return None
        if self._meanwhile is not None:
            self._meanwhile[one.key] = one
        return self.put(one)

    def ended(self, one: Object) -> Change[ObjectT] | None:
        """The server deleted this very object, or says that it is gone."""
        key, meta = one.key, one.metadata
        if meta.uid:
            self._ended[meta.uid] = None
            if len(self._ended) > _MOST:
                self._ended.pop(next(iter(self._ended)))
        version, old = meta.resource_version, self.objects.get(key)
        if old is not None:
            known = old.metadata.resource_version
            if old.metadata.uid == meta.uid:
                version = _later(version, known)
            elif not (known.isdecimal() and version.isdecimal() and newer(version, known)):
                return None
        if self._meanwhile is not None:
            self._meanwhile[key] = None
        return self.drop(key, version)

    # ---- lists

    def list_begins(self) -> None:
        """What is answered from here on may be newer than the list."""
        self._meanwhile = {}
        self._earlier = frozenset(self._ended)

    def listed(self, found: dict[Key, ObjectT], version: str) -> list[Change[ObjectT]]:
        """This is all there was at this version, whatever was known when it was asked for: a server may go back."""
        for uid in self._earlier:
            self._ended.pop(uid, None)
        meanwhile, self._meanwhile = self._meanwhile or {}, None
        gone = {key: self._gone[key] for key, one in meanwhile.items() if one is None and key in self._gone}
        found = {
            key: one
            for key, one in found.items()
            if not self._over(one) and newer(one.metadata.resource_version, gone.get(key, ""))
        }
        found.update(
            (key, one)
            for key, one in meanwhile.items()
            if one is not None and newer(one.metadata.resource_version, version)
        )
        self._gone, self._floor = gone, version
        before, self.objects = self.objects, found
        changes = [Change(key, old, None) for key, old in before.items() if key not in found]
        for key, new in found.items():
            old = before.get(key)
            if old is None or old.metadata.resource_version != new.metadata.resource_version:
                changes.append(Change(key, old, new))
        return changes

    def _over(self, one: Object) -> bool:
        return one.metadata.uid in self._ended and one.metadata.deletion_timestamp is None

    def _bury(self, key: Key, version: str) -> None:
        self._gone[key] = _later(version, self._gone.get(key, ""))
        if len(self._gone) > _MOST:
            self._floor = _later(self._gone.pop(next(iter(self._gone))), self._floor)


def newer(version: str, known: str, *, deleted: bool = False) -> bool:
    """Whether a resourceVersion is of a later moment. Versions that are not numbers cannot be compared: taken as later.

    `deleted`: servers before 1.33 may give a deletion the version of the last state of the object.
    """
    if not (version.isdecimal() and known.isdecimal()):
        return True
    return int(version) >= int(known) if deleted else int(version) > int(known)


def _later(version: str, known: str) -> str:
    return version if newer(version, known) else known
