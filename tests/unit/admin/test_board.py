"""What is said of the pools: another version for each change, and who waits for it hears of it."""

from __future__ import annotations

import asyncio

from poolpilot_picker.admin.board import PoolBoard, PoolStanding

ONE = PoolStanding("ns", "one", 20_001, True)
TWO = PoolStanding("ns", "two", 20_002, False, "there is no InferencePool ns/two")


async def test_versions() -> None:
    board = PoolBoard(1_000)
    assert (board.page().version, board.page().pools) == (1_000, ())
    board.put([TWO, ONE])
    assert (board.page().version, board.page().pools) == (1_001, (ONE, TWO))
    board.put([ONE, TWO])
    assert board.page().version == 1_001, "nothing is other than before"


async def test_waiting() -> None:
    board = PoolBoard(1_000)
    await board.other_than(999, 60.0)
    await board.other_than(1_000, 0.0)
    waiting = [asyncio.create_task(board.other_than(1_000, 60.0)) for _ in range(3)]
    await asyncio.sleep(0)
    board.put([ONE])
    await asyncio.gather(*waiting)


async def test_a_later_process_has_later_versions() -> None:
    assert PoolBoard().page().version > 1_700_000_000_000


async def test_nobody_waits_for_a_process_that_ends() -> None:
    board = PoolBoard(1_000)
    waiting = asyncio.create_task(board.other_than(1_000, 60.0))
    await asyncio.sleep(0)
    board.close()
    await waiting
    await board.other_than(1_000, 60.0)
