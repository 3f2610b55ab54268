"""A process that stood still does not hold that against its peers: what has arrived meanwhile is read first."""

import asyncio
import socket
import time

import pytest
import uvloop

from engine_turns import Engines
from poolpilot_picker import patience
from poolpilot_picker.patience import timeout


async def asked_and_silent() -> Engines:
    """Three endpoints with a poll under way each, which nobody has answered yet."""
    engines = Engines(3, cost_ms=0.0)
    await engines.start()
    engines.source.stats.errors.clear()  # of the model lists: these engines have none
    engines.silent = {1, 2, 3}
    for _ in range(20):
        engines.turn(5.0)
    assert all(len(reads) == 1 for reads in engines.reads.values())
    return engines


def clients(engines):
    return [watch._client for watch in engines.source._watches.values()]


@pytest.mark.parametrize("stalls", [(5_000.0,), (700.0, 5.0, 700.0), (110.0,) * 12])
async def test_answers_that_wait_when_a_stall_ends_are_taken(stalls):
    engines = await asked_and_silent()
    for ms in stalls:
        engines.turn(ms)
    for client in clients(engines):
        client.answer()
    engines.turn(5.0)
    assert engines.source.stats.errors == {}
    assert engines.source.stats.samples >= 6


async def test_who_says_nothing_after_a_stall_either_is_given_up():
    engines = await asked_and_silent()
    engines.turn(60_000.0)
    for _ in range(80):
        engines.turn(5.0)
    assert engines.source.stats.errors == {}, "half a second of ours"
    for _ in range(150):
        engines.turn(5.0)
    assert engines.source.stats.errors == {"timeout": 3}


async def test_a_process_that_is_always_late_gives_up_too():
    engines = await asked_and_silent()
    for _ in range(60):
        engines.turn(200.0)
    assert engines.source.stats.errors["timeout"] >= 3


def stalled_read(loop_factory, answers):
    """Waits 50 ms for a byte that arrives, if it does, while the process stands still for longer than that."""
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)

        def stall() -> None:
            if answers:
                there.send(b"x")
            time.sleep(0.05 + 2 * patience.LATE_S)

        async def read() -> bytes:
            loop = asyncio.get_running_loop()
            async with timeout(0.05):
                loop.call_later(0.005, stall)
                return await loop.sock_recv(here, 1)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(read())


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_what_arrived_during_a_stall_is_read_before_the_time_is_up(loop_factory):
    assert stalled_read(loop_factory, answers=True) == b"x"
    with pytest.raises(TimeoutError):
        stalled_read(loop_factory, answers=False)


async def test_time_that_is_up_ends_the_wait_and_time_that_is_not_does_nothing():
    with pytest.raises(TimeoutError):
        async with timeout(0.001):
            await asyncio.Event().wait()
    async with timeout(60.0):
        await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        async with timeout(60.0):
            raise ZeroDivisionError


async def test_a_wait_that_is_cancelled_is_cancelled():
    async def wait() -> None:
        async with timeout(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
