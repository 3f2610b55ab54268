"""What is heard becomes keys in the queues: which pools, Pickers and adapters are to be looked at after which event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolpilot_operator.resources.naming import made_for
from poolpilot_operator.resources.pool import owning_pool
from poolpilot_operator.world import PICKER, POOL, World, pool_of, target_port

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from poolpilot_kube.objects import InferencePool, Key, Pod
    from poolpilot_kube.watch import Change
    from poolpilot_operator.models import LoraAdapter, Owned, Picker, PickerPod
    from poolpilot_operator.workqueue import WorkQueue


class Triggers:
    """For all watches, and for what picker pods say."""

    world: World
    """Given before anything runs: its stores and its health call what is here."""

    def __init__(
        self,
        pool_queue: WorkQueue[Key],
        picker_queue: WorkQueue[Key],
        adapter_queue: WorkQueue[Key],
        synced: asyncio.Event,
    ) -> None:
        """`synced`: whether everything has been listed."""
        self.pool_queue = pool_queue
        self.picker_queue = picker_queue
        self.adapter_queue = adapter_queue
        self.synced = synced

    def heard_pool(self, change: Change[InferencePool]) -> None:
        """A pool came, changed or went."""
        self.pool_queue.add(change.key)
        if self.world.adapters.filed((POOL, *change.key)):
            self.adapter_queue.add(change.key)

    def heard_adapter(self, change: Change[LoraAdapter]) -> None:
        """An adapter came, changed or went; what we say of it is no change."""
        old, new = change.old, change.new
        if old is not None and new is not None and old.spec == new.spec and _alive(old) == _alive(new):
            return
        for one in (old, new):
            if one is not None:
                self.adapter_queue.add(pool_of_adapter(one))

    def heard_picker(self, change: Change[Picker]) -> None:
        """A Picker came, changed or went; what we say of it concerns nobody else."""
        self.picker_queue.add(change.key)
        old, new = change.old, change.new
        if old is not None and new is not None and old.spec == new.spec and _alive(old) == _alive(new):
            return
        for pod in self.world.pods.filed((PICKER, *change.key)):
            self._follow(pod)
        # Who may serve which pool is another question now.
        for pool in self.world.pools:
            self.pool_queue.add(pool.key)

    def heard_pod(self, change: Change[PickerPod]) -> None:
        """A picker pod came, changed or went."""
        health, old, new = self.world.health, change.old, change.new
        if old is not None and (new is None or new.ended or _place(old) != _place(new)):
            health.leave(old)
        if new is not None:
            self._follow(new)
            if old is not None and (old.ready != new.ready or _alive(old) != _alive(new)):
                known = health.of(new)
                for pool in known.pools if known is not None and known.pools else self._pools_of(new):
                    self.pool_queue.add(pool)

    def _follow(self, pod: Pod) -> None:
        """Users may write a Picker's labels on pods of theirs: only those are asked that can count."""
        key = made_for(pod)
        picker = self.world.pickers.get(key) if key is not None else None
        beside = picker is not None and picker.spec.placement == "PerNamespace"
        if key is not None and not pod.ended and (beside or key[0] == pod.metadata.namespace):
            self.world.health.follow(pod)

    def heard_health(self, pod: Pod, pools: set[Key]) -> None:
        """A picker pod says something else of these pools; of none in particular: of all its own."""
        for pool in pools or self._pools_of(pod):
            self.pool_queue.add(pool)

    def heard_refusal(self, pod: Pod) -> None:
        """A picker pod does not take its configuration, or does again."""
        picker = made_for(pod)
        if picker is not None:
            self.picker_queue.add(picker)

    def _pools_of(self, pod: Pod) -> list[Key]:
        picker = made_for(pod)
        return [key for key, state in self.world.states.items() if state.picker == picker]

    def heard_made(self, kind: str) -> Callable[[Change[Owned]], None]:
        """An object of this kind that the operator made came, changed or went."""

        def heard(change: Change[Owned]) -> None:
            for one in (change.old, change.new):
                if one is None:
                    continue
                pool, picker = pool_of(one), made_for(one)
                if pool is not None:
                    (self.adapter_queue if kind == "ConfigMap" else self.pool_queue).add(pool)
                elif picker is not None:
                    self.picker_queue.add(picker)
            if kind == "Service":
                self._record_port(change)

        return heard

    def _record_port(self, change: Change[Owned]) -> None:
        ports, old, new = self.world.ports, change.old, change.new
        if old is not None and _of_its_pool(old):
            picker, pool = made_for(old), pool_of(old)
            moved = new is None or made_for(new) != picker or pool_of(new) != pool
            if moved and picker is not None and pool is not None:
                ports.forget(picker, pool, target_port(old))
        if new is not None and _of_its_pool(new):
            picker, pool, port = made_for(new), pool_of(new), target_port(new)
            if picker is not None and pool is not None and port is not None:
                ports.record(picker, pool, port, listed=not self.synced.is_set())


def _of_its_pool(one: Owned) -> bool:
    """Not one that somebody made to look like ours."""
    pool = pool_of(one)
    return pool is not None and owning_pool(one) == pool[1]


def pool_of_adapter(one: LoraAdapter) -> Key:
    """The pool that an adapter is wanted in."""
    return one.metadata.namespace, one.spec.pool_ref.name


def pool_asked(one: LoraAdapter) -> list[Any]:
    """Under which pool an adapter is filed."""
    return [(POOL, *pool_of_adapter(one))]


def _alive(one: Picker | Pod | LoraAdapter) -> bool:
    return one.metadata.deletion_timestamp is None


def _place(pod: Pod) -> tuple[str, str]:
    return pod.metadata.uid, pod.status.pod_ip
