"""Writes to the API server: only what differs, never what is not ours.

What the operator makes carries its label. An object of the wanted name without it belongs to somebody else and is not
touched: ForeignError. Nor is what the operator of another namespace made, for as long as that namespace is there.
Between the look and the write somebody may come first only where the kind is not Service: a Service is created by a
request that fails if there is one, and changed by one that fails if it is another.

A server-side apply leaves what others put into a list. Where the answer is not as wanted, and for Services, whose ports
would be refused as doubled, a merge patch sets whole lists. Where even then it is not as wanted, admission of the
cluster changes what is written; where it is not for long, another controller does. Both are left as they are for a
while (`disputes`), or two would write against each other for ever.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_kube.errors import RefusedError
from poolpilot_kube.names import FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL, OPERATOR_LABEL
from poolpilot_operator.definitions import Definitions
from poolpilot_operator.difference import differences, digest
from poolpilot_operator.disputes import OBJECT, Disputes
from poolpilot_operator.models import KINDS, Owned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolpilot_kube.api import KubeApi
    from poolpilot_kube.objects import Key, Object, Resource
    from poolpilot_operator.difference import Path
    from poolpilot_operator.disputes import Place
    from poolpilot_operator.store import Store

log: Final = logging.getLogger(__name__)

Manifest = dict[str, Any]

APPLIED: Final = "poolpilot.dev/applied"
"""Annotation: digest of what was applied last, so that a field that is no longer wanted is a difference too."""
_APPLY: Final = "application/apply-patch+yaml"
_ALIVE_S: Final = 1.0
_THERE_S: Final = 60.0
"""So long it is believed that another operator's namespace is there, or gone: it may be made again."""
_MERGE: Final = "application/merge-patch+json"


class ForeignError(Exception):
    """An object of this name is there, and it is not ours; `operator`: the namespace of the operator that made it."""

    def __init__(self, kind: str, live: Owned) -> None:
        made = live.metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY
        self.kind = kind
        self.operator = live.metadata.labels.get(OPERATOR_LABEL, "") if made else ""
        who = f"was made by the operator of namespace {self.operator}" if self.operator else "was not made by poolpilot"
        super().__init__(f"{kind} {'/'.join(part for part in live.key if part)} exists and {who}")


class BusyError(Exception):
    """The object is being deleted; it can be made again afterwards."""


class DisputedError(BusyError):
    """Others delete the object as often as it is made: it is made again in `again_s`."""

    def __init__(self, message: str, again_s: float | None) -> None:
        super().__init__(message)
        self.again_s = again_s


class TerminatingError(BusyError):
    """The namespace is being deleted: nothing can be made there any more."""


def key_of(manifest: Manifest) -> Key:
    """(namespace, name); the namespace is empty for what has none."""
    metadata = manifest["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Writer:
    """Counts what it writes, by (kind, verb)."""

    def __init__(
        self,
        api: KubeApi,
        stores: Mapping[str, Store[Owned]],
        home: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stores` by kind: what is known of the objects that operators made; `home`: the namespace of this one."""
        self._looked: dict[str, tuple[float, bool]] = {}
        """When another operator's namespace was last looked for, and whether it is gone."""
        self._home = home
        self._clock = clock
        self._alive: dict[str, float] = {}
        """When a namespace was last seen not to be terminating."""
        self.disputes = Disputes(clock)
        self.definitions = Definitions(clock)
        self.writes: Counter[tuple[str, str]] = Counter()
        self._api = api
        self._stores = stores

    def ours(self, one: Object) -> bool:
        """Whether this operator made it; also where somebody took away the label that we list by."""
        labels = one.metadata.labels
        if labels.get(MANAGED_BY_LABEL) == MANAGED_BY:
            return self._is_ours(labels.get(OPERATOR_LABEL, self._home))
        return APPLIED in one.metadata.annotations and self._is_ours(labels.get(OPERATOR_LABEL, ""))

    async def abandoned(self, operator: str) -> bool:
        """Whether the namespace of another operator is gone: nobody else keeps what it made. Raises KubeError."""
        if not operator or operator == self._home or self._is_fresh(operator):
            return self._is_ours(operator)
        gone, known = False, self._looked.get(operator, (0.0, False))[1]
        try:
            await self._api.get(f"/api/v1/namespaces/{operator}")
        except RefusedError as error:
            if error.status not in {403, 404}:
                raise
            gone = error.status == 404
        if gone and not known:
            log.info("namespace %s is gone: what its operator made is this one's now", operator)
        self._looked[operator] = self._clock(), gone
        return gone

    async def ensure(self, wanted: Manifest) -> Owned:
        """Makes it so, or leaves what is disputed for a while.

        Raises ForeignError, TerminatingError, DisputedError, BusyError, or KubeError.
        """
        kind, key = wanted["kind"], key_of(wanted)
        sealed = _sealed(wanted, self._home)
        live = self.known(kind, key)
        if live is None and kind != "Service":
            live = await self.read(kind, key)
        if live is None:
            return await self._make(kind, key, sealed)
        if not self.ours(live):
            raise ForeignError(kind, live)
        if live.metadata.deletion_timestamp is not None:
            raise BusyError(f"{kind} {'/'.join(key)} is being deleted")
        different, place, found = _different(live, sealed), (kind, key), live
        if not different:
            self.disputes.settled(place)
            return live
        if self.disputes.rests(place, _wish(sealed), different, lambda: _pair(found, sealed)):
            await self._look_who(place, different)
            return live
        left = different
        if kind != "Service":
            live = await self._apply(kind, key, sealed)
            left = _different(live, sealed)
        if left:
            live = await self._replace(live, kind, key, sealed)
            left = _different(live, sealed)
        self.disputes.wrote(place, _wish(sealed), different, left, _pair(live, sealed) if left else "")
        return live

    async def read(self, kind: str, key: Key) -> Owned | None:
        """As the server has it now. Raises KubeError."""
        try:
            return msgspec.json.decode(await self._api.get(_path(KINDS[kind], key)), type=Owned)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, kind: str, live: Owned) -> None:
        """This very object; it may be gone already. Raises KubeError."""
        if live.metadata.deletion_timestamp is not None:
            return
        self.disputes.forget((kind, live.key))
        self.writes[kind, "delete"] += 1
        body = {"preconditions": {"uid": live.metadata.uid}, "propagationPolicy": "Background"}
        try:
            await self._api.send("DELETE", _path(KINDS[kind], live.key), body=body)
        except RefusedError as error:
            if error.status not in {404, 409}:
                raise
            # Another of its name is there by now, unless something else was in conflict.
            now = await self.read(kind, live.key) if error.status == 409 else None
            if now is not None and now.metadata.uid == live.metadata.uid:
                raise
        store = self._stores.get(kind)
        if store is not None:
            store.deleted(live)

    async def status(self, resource: Resource[Any], key: Key, kind: str, status: Mapping[str, Any]) -> bytes:
        """The whole status of one of our own kinds, as ours. Raises KubeError.

        BusyError where its definition does not know all of it: `definitions.fitted` leaves that out at the next look.
        """
        self.writes[kind, "status"] += 1
        body = {
            "apiVersion": f"{resource.group}/{resource.version}",
            "kind": kind,
            "metadata": {"namespace": key[0], "name": key[1]},
            "status": status,
        }
        try:
            return await self._patch(f"{_path(resource, key)}/status", body)
        except RefusedError as error:
            if not self.definitions.learn(kind, error):
                raise
            raise BusyError(f"{kind} {'/'.join(key)}: {self.definitions.message(kind)}") from None

    async def hand_over(self, wanted: Manifest, spec: Mapping[str, Any], manager: str) -> None:
        """Lets another manager own fields of a spec, so that they stay when ours no longer names them."""
        kind, key = wanted["kind"], key_of(wanted)
        self.writes[kind, "apply"] += 1
        body = {name: wanted[name] for name in ("apiVersion", "kind")}
        body |= {"metadata": {"namespace": key[0], "name": key[1]}, "spec": dict(spec)}
        await self._patch(_path(KINDS[kind], key), body, manager)

    def known(self, kind: str, key: Key) -> Owned | None:
        """As last heard of."""
        store = self._stores.get(kind)
        return store.get(key) if store is not None else None

    def _is_ours(self, operator: str) -> bool:
        return operator == self._home or (self._is_fresh(operator) and self._looked[operator][1])

    def _is_fresh(self, operator: str) -> bool:
        """Whether it was looked for its namespace just now."""
        return operator in self._looked and self._clock() - self._looked[operator][0] < _THERE_S

    async def _make(self, kind: str, key: Key, sealed: Manifest) -> Owned:
        place, gone = (kind, key), (OBJECT,)
        if self.disputes.rests(place, _wish(sealed), gone, str):
            await self._look_who(place, gone)
            raise DisputedError("; ".join(self.disputes.told([place])), self.disputes.again_s([place]))
        await self._check_namespace(kind, key)
        made = await (self._create if kind == "Service" else self._apply)(kind, key, sealed)
        self.disputes.wrote(place, _wish(sealed), gone, (), "")
        return made

    async def _look_who(self, place: Place, different: Sequence[Path]) -> None:
        """Asked at need: managed fields, the larger part of many an object, are not kept."""
        if not self.disputes.unknown(place, different):
            return
        one: Manifest = {}
        try:
            one = msgspec.json.decode(await self._api.get(_path(KINDS[place[0]], place[1])))
        except RefusedError as error:
            if error.status != 404:
                raise
        self.disputes.learned(place, one, different)

    async def _check_namespace(self, kind: str, key: Key) -> None:
        """Asked before anything is made only: nothing else is refused where a namespace ends."""
        namespace = key[0]
        if not namespace or self._clock() - self._alive.get(namespace, -_ALIVE_S) < _ALIVE_S:
            return
        try:
            one = msgspec.json.decode(await self._api.get(f"/api/v1/namespaces/{namespace}"), type=Owned)
        except RefusedError as error:
            if error.status not in {403, 404}:
                raise
            # The write itself will tell.
            return
        if one.metadata.deletion_timestamp is not None:
            self._alive.pop(namespace, None)
            raise TerminatingError(
                f"namespace {namespace} is being deleted: {kind} {key[1]} is not made there any more"
            )
        self._alive[namespace] = self._clock()

    async def _apply(self, kind: str, key: Key, sealed: Manifest) -> Owned:
        self.writes[kind, "apply"] += 1
        return self._learned(kind, key, await self._patch(_path(KINDS[kind], key), sealed))

    async def _replace(self, live: Owned, kind: str, key: Key, sealed: Manifest) -> Owned:
        self.writes[kind, "patch"] += 1
        body = {**sealed, "metadata": {**sealed["metadata"], "uid": live.metadata.uid}}
        path, manager = _path(KINDS[kind], key), {"fieldManager": FIELD_MANAGER}
        try:
            return self._learned(kind, key, await self._api.send("PATCH", path, manager, body, _MERGE))
        except RefusedError as error:
            if error.status not in {404, 409}:
                raise
            raise BusyError(f"{kind} {'/'.join(key)} comes and goes") from None

    async def _create(self, kind: str, key: Key, sealed: Manifest) -> Owned:
        resource = KINDS[kind]
        self.writes[kind, "create"] += 1
        try:
            answer = await self._api.send("POST", resource.path(key[0]), {"fieldManager": FIELD_MANAGER}, sealed)
        except RefusedError as error:
            if error.status != 409:
                raise
            # Somebody's, or ours and not heard of yet.
            live = await self.read(kind, key)
            if live is None:
                raise BusyError(f"{kind} {'/'.join(key)} comes and goes") from None
            if not self.ours(live):
                raise ForeignError(kind, live) from None
            if live.metadata.labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
                return await self._replace(live, kind, key, sealed)
            raise BusyError(f"{kind} {'/'.join(key)} is not in the cache yet") from None
        return self._learned(kind, key, answer)

    async def _patch(self, path: str, body: Mapping[str, Any], manager: str = FIELD_MANAGER) -> bytes:
        return await self._api.send("PATCH", path, {"fieldManager": manager, "force": "true"}, body, _APPLY)

    def _learned(self, kind: str, key: Key, answer: bytes) -> Owned:
        store = self._stores.get(kind)
        if store is not None:
            store.wrote(key, answer)
        return msgspec.json.decode(answer, type=Owned)


_HEAD: Final = frozenset({"apiVersion", "kind"})


def _sealed(wanted: Manifest, home: str) -> Manifest:
    metadata = wanted["metadata"]
    labels = {**metadata.get("labels", {}), OPERATOR_LABEL: home}
    annotations = {**metadata.get("annotations", {}), APPLIED: digest(wanted)}
    return {**wanted, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def _wish(sealed: Manifest) -> str:
    return str(sealed["metadata"]["annotations"][APPLIED])


def _different(live: Owned, sealed: Manifest) -> list[Path]:
    wanted = {name: sealed[name] for name in sealed if name not in _HEAD}
    return list(differences(msgspec.to_builtins(live), wanted))


def _pair(live: Owned, sealed: Manifest) -> str:
    """Digest of a wanted object and of what there is of it; of metadata only what is wanted."""
    there = msgspec.to_builtins(live)
    parts: dict[str, Any] = {name: there.get(name) for name in sealed if name not in _HEAD | {"metadata"}}
    for name, value in sealed["metadata"].items():
        given = there["metadata"].get(name)
        parts[f"metadata.{name}"] = (
            {one: given.get(one) for one in value} if isinstance(value, dict) and given else given
        )
    return digest([sealed, parts])


def _path(resource: Resource[Any], key: Key) -> str:
    return f"{resource.path(key[0])}/{key[1]}"
