"""Work that needs programs ends with them, and whatever runs beside it ends with the work."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from poolpilot_lab.processes import Child, ProcessError, stop_all, watched

if TYPE_CHECKING:
    from pathlib import Path


def child(folder: Path, code: str) -> Child:
    return Child("program", [sys.executable, "-I", "-S", "-c", code], log=folder / "program.log")


async def test_a_program_that_ends_ends_the_work(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with child(tmp_path, "print('out of luck'); raise SystemExit(3)") as one:
        with pytest.raises(ProcessError, match=r"program ended with exit code 3\n(.|\n)*out of luck"):
            await watched(work(), [one])
    assert ended.is_set()


async def test_the_result_is_the_works_and_nothing_runs_on(tmp_path: Path) -> None:
    beside_ended = asyncio.Event()

    async def beside() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            beside_ended.set()

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    one = child(tmp_path, "import time; time.sleep(60)").start()
    try:
        assert await watched(work(), [one], beside()) == 7
        assert one.running
    finally:
        await stop_all([one], 1.0)
    assert beside_ended.is_set()
    assert not one.running


async def test_what_fails_beside_it_fails_the_work() -> None:
    async def beside() -> None:
        raise ValueError("no page")

    with pytest.raises(ValueError, match="no page"):
        await watched(asyncio.Event().wait(), [], beside())
