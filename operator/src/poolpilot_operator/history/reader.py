"""Asks for the history of every served pool, one after the other, and leaves advice for the Pickers' statuses."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.errors import KubeError
from poolpilot_kube.objects import PODS, Object
from poolpilot_operator.conditions import holds
from poolpilot_operator.history.advice import advice
from poolpilot_operator.history.prometheus import MOST_PODS, HistoryError, Prometheus
from poolpilot_operator.world import Counsel

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_kube.objects import InferencePool, Key
    from poolpilot_operator.world import World

log: Final = logging.getLogger(__name__)

EVERY_S: Final = 600.0
_FIRST_S: Final = 30.0
"""After leading begins: what is urgent comes first."""


class _Pods(msgspec.Struct):
    items: list[Object] = []


class HistoryReader:
    """Runs while the operator leads."""

    def __init__(
        self, world: World, prometheus: Prometheus, changed: Callable[[Key], None], every_s: float = EVERY_S
    ) -> None:
        """`changed` hears of a Picker for which there is other advice."""
        self._world = world
        self._prometheus = prometheus
        self._changed = changed
        self._every_s = every_s

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.sleep(min(_FIRST_S, self._every_s))
        while True:
            await self.read()
            await asyncio.sleep(self._every_s)

    async def read(self) -> None:
        """Once for all pools. Never raises for what Prometheus or the API server does."""
        world = self._world
        found: dict[Key, list[dict[str, str]]] = {picker.key: [] for picker in world.pickers}
        problem = ""
        try:
            await asyncio.to_thread(self._prometheus.ask)
        except HistoryError as error:
            problem = str(error)
        for key, state in sorted(world.states.items()):
            pool = world.pools.get(key)
            if state.picker not in found or pool is None or problem:
                continue
            try:
                facts = await asyncio.to_thread(self._prometheus.facts, key[0], await self._pods(pool))
            except (HistoryError, KubeError, msgspec.MsgspecError) as error:
                problem = str(error)
                continue
            found[state.picker] += [
                {"namespace": key[0], "name": key[1], "topic": one.topic, "message": one.message}
                for one in advice(facts, self._prometheus.window)
            ]
        if problem:
            log.warning("no history: %s", problem)
            condition = holds("MetricsHistoryAvailable", False, "PrometheusUnavailable", problem)
        else:
            condition = holds("MetricsHistoryAvailable", True, "Available", "")
        for picker, lines in found.items():
            before = world.counsel.get(picker)
            # What was advised last stays while there is nothing to ask.
            kept = before.lines if problem and before is not None else tuple(lines)
            counsel = Counsel(condition, kept)
            if counsel != before:
                world.counsel[picker] = counsel
                self._changed(picker)

    async def _pods(self, pool: InferencePool) -> list[str]:
        params = {"labelSelector": str(pool.spec.selector), "limit": str(MOST_PODS)}
        listed = await self._world.api.get(PODS.path(pool.metadata.namespace), params)
        return [one.metadata.name for one in msgspec.json.decode(listed, type=_Pods).items]
