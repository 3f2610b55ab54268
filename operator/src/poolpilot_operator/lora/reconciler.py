"""The adapters of one pool, all together: they share its endpoints' slots.

What engines have is asked at each look; what of it is ours is in the record. An adapter that nobody recorded is never
unloaded.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_kube.errors import RefusedError
from poolpilot_kube.names import OUR_GROUP, POOL_GROUP
from poolpilot_operator.definitions import AGAIN_S, CONDITION
from poolpilot_operator.lora.engines import Endpoint, EngineError, Engines, Found
from poolpilot_operator.lora.followed import FollowedPods, endpoints_of
from poolpilot_operator.lora.placement import Place, Plan, Site, Wish, planned
from poolpilot_operator.lora.record import Loaded, manifest, read, record_key
from poolpilot_operator.lora.status import EndpointState, refused, status
from poolpilot_operator.models import ADAPTERS, LoraAdapter
from poolpilot_operator.writer import ForeignError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from poolpilot_kube.objects import InferencePool, Key
    from poolpilot_operator.world import World

log: Final = logging.getLogger(__name__)

API_VERSION: Final = f"{OUR_GROUP}/v1alpha1"
LOOK_S: Final = 30.0
"""How often engines are asked: one that began anew has forgotten its adapters, and no watch tells."""
_AT_ONCE: Final = 8
_SYNC_S: Final = 10.0
_OTHERS_S: Final = 300.0


class _Seen(msgspec.Struct):
    """An endpoint at this look; `found` is None where it could not be asked."""

    endpoint: Endpoint
    found: Found | None = None
    problem: str = ""


class AdapterReconciler:
    """For all pools; a key is that of a pool."""

    def __init__(
        self,
        world: World,
        followed: FollowedPods,
        engines: Engines,
        demand: Callable[[], Awaitable[Mapping[str, float]]],
        look_s: float = LOOK_S,
    ) -> None:
        """`demand`: requests a second for each model, of late."""
        self.changes: Counter[str] = Counter()
        """load, unload and error, as often as they happened."""
        self._world = world
        self._followed = followed
        self._engines = engines
        self._demand = demand
        self._look_s = look_s

    async def reconcile(self, key: Key) -> float | None:
        """Returns after how many seconds to look again. Raises KubeError or BusyError."""
        world = self._world
        adapters = [one for one in world.adapters.filed(("pool", *key)) if one.metadata.deletion_timestamp is None]
        pool = world.pools.get(key)
        if pool is None:
            # Its record goes with it, and so do its pods or the reason to change them.
            self._followed.leave(key)
            for one in adapters:
                text = f"spec.poolRef: there is no InferencePool {key[1]} in namespace {key[0]}"
                await self._report(one, refused(one, "PoolNotFound", text, world.now()))
            return AGAIN_S if world.writer.definitions.unknown("LoraAdapter") else None
        record = self._recorded(key)
        if record is None:
            # Another operator brings the adapters of this pool.
            self._followed.leave(key)
            return _OTHERS_S
        if not adapters and not record:
            self._followed.leave(key)
            return None
        adapters = await self._accepted(adapters)
        watcher = self._followed.of(pool)
        try:
            async with asyncio.timeout(_SYNC_S):
                await watcher.synced.wait()
        except TimeoutError:
            return 1.0
        ports = [one.number for one in pool.spec.target_ports]
        endpoints = endpoints_of(list(watcher.objects.values()), ports)
        tokens = {one.adapter: await self._token(one) for one in adapters}
        any_token = next((token for token in tokens.values() if token), None)
        seen = await self._looked(endpoints, any_token)
        # Pods that are gone took their adapters along; a pod that is not ready may come back with them.
        alive = {pod.metadata.uid for pod in watcher.objects.values()}
        record = {name: {place for place in places if place.uid in alive} for name, places in record.items()}
        demand = await self._demand()
        sites = [self._site(one, record) for one in seen.values()]
        plan = planned(sites, [self._wish(one, demand) for one in adapters], record)
        try:
            states = await self._changed(pool, adapters, seen, record, plan, tokens)
        except ForeignError as error:
            log.info("adapters of InferencePool %s/%s are left alone: %s", *key, error)
            return _OTHERS_S
        for one in adapters:
            mine = [state for name, state in states if name == one.adapter]
            await self._report(one, status(one, plan.wanted[one.adapter], mine, world.now(), _short(one, plan)))
        return self._look_s if adapters or any(record.values()) else None

    # ---- what is there

    async def _accepted(self, adapters: list[LoraAdapter]) -> list[LoraAdapter]:
        """Those that can be placed; the others are told why not."""
        taken: set[str] = set()
        found: list[LoraAdapter] = []
        for one in sorted(adapters, key=lambda it: (it.metadata.creation_timestamp or "", it.metadata.name)):
            ref, problem = one.spec.pool_ref, None
            if (ref.group, ref.kind) != (POOL_GROUP, "InferencePool"):
                text = f"spec.poolRef is a {ref.kind} of {ref.group or 'the core group'}; allowed is InferencePool"
                problem = "PoolRefUnsupported", f"{text} of {POOL_GROUP}"
            elif one.adapter in taken:
                problem = "NameTaken", f"an older LoraAdapter of this pool already has the name {one.adapter!r}"
            if problem is not None:
                await self._report(one, refused(one, *problem, self._world.now()))
            else:
                taken.add(one.adapter)
                found.append(one)
        return found

    def _recorded(self, key: Key) -> Loaded | None:
        """None where the record is another operator's."""
        writer = self._world.writer
        found = writer.known("ConfigMap", record_key(key))
        return None if found is not None and not writer.ours(found) else read(found)

    async def _looked(self, endpoints: list[Endpoint], token: str | None) -> dict[Place, _Seen]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(one: Endpoint) -> _Seen:
            async with limit:
                try:
                    return _Seen(one, await self._engines.look(one, token))
                except EngineError as error:
                    return _Seen(one, None, str(error))

        return {one.endpoint.place: one for one in await asyncio.gather(*map(look, endpoints))}

    def _site(self, one: _Seen, record: Loaded) -> Site:
        place, found = one.endpoint.place, one.found
        if found is None:
            return Site(place, None)
        mine = {name for name, places in record.items() if place in places}
        return Site(place, frozenset(found.models), found.slots, len(found.adapters - mine))

    def _wish(self, one: LoraAdapter, demand: Mapping[str, float]) -> Wish:
        spec = one.spec
        return Wish(
            one.adapter,
            spec.endpoints,
            spec.pinned,
            spec.base_model,
            demand.get(one.adapter, 0.0),
            one.metadata.creation_timestamp or "",
        )

    async def _token(self, one: LoraAdapter) -> str | None:
        credentials = one.spec.engine_credentials
        if credentials is None:
            return None
        ref = credentials.secret_ref
        found = await self._world.writer.read("Secret", (one.metadata.namespace, ref.name))
        text = ((found.data or {}) if found is not None else {}).get(ref.key or "token")
        if text is None:
            what = f"has no key {ref.key or 'token'!r}" if found is not None else "does not exist"
            await self._warn(one, "SecretMissing", f"spec.engineCredentials: Secret {ref.name} {what}")
            return None
        return base64.b64decode(text).decode("utf-8", "replace").strip()

    # ---- what is changed

    async def _changed(
        self,
        pool: InferencePool,
        adapters: list[LoraAdapter],
        seen: dict[Place, _Seen],
        record: Loaded,
        plan: Plan,
        tokens: Mapping[str, str | None],
    ) -> list[tuple[str, EndpointState]]:
        """Unloads, then loads; returns what came of each (adapter, endpoint)."""
        states: list[tuple[str, EndpointState]] = []
        any_token = next((token for token in tokens.values() if token), None)
        for name, places in sorted(record.items()):
            for place in sorted(places - set(plan.places.get(name, ()))):
                at = seen.get(place)
                if at is None:
                    # Its pod is not ready: it is asked when it is again.
                    continue
                state = await self._unload(name, at, tokens.get(name) or any_token)
                if state is None:
                    record[name].discard(place)
                else:
                    states.append((name, state))
        by_name = {one.adapter: one for one in adapters}
        wanted = [(by_name[name], seen[place]) for name, places in sorted(plan.places.items()) for place in places]
        # Said before it is done.
        for one, at in wanted:
            if at.found is not None and one.adapter not in at.found.models:
                record.setdefault(one.adapter, set()).add(at.endpoint.place)
        await self._keep(pool, record)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def bring(one: LoraAdapter, at: _Seen) -> tuple[str, EndpointState]:
            async with limit:
                return one.adapter, await self._load(one, at, tokens[one.adapter])

        states += await asyncio.gather(*(bring(one, at) for one, at in wanted))
        return states

    async def _load(self, one: LoraAdapter, at: _Seen, token: str | None) -> EndpointState:
        pod, port = at.endpoint.pod, at.endpoint.place.port
        if at.found is None:
            return EndpointState(pod, port, "Pending", at.problem)
        if one.adapter in at.found.models:
            if at.found.models[one.adapter] is None:
                text = f"the engine's base model is called {one.adapter!r} too"
                return EndpointState(pod, port, "Failed", text)
            return EndpointState(pod, port, "Loaded")
        try:
            await self._engines.load(at.endpoint, one.adapter, one.spec.source.where, token)
            # An engine may say yes before it answers to the name.
            found = await self._engines.look(at.endpoint, token)
        except EngineError as error:
            self.changes["error"] += 1
            await self._warn(one, "LoadFailed", f"{pod}:{port}: {error}")
            return EndpointState(pod, port, "Failed", str(error), error.off)
        self.changes["load"] += 1
        if one.adapter not in found.models:
            return EndpointState(pod, port, "Pending", "loaded, and not in /v1/models yet")
        return EndpointState(pod, port, "Loaded")

    async def _unload(self, name: str, at: _Seen, token: str | None) -> EndpointState | None:
        """None where it is gone."""
        pod, port = at.endpoint.pod, at.endpoint.place.port
        if at.found is not None and name not in at.found.models:
            return None
        try:
            await self._engines.unload(at.endpoint, name, token)
        except EngineError as error:
            self.changes["error"] += 1
            return EndpointState(pod, port, "Unloading", str(error))
        self.changes["unload"] += 1
        return None

    async def _keep(self, pool: InferencePool, record: Loaded) -> None:
        writer, key = self._world.writer, record_key(pool.key)
        live = writer.known("ConfigMap", key)
        if any(record.values()):
            await writer.ensure(manifest(pool, record))
        elif live is not None and writer.ours(live):
            await writer.delete("ConfigMap", live)

    # ---- what is said

    async def _warn(self, one: LoraAdapter, reason: str, message: str) -> None:
        await self._world.events.say(one, API_VERSION, "LoraAdapter", reason, message, warning=True)

    async def _report(self, one: LoraAdapter, wanted: dict[str, Any]) -> None:
        world = self._world
        current = world.adapters.get(one.key)
        if current is None:
            return
        before, definitions = current.status or {}, world.writer.definitions
        wanted = definitions.fitted("LoraAdapter", wanted, before, one.metadata.generation, world.now())
        if definitions.unknown("LoraAdapter"):
            await self._warn(one, CONDITION, definitions.message("LoraAdapter"))
        if all((before.get(name) or None) == (value or None) for name, value in wanted.items()):
            return
        try:
            world.adapters.wrote(one.key, await world.writer.status(ADAPTERS, one.key, "LoraAdapter", wanted))
        except RefusedError as error:
            if error.status != 404:
                raise


def _short(one: LoraAdapter, plan: Plan) -> str:
    """Why it is on fewer endpoints than it asks for; empty if it is not."""
    placed, wanted = len(plan.places[one.adapter]), plan.wanted[one.adapter]
    if placed >= wanted:
        return ""
    return f"there is room on {placed} of {wanted} endpoints: every slot of the others is taken"
