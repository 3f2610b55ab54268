"""A watch behind a proxy that cuts, silences, refuses, repeats and loses: what it knows of a real API server holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from api_faults import FaultProxy, fault_proxy, plain_access
from extproc_client import WAIT_S
from poolpilot_kube.api import KubeApi
from poolpilot_kube.objects import Object, Resource
from poolpilot_kube.watch import Change, Watcher, WatchSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class CountedMap(Object, frozen=True):
    """A kind that most of the server's objects are not."""

    data: dict[str, int] = msgspec.field(default_factory=dict)


CONFIG_MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", ConfigMap)
FAST = WatchSettings(first_backoff_s=0.005, most_backoff_s=0.05)
EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


class Follower:
    """A running watcher with all it reported."""

    def __init__(self, api: KubeApi, namespace: str, **wanted: Any) -> None:
        self.heard: list[tuple[str, str | None, str | None]] = []
        """(name, x of the old, x of the new)."""
        self.watcher: Watcher[ConfigMap] = Watcher(
            api, CONFIG_MAPS, self._take, namespace=namespace, **{"settings": FAST, "labels": "test", **wanted}
        )

    def _take(self, changes: Sequence[Change[ConfigMap]]) -> None:
        for one in changes:
            old, new = (state.data["x"] if state is not None else None for state in (one.old, one.new))
            self.heard.append((one.key[1], old, new))

    @property
    def known(self) -> dict[str, str]:
        return {name: one.data["x"] for (_, name), one in self.watcher.objects.items()}

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not check():
                await asyncio.sleep(0.005)


class World:
    """A namespace, a hand in it and a proxy before it."""

    def __init__(self, api: Api, proxy: FaultProxy, namespace: str) -> None:
        self.api = api
        self.proxy = proxy
        self.namespace = namespace

    def map(self, name: str, **data: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self.namespace, "labels": {"test": ""}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    async def put(self, name: str, x: str = "1") -> None:
        await self.api.apply(self.map(name, x=x))

    async def remove(self, name: str) -> None:
        await self.api.delete(self.map(name))

    @contextlib.asynccontextmanager
    async def followed(self, **wanted: Any) -> AsyncIterator[Follower]:
        async with KubeApi(plain_access(self.proxy)) as api:
            follower = Follower(api, self.namespace, **wanted)
            running = asyncio.create_task(follower.watcher.run())
            try:
                yield follower
                assert not running.done()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def watched(self, follower: Follower) -> None:
        """Until all is listed and a watch is open."""
        await follower.watcher.synced.wait()
        await self.proxy.until(lambda: self.proxy.open_watches > 0)


@pytest_asyncio.fixture(loop_scope="module")
async def world(plane: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    name = f"ns-{abs(hash(request.node.name)) % 10**8}"
    async with plane.api() as api, fault_proxy(plane.kubeconfig) as proxy:
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield World(api, proxy, name)


async def test_lists_then_follows(world: World) -> None:
    await world.put("a")
    async with world.followed() as follower:
        await world.watched(follower)
        assert follower.heard == [("a", None, "1")]
        await world.put("b")
        await world.put("a", "2")
        await world.remove("b")
        await follower.until(lambda: len(follower.heard) == 4)
        assert follower.heard[1:] == [("b", None, "1"), ("a", "1", "2"), ("b", "1", None)]
        assert follower.known == {"a": "2"}
    [asked] = world.proxy.watches
    assert asked.query["allowWatchBookmarks"] == "true"
    assert 240 <= int(asked.query["timeoutSeconds"]) <= 300
    assert {one.method for one in world.proxy.asked} == {"GET"}


async def test_long_lists_come_in_pages(world: World) -> None:
    for number in range(7):
        await world.put(f"m{number}")
    async with world.followed(settings=WatchSettings(page=3)) as follower:
        await world.watched(follower)
        assert len(follower.known) == 7
        assert len(world.proxy.lists) == 3


async def test_a_cut_watch_is_resumed_where_it_was(world: World) -> None:
    await world.put("a")
    async with world.followed() as follower:
        await world.watched(follower)
        await world.put("b")
        await follower.until(lambda: "b" in follower.known)
        seen = follower.watcher.objects[world.namespace, "b"].metadata.resource_version
        await world.proxy.cut()
        await world.remove("a")
        await world.put("c")
        await follower.until(lambda: follower.known == {"b": "1", "c": "1"})
        assert world.proxy.watches[1].query["resourceVersion"] == seen
        assert len(world.proxy.lists) == 1, "nothing had to be listed again"
        assert follower.heard[2:] == [("a", "1", None), ("c", None, "1")]


@pytest.mark.parametrize("how", ["in the stream", "as a status"])
async def test_what_vanished_while_a_version_expired_is_reported(world: World, how: str) -> None:
    await world.put("stays")
    await world.put("vanishes")
    await world.put("changes")
    async with world.followed() as follower:
        await world.watched(follower)
        del follower.heard[:]
        world.proxy.transform = lambda line: []
        world.proxy.held = asyncio.Event()
        await world.remove("vanishes")
        await world.put("changes", "2")
        await world.put("comes")
        if how == "in the stream":
            world.proxy.inject(EXPIRED)
        else:
            world.proxy.refusals.append((410, {}))
            await world.proxy.cut()
        world.proxy.transform = lambda line: [line]
        world.proxy.held.set()
        world.proxy.held = None
        await follower.until(lambda: len(follower.heard) == 3)
        assert sorted(follower.heard) == [("changes", "1", "2"), ("comes", None, "1"), ("vanishes", "1", None)]
        assert len(world.proxy.lists) == 2
        assert follower.watcher.status.failures == (1 if how == "in the stream" else 2)


async def test_a_server_that_refuses_is_asked_seldom_and_heeded(world: World) -> None:
    await world.put("a")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    wanted = WatchSettings(first_backoff_s=1.0, most_backoff_s=16.0)
    async with world.followed(settings=wanted, sleep=sleep) as follower:
        await world.watched(follower)
        world.proxy.refuse_watches = (503, {})
        await world.proxy.cut()
        await follower.until(lambda: len(waits) >= 9)
        world.proxy.refuse_watches = (429, {"retry-after": "7"})
        refused = len(waits)
        await follower.until(lambda: len(waits) >= refused + 3)
        assert "429" in follower.watcher.status.problem or "503" in follower.watcher.status.problem
        assert follower.watcher.status.failing_since_s is not None
        world.proxy.refuse_watches = None
        await world.put("b")
        await follower.until(lambda: "b" in follower.known)
        assert follower.watcher.status.problem == "" and follower.watcher.status.failing_since_s is None
    for step, wait in enumerate(waits[:7]):
        most = min(2.0**step, 16.0)
        assert most / 2 <= wait <= most
    assert all(7.0 + 8.0 <= wait <= 7.0 + 16.0 for wait in waits[refused + 1 : refused + 3])
    assert len(world.proxy.lists) == 1, "being refused does not mean that anything was missed"


async def test_a_watch_that_expires_at_once_each_time_is_not_asked_all_the_time(world: World) -> None:
    """A list works, the watch behind it never: every try costs the server a list."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    world.proxy.refuse_watches = (410, {})
    wanted = WatchSettings(first_backoff_s=1.0, most_backoff_s=16.0)
    async with world.followed(settings=wanted, sleep=sleep) as follower:
        await follower.until(lambda: len(waits) >= 6)
    assert [wait >= 2.0**step / 2 for step, wait in enumerate(waits[:5])] == [True] * 5


async def test_watches_that_end_without_a_word_are_not_asked_all_the_time(world: World) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    world.proxy.ends = True
    wanted = WatchSettings(first_backoff_s=1.0, most_backoff_s=16.0)
    async with world.followed(settings=wanted, sleep=sleep) as follower:
        await follower.until(lambda: len(waits) >= 5)
        assert follower.watcher.status.lists == 1
        world.proxy.ends = False
        await world.put("a")
        await follower.until(lambda: follower.known == {"a": "1"})
    assert [wait >= 2.0**step / 2 for step, wait in enumerate(waits[:5])] == [True] * 5


async def test_a_silent_watch_is_given_up(world: World) -> None:
    await world.put("a")
    async with world.followed(settings=WatchSettings(silence_s=0.2, first_backoff_s=0.005)) as follower:
        await world.watched(follower)
        world.proxy.silent = True
        await world.put("b")
        await world.proxy.until(lambda: len(world.proxy.watches) >= 3)
        assert "b" not in follower.known
        world.proxy.silent = False
        await follower.until(lambda: "b" in follower.known)
        assert len(world.proxy.lists) == 1


async def test_slow_answers_and_a_server_that_does_not_answer(world: World) -> None:
    await world.put("a")
    world.proxy.held = asyncio.Event()
    async with KubeApi(plain_access(world.proxy), timeout_s=0.2) as api:
        follower = Follower(api, world.namespace)
        running = asyncio.create_task(follower.watcher.run())
        await world.proxy.until(lambda: len(world.proxy.lists) >= 2)
        assert "time-out" in follower.watcher.status.problem
        assert not follower.watcher.synced.is_set()
        world.proxy.held.set()
        world.proxy.held = None
        await follower.until(lambda: follower.known == {"a": "1"})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_repeated_and_overtaken_events_change_nothing(world: World) -> None:
    held: list[bytes] = []

    def repeat(line: bytes) -> list[bytes]:
        held.append(line)
        # Every event again behind the one after it.
        return [line, line, *held[-2:-1]]

    async with world.followed() as follower:
        await world.watched(follower)
        world.proxy.transform = repeat
        await world.put("a")
        await world.put("b")
        await world.put("a", "2")
        await world.remove("a")
        await world.put("c")
        await follower.until(lambda: "c" in follower.known)
        assert follower.heard == [
            ("a", None, "1"),
            ("b", None, "1"),
            ("a", "1", "2"),
            ("a", "2", None),
            ("c", None, "1"),
        ]
        assert follower.known == {"b": "1", "c": "1"}, "an old event of it does not bring a back"
        await follower.until(lambda: follower.watcher.status.stale >= 8)


async def test_a_deletion_that_was_lost_is_found_by_the_next_list(world: World) -> None:
    await world.put("a")
    await world.put("ghost")
    async with world.followed(settings=WatchSettings(relist_s=0.3, silence_s=0.1, first_backoff_s=0.005)) as follower:
        await world.watched(follower)
        world.proxy.transform = lambda line: [] if json.loads(line)["type"] == "DELETED" else [line]
        await world.remove("ghost")
        await follower.until(lambda: follower.known == {"a": "1"})
        assert follower.heard[-1] == ("ghost", "1", None)


async def test_what_cannot_be_read_is_passed_over_and_what_was_known_stays(world: World) -> None:
    await world.put("a")
    await world.put("b")
    async with world.followed() as follower:
        await world.watched(follower)
        follower.watcher._decode = msgspec.json.Decoder(CountedMap).decode  # type: ignore[assignment]
        await world.put("a", "2")
        await follower.until(lambda: follower.watcher.status.undecodable == 1)
        world.proxy.inject(EXPIRED)
        await follower.until(lambda: follower.watcher.status.lists == 2)
        assert follower.known == {"a": "1", "b": "1"}


async def test_garbage_in_a_watch_means_a_new_list(world: World) -> None:
    await world.put("a")
    async with world.followed() as follower:
        await world.watched(follower)
        world.proxy.transform = lambda line: [b"<html>\n"]
        await world.put("b")
        await follower.until(lambda: follower.watcher.status.lists == 2)
        world.proxy.transform = lambda line: [line]
        await follower.until(lambda: follower.known == {"a": "1", "b": "1"})


async def test_the_api_server_restarts(world: World, plane: ControlPlane) -> None:
    await world.put("a")
    async with world.followed() as follower:
        await world.watched(follower)
        await plane.apiserver.stop(0.0)
        await follower.until(lambda: follower.watcher.status.failures > 2)
        assert follower.known == {"a": "1"}, "what is known stays known"
        plane.apiserver.start()
        await plane.ready()
        await world.put("a", "2")
        await follower.until(lambda: follower.known == {"a": "2"})


async def test_without_the_right_nothing_is_known_and_the_reason_is(plane: ControlPlane, world: World) -> None:
    async with fault_proxy(plane.kubeconfig_of("stranger")) as proxy, KubeApi(plain_access(proxy)) as api:
        follower = Follower(api, world.namespace)
        running = asyncio.create_task(follower.watcher.run())
        await proxy.until(lambda: len(proxy.asked) >= 2)
        assert '403: configmaps is forbidden: User "stranger"' in follower.watcher.status.problem
        assert not follower.watcher.status.synced
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
