"""InferenceObjectives and InferenceModelRewrites from a real API server, of both groups, and behind faults."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from api_faults import FaultProxy, fault_proxy, plain_access
from control_planes import definitions
from extproc_client import WAIT_S
from kube_pods import Namespace
from poolpilot_kube.api import KubeApi
from poolpilot_kube.names import LEGACY_GROUP, ROUTER_GROUP
from poolpilot_kube.watch import WatchSettings
from poolpilot_picker.sources.pool_rules import RuleBook

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from poolpilot_kube.objects import Key
    from poolpilot_lab.control_plane.api import Api
    from poolpilot_lab.control_plane.cluster import ControlPlane
    from poolpilot_picker.requests import PoolRules

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAST = WatchSettings(first_backoff_s=0.005, most_backoff_s=0.05)


def kinds(group: str) -> list[dict[str, Any]]:
    """The CRDs of objectives and rewrites, in one of their groups."""
    found = [one for one in definitions() if one["spec"]["group"] == ROUTER_GROUP]
    for one in found:
        one["spec"]["group"] = group
        one["metadata"]["name"] = f"{one['spec']['names']['plural']}.{group}"
        one["metadata"].get("annotations", {}).update({"api-approved.kubernetes.io": "unapproved, for a test"})
    return copy.deepcopy(found)


@pytest_asyncio.fixture(loop_scope="module")
async def api(plane: ControlPlane) -> AsyncIterator[Api]:
    """Neither group is there."""
    async with plane.api() as one:
        yield one
        for group in (ROUTER_GROUP, LEGACY_GROUP):
            for kind in kinds(group):
                with contextlib.suppress(Exception):
                    await one.delete(kind)
        async with asyncio.timeout(WAIT_S):
            while {ROUTER_GROUP, LEGACY_GROUP} & set(str(await one.call("GET", "/apis")).split("'")):
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(plane.kubeconfig) as one:
        yield one


class Book:
    """A running RuleBook, for the pool `pool`."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.key = (namespace, "pool")
        self.heard: list[Collection[Key] | None] = []
        self.book = RuleBook(api, self.heard.append, namespace=namespace, settings=FAST)

    @property
    def rules(self) -> PoolRules:
        return self.book.rules({self.key})[self.key]

    def targets(self, model: str) -> set[str]:
        """Targets of a model, by draws all over."""
        exact = self.rules.exact.get(model, self.rules.generic)
        return {exact.at(share / 10).target for share in range(10)} if exact is not None else set()

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not check():
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(proxy: FaultProxy, namespace: str) -> AsyncIterator[Book]:
    async with KubeApi(plain_access(proxy)) as api:
        book = Book(api, namespace)
        task = asyncio.create_task(book.book.run())
        try:
            yield book
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def objective(group: str, namespace: str, name: str, priority: int | None, pool: str = "pool") -> dict[str, Any]:
    spec: dict[str, Any] = {"poolRef": {"name": pool}}
    if priority is not None:
        spec["priority"] = priority
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def rewrite(group: str, namespace: str, name: str, *rules: dict[str, Any], pool: str = "pool") -> dict[str, Any]:
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"poolRef": {"name": pool}, "rules": list(rules)},
    }


def rule(model: str | None, **targets: int) -> dict[str, Any]:
    made: dict[str, Any] = {"targets": [{"modelRewrite": name, "weight": weight} for name, weight in targets.items()]}
    if model is not None:
        made["matches"] = [{"model": {"type": "Exact", "value": model}}]
    return made


async def test_without_the_kinds_then_the_old_group_then_both(api: Api, proxy: FaultProxy) -> None:
    there = Namespace(api, "groups")
    await there.made()
    async with running(proxy, "groups") as book:
        await book.until(lambda: book.book.known)
        assert book.rules.priority("a") == 0 and not book.rules.rewrites
        assert book.book.problems == [], "that there are none is nothing wrong"
        await api.define(kinds(LEGACY_GROUP))
        await api.apply(objective(LEGACY_GROUP, "groups", "a", 3))
        await api.apply(rewrite(LEGACY_GROUP, "groups", "r", rule("m", old=1)))
        await book.until(lambda: book.rules.priority("a") == 3 and book.targets("m") == {"old"})
        await api.define(kinds(ROUTER_GROUP))
        await book.until(lambda: book.rules.priority("a") == 0 and not book.rules.rewrites)
        await api.apply(objective(ROUTER_GROUP, "groups", "a", 5))
        await api.apply(rewrite(ROUTER_GROUP, "groups", "r", rule("m", new=1)))
        await book.until(lambda: book.rules.priority("a") == 5 and book.targets("m") == {"new"})
        for kind in kinds(ROUTER_GROUP):
            await api.delete(kind)
        await book.until(lambda: book.rules.priority("a") == 3 and book.targets("m") == {"old"})
        assert book.heard and {one.method for one in proxy.asked} == {"GET"}


async def test_only_what_is_for_the_pool(api: Api, proxy: FaultProxy) -> None:
    there = Namespace(api, "mine")
    await there.made()
    await api.define(kinds(ROUTER_GROUP))
    group = ROUTER_GROUP
    async with running(proxy, "mine") as book:
        await proxy.until(lambda: proxy.open_watches >= 2)
        await api.apply(objective(group, "mine", "low", -1))
        await api.apply(objective(group, "mine", "unset", None))
        await api.apply(objective(group, "mine", "other", 9, pool="other"))
        foreign = objective(group, "mine", "foreign", 9)
        foreign["spec"]["poolRef"]["group"] = "example.com"
        await api.apply(foreign)
        await api.apply(rewrite(group, "mine", "r", rule("m", a=3, b=1), rule("m", late=1), rule(None, rest=1)))
        await api.apply(rewrite(group, "mine", "other", rule("n", x=1), pool="other"))
        await book.until(lambda: len(book.rules.priorities) == 2 and book.targets("m") == {"a", "b"})
        # What is for others has been heard too.
        await book.until(lambda: ("mine", "foreign") in book.book._objectives[0].watcher.objects)
        await book.until(lambda: ("mine", "other") in book.book._rewrites[0].watcher.objects)
        assert dict(book.rules.priorities) == {"low": -1, "unset": 0}
        assert book.targets("n") == {"rest"}
        await book.until(lambda: ("mine", "other") in {key for heard in book.heard for key in heard or ()})
        await api.delete(rewrite(group, "mine", "r"))
        await book.until(lambda: not book.rules.rewrites)


async def test_the_oldest_object_decides(api: Api, proxy: FaultProxy) -> None:
    there = Namespace(api, "age")
    await there.made()
    await api.define(kinds(ROUTER_GROUP))
    async with running(proxy, "age") as book:
        await api.apply(rewrite(ROUTER_GROUP, "age", "z-older", rule("m", older=1)))
        # Times have whole seconds; within one, names decide.
        first = await api.get(f"{ROUTER_GROUP}/v1alpha2", "InferenceModelRewrite", "z-older", "age")
        while True:
            await api.apply(rewrite(ROUTER_GROUP, "age", "a-younger", rule("m", younger=1)))
            second = await api.get(f"{ROUTER_GROUP}/v1alpha2", "InferenceModelRewrite", "a-younger", "age")
            if second["metadata"]["creationTimestamp"] > first["metadata"]["creationTimestamp"]:
                break
            await api.delete(rewrite(ROUTER_GROUP, "age", "a-younger"))
            await asyncio.sleep(0.05)

        def heard() -> bool:
            # Not one of those before it, which may be as old as the other.
            known = book.book._rewrites[0].watcher.objects.get(("age", "a-younger"))
            return known is not None and known.metadata.uid == second["metadata"]["uid"]

        await book.until(heard)
        assert book.targets("m") == {"older"}
        await api.delete(rewrite(ROUTER_GROUP, "age", "z-older"))
        await book.until(lambda: book.targets("m") == {"younger"})


async def test_faults_take_nothing_that_is_known(api: Api, proxy: FaultProxy) -> None:
    there = Namespace(api, "faults")
    await there.made()
    await api.define(kinds(ROUTER_GROUP))
    await api.apply(objective(ROUTER_GROUP, "faults", "a", 3))
    async with running(proxy, "faults") as book:
        await book.until(lambda: book.rules.priority("a") == 3)
        for status in (503, 403, 429):
            proxy.refuse_always = (status, {})
            await proxy.cut()
            asked = len(proxy.asked)
            await proxy.until(lambda: len(proxy.asked) > asked + 8)  # noqa: B023 - waited for here
            # Nine questions may all be those of the group that is not there.
            await book.until(lambda: bool(book.book.problems))
            assert book.rules.priority("a") == 3, status
            proxy.refuse_always = None
            await book.until(lambda: not book.book.problems)
        # The event of a deletion is lost, and the version to resume from has expired.
        await proxy.until(lambda: proxy.open_watches >= 2)
        proxy.transform = lambda line: []
        await api.delete(objective(ROUTER_GROUP, "faults", "a", 3))
        proxy.inject({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        proxy.transform = lambda line: [line]
        await book.until(lambda: book.rules.priority("a") == 0)


async def test_what_may_not_be_read_counts_as_not_there_and_is_told(api: Api, proxy: FaultProxy) -> None:
    there = Namespace(api, "rights")
    await there.made()
    await api.define(kinds(ROUTER_GROUP))
    await api.apply(objective(ROUTER_GROUP, "rights", "a", 3))
    proxy.refuse_always = (403, {})
    async with running(proxy, "rights") as book:
        await book.until(lambda: book.book.known)
        assert book.rules.priority("a") == 0
        assert len(book.book.problems) == 4 and all(": 403: " in one for one in book.book.problems)
        proxy.refuse_always = None
        await book.until(lambda: book.rules.priority("a") == 3)
