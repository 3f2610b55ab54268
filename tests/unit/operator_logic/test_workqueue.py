"""The work queue: each key once, never twice at a time, later after a failure."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from poolpilot_operator.workqueue import WorkQueue

if TYPE_CHECKING:
    import pytest


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue("test", random.Random(1), clock, first_s=1.0, most_s=8.0)


async def drained(one: WorkQueue[str]) -> list[str]:
    """What a worker gets now; marks each done."""
    found: list[str] = []
    while True:
        task = asyncio.create_task(one.get())
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return found
        found.append(task.result())
        one.done(found[-1])


async def test_a_key_is_queued_once_and_keys_keep_their_order() -> None:
    one = queue(Clock())
    for key in ("a", "b", "a", "c", "b"):
        one.add(key)
    assert await drained(one) == ["a", "b", "c"]


async def test_a_key_that_is_added_while_it_is_worked_on_comes_again_afterwards() -> None:
    one = queue(Clock())
    one.add("a")
    assert await one.get() == "a"
    one.add("a")
    one.add("a")
    assert len(one) == 0
    one.done("a")
    assert await drained(one) == ["a"]


async def test_a_failing_key_waits_longer_each_time_and_no_other_waits_for_it() -> None:
    clock = Clock()
    one = queue(clock)
    waits = []
    one.add("a")
    for _ in range(6):
        assert await one.get() == "a"
        waits.append(one.failed("a"))
        one.add("b")
        assert await drained(one) == ["b"]
        clock.now += waits[-1]
    for wait, longest in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert longest / 2 <= wait <= longest
    assert await drained(one) == ["a"]
    assert one.failures("a") == 0


async def test_what_a_server_wants_is_waited_for() -> None:
    clock = Clock()
    one = queue(clock)
    one.add("a")
    await one.get()
    wait = one.failed("a", 30.0)
    assert 30.5 <= wait <= 31.0
    clock.now = 30.0
    assert await drained(one) == []
    clock.now = 31.1
    assert await drained(one) == ["a"]


async def test_the_earliest_wish_counts_and_an_event_is_not_delayed() -> None:
    clock = Clock()
    one = queue(clock)
    one.add_after("a", 5.0)
    one.add_after("a", 2.0)
    one.add_after("a", 9.0)
    clock.now = 2.0
    assert await drained(one) == ["a"]
    clock.now = 20.0
    assert await drained(one) == []
    one.add_after("b", 5.0)
    one.add("b")
    assert await drained(one) == ["b"]
    clock.now = 30.0
    assert await drained(one) == []


async def test_a_worker_goes_on_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    one = queue(Clock())
    seen: list[str] = []

    async def reconcile(key: str) -> float | None:
        seen.append(key)
        if key == "bad":
            raise ZeroDivisionError("of the test")
        return None

    worker = asyncio.create_task(one.work(reconcile, lambda _: (None, False)))
    one.add("bad")
    one.add("good")
    while len(seen) < 2:
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert seen == ["bad", "good"]
    assert one.delayed == 1
    assert "of the test" in caplog.text


async def test_a_cancelled_worker_leaves_its_key_for_the_next() -> None:
    one = queue(Clock())
    began = asyncio.Event()

    async def reconcile(_: str) -> float | None:
        began.set()
        await asyncio.Event().wait()
        return None

    worker = asyncio.create_task(one.work(reconcile, lambda _: (None, False)))
    one.add("a")
    await began.wait()
    one.add("a")
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert await drained(one) == ["a"]


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens: nothing that was added is lost, nothing is worked on twice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = queue(self.clock)
        self.loop = asyncio.new_event_loop()
        self.wanted: set[str] = set()
        self.working: Counter[str] = Counter()

    def teardown(self) -> None:
        self.clock.now += 1000.0
        while self.working:
            self.finish(fail=False)
        while (key := self._next()) is not None:
            self.wanted.discard(key)
            self.queue.done(key)
        self.loop.close()
        assert not self.wanted

    def _next(self) -> str | None:
        async def got() -> str | None:
            task = asyncio.create_task(self.queue.get())
            await asyncio.sleep(0)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None

        return self.loop.run_until_complete(got())

    @rule(key=st.sampled_from("abc"))
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.wanted.add(key)

    @rule(key=st.sampled_from("abc"), delay=st.floats(0, 5))
    def add_after(self, key: str, delay: float) -> None:
        self.queue.add_after(key, delay)
        self.wanted.add(key)

    @rule()
    def take(self) -> None:
        key = self._next()
        if key is not None:
            self.working[key] += 1
            self.wanted.discard(key)

    @rule(fail=st.booleans())
    def finish(self, fail: bool) -> None:
        if self.working:
            key = min(self.working)
            del self.working[key]
            if fail:
                self.queue.failed(key)
                self.wanted.add(key)
            else:
                self.queue.done(key)

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def once_at_a_time(self) -> None:
        assert all(count == 1 for count in self.working.values())


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase
