"""Workers that are replaced: a successor on the same port first, and the old one ends what it has begun."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from extproc_client import BUFFERED, DUPLEX, NONE, DataPlane, chat
from picker_program import PickerProgram
from poolpilot_lab.processes import free_ports

if TYPE_CHECKING:
    from pathlib import Path

POD = "127.0.0.1:9"
"""Nobody listens there: the picker knows nothing of it but what it is told."""
TOO_MUCH = "100000"


@pytest.fixture(params=["grpc", "wire"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def pid_of(picker: PickerProgram) -> int:
    [worker] = (await picker.json("/debug/workers"))["workers"]
    pid: int = worker["pid"]
    return pid


async def exchanges(plane: DataPlane, count: int) -> None:
    """Placed and done."""
    for number in range(count):
        stream = plane.open(BUFFERED, NONE)
        await stream.headers()
        await stream.must_read()
        await stream.body(chat(f"Tell me of {number}"))
        await stream.must_read()
        await stream.done()


async def test_a_successor_takes_over_and_the_old_one_ends_what_it_has_begun(tmp_path: Path, transport: str) -> None:
    flags = ("--endpoints", POD, "--transport", transport, "--recycle-rss-mb", TOO_MUCH)
    async with PickerProgram(tmp_path, *flags) as picker, DataPlane(picker.port) as early:
        old = await pid_of(picker)
        stream = early.open(BUFFERED, NONE)
        await stream.place()
        picker.child.signal(signal.SIGHUP)

        async def replaced() -> bool:
            return await pid_of(picker) != old

        await picker.until(replaced, "a successor serves")
        assert (await picker.json("/readyz"))["ready"]
        async with DataPlane(picker.port) as late:
            assert await late.health() == "SERVING"
            await exchanges(late, 3)
        # The old process is there as long as its stream is.
        assert rss_mb(old) > 1
        await stream.answer(POD)
        await stream.must_read()
        await stream.done()

        async with asyncio.timeout(60):
            while os.path.exists(f"/proc/{old}"):
                await asyncio.sleep(0.05)
        picker.terminate()
        assert await picker.exits() == 0
    assert picker.log() and not picker.said("error", "")


async def test_the_end_does_not_wait_for_a_worker_that_was_replaced(tmp_path: Path, transport: str) -> None:
    """It has the drain time, like all others."""
    flags = ("--endpoints", POD, "--transport", transport, "--recycle-rss-mb", TOO_MUCH, "--drain-timeout", "0.2")
    async with PickerProgram(tmp_path, *flags) as picker, DataPlane(picker.port) as plane:
        old = await pid_of(picker)
        stream = plane.open(BUFFERED, NONE)
        await stream.place()
        picker.child.signal(signal.SIGHUP)

        async def replaced() -> bool:
            return await pid_of(picker) != old

        await picker.until(replaced, "a successor serves")
        picker.terminate()
        assert await stream.read() is None, "ended with OK"
        assert await picker.exits() == 0
        assert not os.path.exists(f"/proc/{old}")


async def test_memory_decides(tmp_path: Path, transport: str) -> None:
    """A worker that has grown beyond the limit is replaced, and only then."""
    async with PickerProgram(tmp_path, "--endpoints", POD, "--transport", transport, "--workers", "2") as probe:
        fresh = max(rss_mb(pid) for pid in probe.ready["workers"])  # type: ignore[attr-defined]
    limit = int(fresh) + 8
    flags = ("--endpoints", POD, "--transport", transport, "--recycle-rss-mb", str(limit))
    async with PickerProgram(tmp_path, *flags) as picker, DataPlane(picker.port) as plane:
        old = await pid_of(picker)
        await exchanges(plane, 3)
        assert await pid_of(picker) == old, "small as it is it stays"
        # Bodies that are not there in full are held.
        streams = [plane.open(DUPLEX, DUPLEX) for _ in range(6)]
        for stream in streams:
            await stream.headers()
            await stream.body(b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 3_000_000, end=False)

        async def replaced() -> bool:
            return await pid_of(picker) != old

        await picker.until(replaced, "it is replaced")
        assert rss_mb(await pid_of(picker)) < limit
        for stream in streams:
            await stream.body(b'"}]}')
            reply = await stream.must_read()
            assert reply.HasField("request_headers"), "still placed by the old one"
            stream.reset()


async def test_a_limit_below_a_fresh_picker_is_given_up(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--recycle-rss-mb", "5") as picker:

        async def told() -> bool:
            return picker.said("error", "--recycle-rss-mb is 5, but a picker that has just started has")

        await picker.until(told, "the log says so")
        last = await pid_of(picker)
        async with DataPlane(picker.port) as plane:
            await exchanges(plane, 3)
        assert await pid_of(picker) == last


async def test_a_taken_port_is_noticed(tmp_path: Path) -> None:
    """Although workers share their port with each other."""
    [port] = free_ports(1)
    flags = ("--endpoints", POD, "--listen", f"127.0.0.1:{port}", "--recycle-rss-mb", TOO_MUCH)
    async with PickerProgram(tmp_path, *flags):
        second = PickerProgram(tmp_path, *flags)
        second.child.start()
        assert await second.exits() == 1
        assert "the port is taken" in second.log_file.read_text()
