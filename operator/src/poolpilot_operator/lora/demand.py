"""Requests a second for each model, from what picker pods count. For placing adapters: half a minute is soon enough."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_kube.objects import Pod

EVERY_S: Final = 30.0
_HALF_LIFE_S: Final = 300.0
"""Of what was long ago: a short burst does not move adapters."""
_LIMIT_S: Final = 10.0
_MOST_BYTES: Final = 64 * 2**20
_LINE: Final = re.compile(
    rb'^llm_d_epp_request_total\{[^\n]*?target_model_name="((?:[^"\\\n]|\\.)*)"[^\n]*\} (\S+)', re.MULTILINE
)


class Demand:
    """Of all models; asked for lazily, by whoever places adapters."""

    def __init__(
        self,
        pods: Callable[[], list[Pod]],
        url_of: Callable[[Pod], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pods`: the picker pods there are."""
        self._pods = pods
        self._url_of = url_of
        self._clock = clock
        self._counts: dict[str, dict[str, float]] = {}
        """By pod's UID, then by model."""
        self._rates: dict[str, float] = {}
        self._asked_s: float | None = None
        self._session: aiohttp.ClientSession | None = None

    async def rates(self) -> Mapping[str, float]:
        """By model. A pod that cannot be asked counts as before, with nothing added."""
        now = self._clock()
        if self._asked_s is not None and now - self._asked_s < EVERY_S:
            return self._rates
        elapsed, self._asked_s = (now - self._asked_s if self._asked_s is not None else None), now
        added: dict[str, float] = {}
        pods = self._pods()
        for pod in pods:
            counts = await self._read(pod)
            if counts is None:
                continue
            before = self._counts.get(pod.metadata.uid)
            self._counts[pod.metadata.uid] = counts
            for model, count in counts.items() if before is not None else ():
                # A counter that fell began anew.
                known = (before or {}).get(model, 0.0)
                added[model] = added.get(model, 0.0) + (count - known if count >= known else count)
        alive = {pod.metadata.uid for pod in pods}
        self._counts = {uid: counts for uid, counts in self._counts.items() if uid in alive}
        if elapsed:
            kept = 0.5 ** (elapsed / _HALF_LIFE_S)
            models = self._rates.keys() | added.keys()
            rates = {
                model: kept * self._rates.get(model, 0.0) + (1.0 - kept) * added.get(model, 0.0) / elapsed
                for model in models
            }
            self._rates = {model: rate for model, rate in rates.items() if rate > 1e-6}
        return self._rates

    async def close(self) -> None:
        """Ends its connections."""
        if self._session is not None:
            await self._session.close()

    async def _read(self, pod: Pod) -> dict[str, float] | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S, sock_connect=2.0))
        try:
            async with self._session.get(f"{self._url_of(pod)}/metrics", allow_redirects=False) as answer:
                page = bytearray()
                async for chunk in answer.content.iter_any():
                    page += chunk
                    if len(page) > _MOST_BYTES:
                        return None
                if answer.status != 200:
                    return None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        counts: dict[str, float] = {}
        for name, value in _LINE.findall(bytes(page)):
            model = name.decode("utf-8", "replace").replace('\\"', '"').replace("\\\\", "\\")
            counts[model] = counts.get(model, 0.0) + float(value)
        return counts
