"""`--workers N`: several processes behind one admin port, from the first flag to the last signal."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from extproc_client import BUFFERED, NONE, DataPlane, chat
from picker_program import STARTS_S, PickerProgram
from poolpilot_lab.processes import free_ports

if TYPE_CHECKING:
    from pathlib import Path

POD, OTHER = "127.0.0.1:9", "127.0.0.2:9"
"""Nobody listens there: the picker knows nothing of them but what it is told."""
FLAGS = ("--endpoints", f"{POD},{OTHER}", "--workers", "2")


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_ready_line_and_pages(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, *FLAGS, "--pool-name", "llama") as picker:
        assert set(picker.ready) == {"port", "ports", "admin_port", "pid", "workers"}
        ports = picker.ready["ports"]
        assert picker.ready["pid"] == picker.child.pid and picker.ready["port"] == ports[0]
        assert await picker.get("/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
        status, _, text = await picker.get("/readyz")
        assert status == 200
        assert msgspec.json.decode(text) == {"ready": True, "alive": True, "detail": {}, "pools": {"llama": True}}
        for page in (await picker.json("/"))["pages"]:
            assert (await picker.get(page))[0] == 200, page
        for port in ports:
            async with DataPlane(port) as plane:
                for service in ("", "llama", "envoy.service.ext_proc.v3.ExternalProcessor"):
                    assert await plane.health(service) == "SERVING"
                await plane.exchange()
        samples = await picker.samples()
        labels = 'fairness_id="",model_name="m",priority="0",target_model_name="m"'
        assert samples[f"llm_d_epp_request_total{{{labels}}}"] == 2
        assert samples['llm_d_epp_extproc_streams_total{code="OK"}'] == 2
        assert [samples[f'poolpilot_worker_streams_total{{worker="{one}"}}'] for one in (0, 1)] == [1, 1]
        workers = (await picker.json("/debug/workers"))["workers"]
        assert [one["port"] for one in workers] == ports
        assert [one["pid"] for one in workers] == picker.ready["workers"]
        assert {record["worker"] for record in picker.log() if "worker" in record} == {0, 1}
        picker.terminate()
        assert await picker.exits() == 0
        assert not any(map(alive, picker.ready["workers"]))


async def test_ports_follow_the_first(tmp_path: Path) -> None:
    for _ in range(5):
        [first] = free_ports(1)
        if first < 65_000:
            break
    async with PickerProgram(tmp_path, *FLAGS, "--listen", f"127.0.0.1:{first}") as picker:
        assert picker.ready["ports"] == [first, first + 1]


async def test_queries_reach_every_worker(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\npoolpilot: {receipts: {share: 1.0}}\n"
    )
    async with PickerProgram(tmp_path, *FLAGS, "--config-file", "config.yaml") as picker:
        for number, port in enumerate(picker.ready["ports"]):
            async with DataPlane(port) as plane:
                stream = plane.open(BUFFERED, NONE)
                await stream.headers(x_request_id=f"id-{number}")
                await stream.must_read()
                await stream.body(chat())
                await stream.must_read()
                await stream.done()
        found = (await picker.json("/debug/decisions"))["decisions"]
        assert [(one["worker"], one["request_id"]) for one in found] == [(1, "id-1"), (0, "id-0")]
        assert len((await picker.json("/debug/decisions?limit=1"))["decisions"]) == 1
        status, _, text = await picker.get("/debug/decisions?limit=many")
        assert status == 400 and "query parameter limit is 'many'" in text


async def test_a_killed_worker_is_started_again_on_its_port(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, *FLAGS) as picker:
        first, second = picker.ready["workers"]
        ports = picker.ready["ports"]
        os.kill(second, signal.SIGKILL)

        async def noticed() -> bool:
            return "worker 1" in (await picker.json("/readyz"))["detail"]

        await picker.until(noticed, "its absence shows")
        assert (await picker.get("/readyz"))[0] == 200, "the other one serves"
        async with DataPlane(ports[0]) as plane:
            await plane.exchange()

        async def back() -> bool:
            page = await picker.json("/readyz")
            return page["ready"] and not page["detail"]

        await picker.until(back, "it is back", STARTS_S)
        one, two = (await picker.json("/debug/workers"))["workers"]
        assert one["pid"] == first and two["pid"] != second and two["port"] == ports[1]
        assert two["restarts"] == 1 and picker.said("error", "worker has ended")
        async with DataPlane(ports[1]) as plane:
            await plane.exchange()


async def test_drain_and_hurry(tmp_path: Path) -> None:
    """The first signal lets open exchanges go on, in every worker; the second ends them."""
    async with PickerProgram(tmp_path, *FLAGS, "--drain-timeout", "300") as picker:
        planes = [DataPlane(port) for port in picker.ready["ports"]]
        streams = [plane.open(BUFFERED, NONE) for plane in planes]
        for stream in streams:
            await stream.answer(await stream.place())
            await stream.must_read()
        picker.terminate()

        async def draining() -> bool:
            return sum(record["message"] == "draining" for record in picker.log()) == 2

        await picker.until(draining, "both drain")
        assert (await picker.get("/readyz"))[0] == 503
        assert picker.child.running
        picker.terminate()
        assert await picker.exits() == 0
        for plane in planes:
            await plane.channel.close()


async def test_wrong_flags_and_taken_ports_end_everything(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("endpoints: 7\n")
    bad = PickerProgram(tmp_path, "--endpoints-file", "bad.yaml", "--workers", "2")
    bad.child.start()
    assert await bad.exits(30.0) == 2
    assert "bad.yaml" in bad.child.tail()
    async with PickerProgram(tmp_path, "--endpoints", POD) as holder:
        folder = tmp_path / "second"
        folder.mkdir()
        taken = PickerProgram(folder, *FLAGS, "--listen", f"127.0.0.1:{holder.port - 1}")
        taken.child.start()
        assert await taken.exits(30.0) == 1
        assert "the port is taken" in taken.child.tail()


async def test_workers_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, *FLAGS) as picker:
        workers: list[int] = picker.ready["workers"]
        os.kill(picker.child.pid, signal.SIGKILL)
        deadline = time.monotonic() + 15.0
        while any(map(alive, workers)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert picker.said("error", "the supervisor is gone")


async def test_a_signal_while_it_starts(tmp_path: Path) -> None:
    picker = PickerProgram(tmp_path, *FLAGS)
    picker.child.start()

    async def begun() -> bool:
        return "workers.supervisor" in picker.log_file.read_text() or "endpoints changed" in picker.log_file.read_text()

    await picker.until(begun, "a worker starts")
    picker.terminate()
    assert await picker.exits(30.0) == 0


@pytest.mark.parametrize("transport", ["grpc", "wire"])
async def test_both_transports(tmp_path: Path, transport: str) -> None:
    async with PickerProgram(tmp_path, *FLAGS, "--transport", transport) as picker:
        for port in picker.ready["ports"]:
            async with DataPlane(port) as plane:
                assert await plane.exchange() in (POD, OTHER)
