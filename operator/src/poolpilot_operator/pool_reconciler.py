"""One pool: its Service and its EndpointSlice are as they should be, or it is said why not.

Level-based: looks at what there is, whatever happened, and can be repeated at any time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from poolpilot_kube.errors import RefusedError
from poolpilot_kube.names import POOL_ANNOTATION, POOL_GROUP
from poolpilot_operator import disputes
from poolpilot_operator.ownership import Claim, claim
from poolpilot_operator.ports import NoPortError
from poolpilot_operator.resources.naming import made_for
from poolpilot_operator.resources.pool import (
    PickerEndpoint,
    endpoint_slice,
    families,
    owning_pool,
    reached,
    reference_problem,
    service,
)
from poolpilot_operator.world import PICKER, POOL, PoolState, World
from poolpilot_operator.writer import BusyError, DisputedError, ForeignError, TerminatingError, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_kube.objects import InferencePool, Key, Pod
    from poolpilot_operator.health import PoolHealth
    from poolpilot_operator.models import Owned, Picker, PickerPod

log: Final = logging.getLogger(__name__)

API_VERSION: Final = f"{POOL_GROUP}/v1"
_LOOK_AGAIN_S: Final = 20.0
"""At trouble that no watch shows the end of: Services of others are not watched."""
_TERMINATING_S: Final = 60.0
_OTHERS_S: Final = 300.0
"""How often it is looked whether another operator is gone."""


class _TroubleError(Exception):
    """Why a pool is not served."""

    def __init__(self, reason: str, message: str, again_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.again_s = again_s


class PoolReconciler:
    """For all pools."""

    def __init__(self, world: World, changed: Callable[[Key], None]) -> None:
        """`changed` hears of a Picker whose pools stand differently now."""
        self._world = world
        self._changed = changed

    async def reconcile(self, key: Key) -> float | None:
        """Returns after how many seconds to look again. Raises KubeError or BusyError."""
        world = self._world
        pool = world.pools.get(key)
        held = claimed = Claim()
        if pool is not None and pool.metadata.deletion_timestamp is None:
            held = claimed = claim(pool, _by_key(world), self._holder(key), world.home)
        if pool is None or held.picker is None:
            await self._clear(key, keep=set())
            self._settle(key, None if not claimed.problem else PoolState(None, (), claimed.problem, claimed.message))
            if pool is not None and claimed.problem:
                await world.events.say(
                    pool, API_VERSION, "InferencePool", claimed.problem, claimed.message, warning=True
                )
            return None
        try:
            reason, message, again_s = await self._serve(pool, held.picker)
        except _TroubleError as trouble:
            self._settle(key, PoolState(held.picker, held.losers, trouble.reason, str(trouble)))
            await self._warn(pool, trouble.reason, str(trouble))
            return trouble.again_s
        except ForeignError as error:
            if await world.writer.abandoned(error.operator):
                raise BusyError(f"{error}, which is gone: it is this operator's now") from None
            # Another operator serves it: not our business.
            log.info("InferencePool %s/%s: %s", *key, error)
            self._settle(key, None)
            return _OTHERS_S
        except TerminatingError as error:
            self._settle(key, PoolState(held.picker, held.losers, "NamespaceTerminating", str(error)))
            return _TERMINATING_S
        except RefusedError as error:
            if _terminating(error):
                self._settle(key, PoolState(held.picker, held.losers, "NamespaceTerminating", str(error)))
                return _TERMINATING_S
            self._settle(key, PoolState(held.picker, held.losers, "WriteRefused", str(error)))
            if error.status in {403, 422}:
                await self._warn(pool, "WriteRefused", str(error))
            raise
        await self._tell_losers(pool, held)
        if self._settle(key, PoolState(held.picker, held.losers, reason, message)) and not reason:
            world.events.forget(pool)
        return again_s

    # ---- serving

    async def _serve(self, pool: InferencePool, picker: Key) -> tuple[str, str, float | None]:
        """Returns (reason, message) of what is not well, both empty if all is, and when to look again."""
        world = self._world
        problem = reference_problem(pool.spec.endpoint_picker_ref)
        if problem is not None:
            await self._clear(pool.key, keep=set())
            raise _TroubleError(*problem)
        try:
            port = world.ports.choose(picker, pool.key)
        except NoPortError as error:
            raise _TroubleError("NoPortLeft", str(error), _LOOK_AGAIN_S) from None
        wanted = service(pool, picker, port)
        place = ("Service", key_of(wanted))
        self._check_taken(pool, *place)
        # A pool that was deleted and made again owns nothing of the old one's.
        stale = [one for one in self._made(pool.key) if not _owned_by(one[1], pool)]
        for kind, one in stale:
            await world.writer.delete(kind, one)
        if any((kind, one.key) == place for kind, one in stale):
            raise _TroubleError("Replacing", "the Service of a pool of the same name is being deleted", 0.3)
        try:
            types = families(await world.writer.ensure(wanted))
            found, troubles = self._endpoints(pool, picker, port, types)
            slices = [endpoint_slice(pool, picker, port, found, one) for one in types]
            for wanted_slice in slices:
                await world.writer.ensure(wanted_slice)
        except DisputedError as error:
            raise _TroubleError(disputes.REASON, str(error), error.again_s) from None
        except ForeignError as error:
            if error.operator:
                raise
            raise _TroubleError(
                "ServiceNotOurs" if error.kind == "Service" else "EndpointSliceNotOurs",
                f"{error}; it is left alone: delete it, or name another Service in spec.endpointPickerRef",
                _LOOK_AGAIN_S,
            ) from None
        kept = {("EndpointSlice", key_of(wanted_slice)) for wanted_slice in slices}
        await self._clear(pool.key, keep={place, *kept})
        told = world.writer.disputes.told([place, *kept])
        for text in told:
            await self._warn(pool, disputes.REASON, text)
        problem = self._standing(pool, picker, found, troubles) or (disputes.REASON if told else "", "; ".join(told))
        return *problem, world.writer.disputes.again_s([place, *kept])

    def _standing(
        self, pool: InferencePool, picker: Key, found: list[PickerEndpoint], troubles: list[str]
    ) -> tuple[str, str] | None:
        """(reason, message) of what is not well with its pods."""
        world = self._world
        if not any(not one.terminating for one in found):
            return "NoPicker", "; ".join(troubles) or "no picker pod is there"
        said = _serving(pool.key, self._pods(pool, picker), world)
        if said and all(one.endpoints == 0 for _, one in said):
            return "NoEndpoints", "no pod that it selects is ready: its requests are answered 503"
        return next(
            (("PickerComplains", f"picker pod {pod.metadata.name}: {one.reason}") for pod, one in said if one.reason),
            None,
        )

    def _check_taken(self, pool: InferencePool, kind: str, place: Key) -> None:
        live = self._world.writer.known(kind, place)
        if live is None or not self._world.writer.ours(live) or _owned_by(live, pool):
            return
        other = live.metadata.annotations.get(POOL_ANNOTATION)
        if other == pool.metadata.name:
            return
        what = f"InferencePool {other}" if other is not None else "a Picker"
        raise _TroubleError(
            "ServiceTaken",
            f"Service {'/'.join(place)} already is that of {what}: every pool needs its own in spec.endpointPickerRef",
            _LOOK_AGAIN_S,
        )

    def _pods(self, pool: InferencePool, picker: Key) -> list[PickerPod]:
        world = self._world
        found = world.pickers.get(picker)
        # Those that have ended stay until somebody collects them; their addresses may be others' by then.
        pods = [pod for pod in world.pods.filed((PICKER, *picker)) if not pod.ended]
        if found is not None and found.spec.placement == "PerNamespace":
            return [pod for pod in pods if pod.metadata.namespace == pool.metadata.namespace]
        return [pod for pod in pods if pod.metadata.namespace == picker[0]]

    def _endpoints(
        self, pool: InferencePool, picker: Key, port: int, types: tuple[str, ...]
    ) -> tuple[list[PickerEndpoint], list[str]]:
        """The pods that serve the pool under an address of these families, and why others do not."""
        world = self._world
        before = self._in_slices(pool.key, port)
        found: list[PickerEndpoint] = []
        troubles: list[str] = []
        for pod in self._pods(pool, picker):
            health = world.health.of(pod)
            ends = pod.metadata.deletion_timestamp is not None
            if health is None or health.pools is None:
                # Not heard yet: stays what it was. An operator that starts must not empty what works.
                serves = pod.metadata.uid in before and pod.ready
                troubles.append(f"picker pod {pod.metadata.name}: {(health and health.problem) or 'not heard yet'}")
            else:
                said = health.pools.get(pool.key)
                # Without the one that ends, and with the next not heard yet, nobody would be there.
                serves = said is not None and (said.serving or said.terminating) and said.port == port
                ends = ends or (said is not None and said.terminating)
                # Who cannot be asked, and whom the kubelet calls unready or who was about to end, is not there.
                serves = serves and (not health.problem or (pod.ready and not ends))
                if not serves or (said is not None and not said.serving):
                    why = "does not know the pool yet" if said is None else said.reason or "does not serve it yet"
                    troubles.append(f"picker pod {pod.metadata.name}: {health.problem or why}")
            meta = pod.metadata
            one = PickerEndpoint(meta.namespace, meta.name, meta.uid, pod.addresses, terminating=ends)
            if serves and not any(reached(one, type_) for type_ in types):
                troubles.append(f"picker pod {meta.name} has no {' or '.join(types)} address, and its Service no other")
            elif serves:
                found.append(one)
        return found, troubles

    def _in_slices(self, key: Key, port: int) -> set[str]:
        """UIDs of the pods that are endpoints now, with this port."""
        return {
            endpoint.get("targetRef", {}).get("uid", "")
            for one in self._world.made["EndpointSlice"].filed((POOL, *key))
            if any(known.get("port") == port for known in one.ports or ())
            for endpoint in one.endpoints or ()
        }

    # ---- what is left of it

    def _made(self, key: Key) -> list[tuple[str, Owned]]:
        found = (
            (kind, one) for kind in ("EndpointSlice", "Service") for one in self._world.made[kind].filed((POOL, *key))
        )
        # An annotation that somebody wrote does not make it another pool's.
        return [(kind, one) for kind, one in found if owning_pool(one) in {None, key[1]}]

    async def _clear(self, key: Key, keep: set[tuple[str, Key]]) -> None:
        for kind, one in self._made(key):
            if (kind, one.key) not in keep and self._world.writer.ours(one):
                await self._world.writer.delete(kind, one)

    def _holder(self, key: Key) -> Key | None:
        for one in self._world.made["Service"].filed((POOL, *key)):
            if one.metadata.deletion_timestamp is None and self._world.writer.ours(one):
                return made_for(one)
        return None

    def _settle(self, key: Key, state: PoolState | None) -> bool:
        """Whether it stands differently now."""
        states = self._world.states
        before = states.get(key)
        if state is None:
            states.pop(key, None)
        else:
            states[key] = state
        if state == before:
            return False
        for one in (before, state):
            if one is not None:
                for picker in (one.picker, *one.losers):
                    if picker is not None:
                        self._changed(picker)
        return True

    async def _warn(self, pool: InferencePool, reason: str, message: str) -> None:
        await self._world.events.say(pool, API_VERSION, "InferencePool", reason, message, warning=True)

    async def _tell_losers(self, pool: InferencePool, held: Claim) -> None:
        if held.losers and held.picker is not None:
            others = ", ".join("/".join(one) for one in held.losers)
            message = (
                f"served by Picker {'/'.join(held.picker)}; Picker {others} would take it too, and does not get it"
            )
            await self._world.events.say(pool, API_VERSION, "InferencePool", "SeveralPickers", message)


def _by_key(world: World) -> dict[Key, Picker]:
    return {picker.key: picker for picker in world.pickers}


def _serving(key: Key, pods: Sequence[Pod], world: World) -> list[tuple[Pod, PoolHealth]]:
    """The pods that serve a pool, and what they say of it."""
    found = []
    for pod in pods:
        health = world.health.of(pod)
        said = health.pools.get(key) if health is not None and health.pools is not None else None
        if said is not None and said.serving:
            found.append((pod, said))
    return found


def _owned_by(one: Owned, pool: InferencePool) -> bool:
    return any(ref.get("uid") == pool.metadata.uid for ref in one.metadata.owner_references)


def _terminating(error: RefusedError) -> bool:
    return error.status == 403 and "being terminated" in str(error)


def describe(state: PoolState, key: Key) -> dict[str, Any]:
    """An entry of `unhealthyPools`."""
    return {"namespace": key[0], "name": key[1], "reason": state.reason, "message": state.message[:1024]}
