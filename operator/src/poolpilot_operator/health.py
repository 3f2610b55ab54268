"""What picker pods say of their pools, asked of each pod by long polls of /pools.

A pod that cannot be asked has not lost its pools: the operator may be the one who is cut off. What it said last stays
until it says something else or is gone; of a pod that was never heard, nothing is known (None).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from poolpilot_kube.backoff import Backoff
from poolpilot_kube.names import ADMIN_PORT, PICKER_NAMESPACE_LABEL, POOLS_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_kube.objects import Key, Pod

log: Final = logging.getLogger(__name__)

_WAIT_S: Final = 25
_TIMEOUT_S: Final = 35.0
_FIRST_RETRY_S: Final = 0.2
_MOST_RETRY_S: Final = 5.0
_PAUSE_S: Final = 0.1
"""After an answer: many pools that come together are told together."""
_MOST_BYTES: Final = 32 * 2**20
_MOST_REFUSAL: Final = 512


class PoolHealth(msgspec.Struct, frozen=True):
    """One entry of /pools."""

    namespace: str
    name: str
    port: int = 0
    serving: bool = False
    terminating: bool = False
    """Not serving any more, but still taking what comes: better than nobody."""
    reason: str = ""
    endpoints: int | None = None
    """None of a picker that does not say. Only whether there are any is of interest: 1 stands for all numbers."""


class _Answer(msgspec.Struct, frozen=True):
    version: int | str
    pools: tuple[PoolHealth, ...] = ()
    configuration: str = ""


class PodHealth:
    """Of one pod. `pools` is None until it has been heard."""

    def __init__(self) -> None:
        self.pools: dict[Key, PoolHealth] | None = None
        self.problem = ""
        self.refusal = ""
        """Why its newest configuration is not in force."""
        self.ready = False
        """As the kubelet has it."""
        self.became_ready = asyncio.Event()


def admin_url(pod: Pod) -> str:
    """Where a picker pod answers."""
    ip = pod.status.pod_ip
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{ADMIN_PORT}"


class PickerHealth:
    """Of all picker pods, by (UID, address)."""

    def __init__(
        self,
        changed: Callable[[Pod, set[Key]], None],
        *,
        refused: Callable[[Pod], None] = lambda _: None,
        url_of: Callable[[Pod], str] = admin_url,
        rng: random.Random | None = None,
        wait_s: int = _WAIT_S,
        first_retry_s: float = _FIRST_RETRY_S,
    ) -> None:
        """`changed` hears of the pools of which a pod says something else now, also when it cannot be asked.

        `refused` hears of a pod that has refused a configuration, or refuses none any more.
        """
        self._changed = changed
        self._refused = refused
        self._url_of = url_of
        self._rng = rng or random.Random()
        self._wait_s = wait_s
        self._first_retry_s = first_retry_s
        self._pods: dict[tuple[str, str], PodHealth] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None

    def of(self, pod: Pod) -> PodHealth | None:
        """What is known of a pod; None if it is not followed."""
        return self._pods.get(_key(pod))

    @property
    def pods(self) -> Mapping[tuple[str, str], PodHealth]:
        """All that are followed."""
        return self._pods

    def follow(self, pod: Pod) -> None:
        """From now on, if not yet; pods without an address are not.

        To be told of each change of a pod: one that has become ready is asked at once. Its Deployment ends another one
        for it, and where it is not known yet that leaves nobody in the slices.
        """
        key = _key(pod)
        if not pod.status.pod_ip:
            return
        health = self._pods.get(key)
        if health is None:
            health = self._pods[key] = PodHealth()
            self._tasks[key] = asyncio.create_task(self._poll(pod, health))
        elif pod.ready and not health.ready:
            health.became_ready.set()
        health.ready = pod.ready

    def leave(self, pod: Pod) -> None:
        """The pod, or its address, is gone."""
        key = _key(pod)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        health = self._pods.pop(key, None)
        if health is not None:
            self._tell(pod, set(health.pools or ()))

    async def heard_all(self) -> None:
        """Returns when every pod that is followed has been asked once, whatever came of it."""
        while True:
            self._news.clear()
            if all(one.pools is not None or one.problem for one in self._pods.values()):
                return
            await self._news.wait()

    async def close(self) -> None:
        """Ends all polls."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if self._session is not None:
            await self._session.close()

    async def _poll(self, pod: Pod, health: PodHealth) -> None:
        url, version, backoff = (
            f"{self._url_of(pod)}{POOLS_PATH}",
            None,
            Backoff(self._rng, self._first_retry_s, _MOST_RETRY_S),
        )
        while True:
            try:
                answer = await self._ask(url, version)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                problem = f"{url}: {error or type(error).__name__}"
                if problem != health.problem:
                    log.info("picker pod %s/%s: %s", *pod.key, problem)
                    health.problem = problem
                    self._tell(pod, set())
                # The next answer must tell everything: the pod may have begun anew.
                version = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff.after_failure()):
                        await health.became_ready.wait()
                        backoff.reset()
                health.became_ready.clear()
                continue
            backoff.reset()
            version, health.problem = str(answer.version), ""
            before = health.pools
            health.pools = {(one.namespace, one.name): _coarse(one) for one in answer.pools if _may_tell(pod, one)}
            differing = {key for key, one in health.pools.items() if before is None or before.get(key) != one}
            differing |= set(before or ()) - set(health.pools)
            refusal, health.refusal = health.refusal, answer.configuration[:_MOST_REFUSAL]
            if refusal != health.refusal:
                self._refused(pod)
            if differing or before is None:
                self._tell(pod, differing)
            await asyncio.sleep(_PAUSE_S)

    def _tell(self, pod: Pod, pools: set[Key]) -> None:
        self._news.set()
        self._changed(pod, pools)

    async def _ask(self, url: str, version: str | None) -> _Answer:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5.0))
        params = {} if version is None else {"since": version, "wait": str(self._wait_s)}
        async with self._session.get(url, params=params, allow_redirects=False) as answer:
            if answer.status != 200:
                raise aiohttp.ClientError(f"status {answer.status}")
            body = await answer.content.read(_MOST_BYTES)
            while not answer.content.at_eof() and len(body) < _MOST_BYTES:
                body += await answer.content.read(_MOST_BYTES - len(body))
            return msgspec.json.decode(body, type=_Answer)


def _coarse(one: PoolHealth) -> PoolHealth:
    """So that a pool that is scaled, but not to or from zero, is not looked at anew."""
    return msgspec.structs.replace(one, endpoints=1) if one.endpoints else one


def _may_tell(pod: Pod, pool: PoolHealth) -> bool:
    """A pod beside the pools that it serves tells nothing of those of other namespaces."""
    namespace = pod.metadata.namespace
    return pool.namespace == namespace or pod.metadata.labels.get(PICKER_NAMESPACE_LABEL) == namespace


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.uid, pod.status.pod_ip
