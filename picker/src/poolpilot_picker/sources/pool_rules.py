"""InferenceObjectives and InferenceModelRewrites, watched in both of their API groups → the rules of each pool.

A cluster may have one group, the other, both or none; where it has both, the first is read. What may not be read counts
as not there, and is told. Reads and never writes: what these objects' status says is not a picker's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Generic

from poolpilot_kube.errors import RefusedError
from poolpilot_kube.names import POOL_GROUP
from poolpilot_kube.objects import OBJECTIVES, REWRITES, InferenceModelRewrite, ObjectT
from poolpilot_kube.watch import Watcher, WatchSettings
from poolpilot_picker.requests.rules import ModelTargets, PoolRules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from poolpilot_kube.api import KubeApi
    from poolpilot_kube.objects import Key, PoolRef, Resource
    from poolpilot_kube.watch import Change

log: Final = logging.getLogger(__name__)


class _Kind(Generic[ObjectT]):
    """One kind in one of its groups."""

    def __init__(
        self,
        api: KubeApi,
        resource: Resource[ObjectT],
        changed: Callable[[Sequence[Change[Any]] | None], None],
        namespace: str,
        settings: WatchSettings | None,
    ) -> None:
        self._changed = changed
        self.absent = self.forbidden = self._listed = False
        self.watcher: Watcher[ObjectT] = Watcher(
            api, resource, self._apply, namespace=namespace, settings=settings, failed=self._failed
        )

    @property
    def known(self) -> bool:
        return self.absent or self.watcher.status.synced

    @property
    def there(self) -> bool:
        return self.watcher.status.synced and not self.absent

    def _apply(self, changes: Sequence[Change[ObjectT]]) -> None:
        came = self.absent or not self._listed
        self.absent, self.forbidden, self._listed = False, False, True
        self._changed(None if came else changes)

    def _failed(self, error: Exception) -> None:
        status = error.status if isinstance(error, RefusedError) else 0
        self.forbidden = status == 403 or (self.forbidden and status != 404)
        # There is no such kind, or it may not be read; a right that was taken away takes nothing that is known.
        if not self.absent and (status == 404 or (status == 403 and not self.watcher.status.synced)):
            self.absent = True
            self._changed(None)


class RuleBook:
    """The rules of the pools of one namespace, or of all, while `run` runs.

    `changed` hears which pools may have other rules now; None: all of them.
    """

    def __init__(
        self,
        api: KubeApi,
        changed: Callable[[Collection[Key] | None], None],
        *,
        namespace: str = "",
        settings: WatchSettings | None = None,
    ) -> None:
        self._changed = changed
        self._objectives = [_Kind(api, one, self._heard, namespace, settings) for one in OBJECTIVES]
        self._rewrites = [_Kind(api, one, self._heard, namespace, settings) for one in REWRITES]
        self._kinds: list[_Kind[Any]] = [*self._objectives, *self._rewrites]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(kind.watcher.run())

    @property
    def known(self) -> bool:
        """Of every kind it is known whether it is there, and if so, all of it."""
        return all(kind.known for kind in self._kinds)

    @property
    def problems(self) -> list[str]:
        """What is wrong now. That a kind is not there is nothing wrong."""
        told = [one for one in self._kinds if not one.absent or one.forbidden]
        return [one.watcher.status.problem for one in told if one.watcher.status.problem]

    @property
    def failures(self) -> int:
        """Answers that failed, of kinds that are there."""
        return sum(one.watcher.status.failures for one in self._kinds if not one.absent)

    def rules(self, pools: Collection[Key]) -> dict[Key, PoolRules]:
        """Of each of these pools."""
        priorities: dict[Key, dict[str, int]] = defaultdict(dict)
        rewrites: dict[Key, list[InferenceModelRewrite]] = defaultdict(list)
        for objective in _in_force(self._objectives):
            key = _pool_of(objective.metadata.namespace, objective.spec.pool_ref)
            if key is not None and key in pools:
                priorities[key][objective.metadata.name] = objective.spec.priority
        for rewrite in _in_force(self._rewrites):
            key = _pool_of(rewrite.metadata.namespace, rewrite.spec.pool_ref)
            if key is not None and key in pools:
                rewrites[key].append(rewrite)
        return {pool: made(priorities.get(pool, {}), rewrites.get(pool, ())) for pool in pools}

    def _heard(self, changes: Sequence[Change[Any]] | None) -> None:
        if changes is None:
            self._changed(None)
            return
        pools = {
            key
            for change in changes
            for one in (change.old, change.new)
            if one is not None and (key := _pool_of(one.metadata.namespace, one.spec.pool_ref)) is not None
        }
        if pools:
            self._changed(pools)


def made(priorities: dict[str, int], rewrites: Iterable[InferenceModelRewrite]) -> PoolRules:
    """Rules of one pool. Of rules for one model the oldest object's counts, and within an object the first."""
    exact: dict[str, ModelTargets] = {}
    generic: ModelTargets | None = None
    for rewrite in sorted(rewrites, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
        for rule in rewrite.spec.rules:
            if not any(target.model_rewrite for target in rule.targets):
                continue
            pairs = [(target.model_rewrite, target.weight) for target in rule.targets if target.model_rewrite]
            targets = ModelTargets(rewrite.metadata.name, pairs)
            for match in rule.matches:
                exact.setdefault(match.model.value, targets)
            if not rule.matches and generic is None:
                generic = targets
    return PoolRules(priorities=priorities, exact=exact, generic=generic)


def _in_force(kinds: Sequence[_Kind[ObjectT]]) -> Iterable[ObjectT]:
    for kind in kinds:
        if kind.there:
            return kind.watcher.objects.values()
    return ()


def _pool_of(namespace: str, ref: PoolRef) -> Key | None:
    """The pool that an object is for; None where it is for something else."""
    return (namespace, ref.name) if ref.group == POOL_GROUP and ref.kind == "InferencePool" else None
