"""What was made for a Picker and is no longer needed: what is taken away, and when; rights go last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_operator.resources.naming import made_for
from poolpilot_operator.resources.pool import made_for_pool
from poolpilot_operator.world import PICKER, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.objects import Key
    from poolpilot_operator.models import Owned
    from poolpilot_operator.optional_kinds import OptionalKinds

_DRAIN_LOOK_S: Final = 1.0
_DRAIN_S: Final = 600.0
"""As long as a rollout may take by default: a pod that never ends, on a node that is gone, keeps no rights for ever."""
_RIGHTS: Final = ("RoleBinding", "Role", "ClusterRoleBinding", "ClusterRole", "ServiceAccount")
"""In the order in which they go, after all else: pods that drain still read what they read before."""


class Removal:
    """For all Pickers."""

    def __init__(self, world: World, kinds: OptionalKinds, clock: Callable[[], float]) -> None:
        self._world = world
        self._kinds = kinds
        self._clock = clock
        self._drains: dict[Key, float] = {}
        """Since when rights wait for pods to end."""

    async def clear(self, key: Key, keep: set[tuple[str, Key]]) -> float | None:
        """Deletes what was made for the Picker and is not in `keep`; not what is made for pools.

        Rights go when no pod is left that may need them; until then it returns after how many seconds to look again.
        Raises KubeError or BusyError.
        """
        writer = self._world.writer
        surplus = [
            (kind, one)
            for kind in (*(kind for kind in self._world.made if kind not in _RIGHTS), *_RIGHTS)
            if kind != "EndpointSlice" and kind in self._world.made
            for one in self._world.made[kind].filed((PICKER, *key))
            if not made_for_pool(one) and (kind, one.key) not in keep and writer.ours(one)
        ]
        for kind, one in surplus:
            if kind in _RIGHTS and self._draining(key, keep):
                return _DRAIN_LOOK_S
            if kind == "ServiceAccount":
                # What cannot be listed goes with the account of the same name.
                namespace, name = one.key
                for other, called in (("Secret", f"{name}-tls"), ("Certificate", name), ("ServiceMonitor", name)):
                    await self.delete_unlisted(other, (namespace, called), key)
            await writer.delete(kind, one)
        self._drains.pop(key, None)
        return None

    def _draining(self, key: Key, keep: set[tuple[str, Key]]) -> bool:
        """Whether pods of an earlier Deployment, or of an earlier state of one, may still be there."""
        world = self._world
        kept = [one for one in world.made["Deployment"].filed((PICKER, *key)) if ("Deployment", one.key) in keep]
        homes = {one.metadata.namespace for one in kept}
        pods = world.pods.filed((PICKER, *key))
        older = any(one.metadata.deletion_timestamp is not None or one.metadata.namespace not in homes for one in pods)
        if not older and not (pods and any(not _rolled_out(one) for one in kept)):
            return False
        return self._clock() - self._drains.setdefault(key, self._clock()) < _DRAIN_S

    async def delete_unlisted(self, kind: str, place: Key, picker: Key) -> None:
        """What nobody lists is asked for by its name; only what was made for the Picker goes. Raises KubeError."""
        if kind != "Secret" and not await self._kinds.there(kind):
            return
        live = await self._world.writer.read(kind, place)
        if live is not None and self._world.writer.ours(live) and made_for(live) == picker:
            await self._world.writer.delete(kind, live)


def _rolled_out(one: Owned) -> bool:
    status = one.status or {}
    newest = int(status.get("observedGeneration") or 0) >= one.metadata.generation
    return newest and status.get("updatedReplicas") == status.get("replicas")
