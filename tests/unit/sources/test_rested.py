"""What costs time is done at once, and not all the time."""

from __future__ import annotations

import asyncio

from poolpilot_picker.sources.rested import Rested


async def test_the_first_at_once_the_next_after_a_rest() -> None:
    clock, done = [0.0], list[float]()

    def act() -> None:
        done.append(clock[0])
        clock[0] += 1.0

    rested = Rested(act, lambda: clock[0])
    rested.soon()
    assert done == [0.0]
    for _ in range(3):
        rested.soon()
    assert done == [0.0], "it rests nine times as long as it took"
    while len(done) < 2:
        await asyncio.sleep(0.001)
    assert len(done) == 2, "and was asked for only once meanwhile"
    rested.soon()
    rested.still()
    rested.at_once()
    assert len(done) == 3
