"""The Lease on a real API server: one leads, whatever happens to it or between it and the server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from api_faults import fault_proxy, plain_access
from operator_stage import eventually
from poolpilot_kube.access import from_kubeconfig
from poolpilot_kube.api import KubeApi
from poolpilot_operator.leadership import Lease, LeaseTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from operator_stage import Cluster
    from poolpilot_kube.access import Access
    from poolpilot_lab.control_plane.cluster import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT = LeaseTimes(lease_s=2.0, deadline_s=1.0, retry_s=0.1, call_s=0.5)


class Candidate:
    """One of several processes."""

    def __init__(
        self, access: Access, namespace: str, name: str, *, leaders: set[str], times: LeaseTimes = SHORT
    ) -> None:
        self.name, self.leaders = name, leaders
        self.most = 0
        self.turns: list[bool] = []
        """Whether it leads, each time that changed."""
        self._api = KubeApi(access)
        self.lease = Lease(self._api, namespace, "lease", name, self._changed, random.Random(name), times=times)
        self.task: asyncio.Task[None] | None = None

    def _changed(self, leading: bool) -> None:
        self.turns.append(leading)
        (self.leaders.add if leading else self.leaders.discard)(self.name)
        self.most = max(self.most, len(self.leaders))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Candidate]:
        async with self._api:
            self.task = asyncio.create_task(self.lease.run())
            try:
                yield self
            finally:
                self.task.cancel()
                await asyncio.gather(self.task, return_exceptions=True)

    async def leads(self) -> bool:
        return self.lease.leading


async def test_a_lease_that_a_release_brought_is_taken_and_stays_the_releases(
    plane: ControlPlane, cluster: Cluster, home: str
) -> None:
    meta = {"name": "lease", "namespace": home, "labels": {"a": "b"}, "annotations": {"c": "d"}}
    await cluster.api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta})
    one = Candidate(from_kubeconfig(plane.kubeconfig), home, "one", leaders=set())

    async def held() -> bool:
        lease = await cluster.get("coordination.k8s.io/v1", "Lease", home, "lease")
        assert lease is not None
        assert {name: lease["metadata"].get(name) for name in meta} == meta
        # Renewed at least once.
        return (
            lease["spec"].get("holderIdentity") == "one" and lease["spec"]["acquireTime"] < lease["spec"]["renewTime"]
        )

    async with one.running():
        await eventually(held)


async def test_one_of_several_leads_and_the_next_takes_over_at_once_when_it_ends_in_order(
    plane: ControlPlane, cluster: Cluster, home: str
) -> None:
    access, leaders = from_kubeconfig(plane.kubeconfig), set[str]()
    first, second, third = (Candidate(access, home, name, leaders=leaders) for name in ("a", "b", "c"))
    async with second.running(), third.running():
        async with first.running():
            await eventually(lambda: _one(leaders))
            [leader] = leaders
            candidates = {one.name: one for one in (first, second, third)}
            before = await cluster.get("coordination.k8s.io/v1", "Lease", home, "lease")
            assert before is not None
            assert before["spec"]["holderIdentity"] == leader
            task = candidates[leader].task
            assert task is not None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not candidates[leader].lease.leading
            await eventually(lambda: _one(leaders - {leader}))
            # Before the first gives it back, who may be the next.
            after = await cluster.get("coordination.k8s.io/v1", "Lease", home, "lease")
        assert after is not None
        # It was given back, then taken.
        assert after["spec"]["leaseTransitions"] == before["spec"]["leaseTransitions"] + 1
        assert after["spec"]["leaseDurationSeconds"] == 2
    assert max(one.most for one in (first, second, third)) == 1
    assert not leaders


async def test_a_leader_that_cannot_reach_the_server_stops_before_another_begins(
    plane: ControlPlane, home: str
) -> None:
    leaders = set[str]()
    async with fault_proxy(plane.kubeconfig) as proxy:
        cut_off = Candidate(plain_access(proxy), home, "a", leaders=leaders)
        other = Candidate(from_kubeconfig(plane.kubeconfig), home, "b", leaders=leaders)
        async with cut_off.running():
            await eventually(cut_off.leads)
            async with other.running():
                proxy.held = asyncio.Event()
                await eventually(other.leads)
                assert leaders == {"b"}
                proxy.held.set()
                # What it sent meanwhile arrives now and must not count.
                for _ in range(20):
                    await asyncio.sleep(0.05)
                    assert leaders == {"b"}
        assert max(cut_off.most, other.most) == 1


async def test_a_standby_takes_over_after_the_lease_and_at_most_two_tries(plane: ControlPlane, home: str) -> None:
    """docs/operations.md. The last renewal comes just after a try of the standby, which therefore sees it late."""
    now, times = 0.0, LeaseTimes()
    between_s = times.retry_s * 1.2
    leaders: list[bool] = []
    async with KubeApi(from_kubeconfig(plane.kubeconfig)) as api:
        dies, standby = (
            Lease(api, home, "lease", name, leaders.append, random.Random(1), clock=lambda: now) for name in "ab"
        )
        for one in (dies, standby, dies):
            await one._try()
        assert leaders == [True]
        assert standby.holder == "a"
        # Twenty seconds, with the longest pauses that there are.
        assert times.lease_s + 2 * between_s <= 20.0
        while not standby.leading:
            assert now < times.lease_s + 2 * between_s
            now += between_s
            await standby._try()
        # Counted from when it saw the renewal.
        assert now >= between_s + times.lease_s


async def test_errors_are_told_once_and_survived(plane: ControlPlane, home: str) -> None:
    leaders = set[str]()
    async with fault_proxy(plane.kubeconfig) as proxy:
        # A few refusals on a busy machine must not take it to the deadline.
        times = LeaseTimes(retry_s=SHORT.retry_s)
        one = Candidate(plain_access(proxy), home, "a", leaders=leaders, times=times)
        proxy.refuse_always = (503, {})
        async with one.running():
            await proxy.until(lambda: len(proxy.asked) > 5)
            assert not leaders
            assert "503" in one.lease.problem
            proxy.refuse_always = None
            await eventually(one.leads)
            assert one.lease.problem == ""
            proxy.refusals.extend([(500, {})] * 3)
            await proxy.until(lambda: not proxy.refusals)
            asked = len(proxy.asked)
            await proxy.until(lambda: len(proxy.asked) > asked + 3)
            assert one.turns == [True]


async def _one(leaders: set[str]) -> bool:
    return len(leaders) == 1
