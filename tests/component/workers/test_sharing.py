"""Two real workers: what one books, reads and learns of caches is the other's too, also when one is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from extproc_client import BUFFERED, NONE, DataPlane, Stream, chat, destination
from picker_program import STARTS_S, PickerProgram, replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PODS = [f"127.0.0.{n}:9" for n in range(1, 9)]
"""Nobody listens there: the picker knows nothing of them but what it is told."""


class Crew:
    """A picker of two workers, and a channel to each."""

    def __init__(self, picker: PickerProgram) -> None:
        self.picker = picker
        self.planes = [DataPlane(port) for port in picker.ready["ports"]]

    async def place(self, worker: int, text: str = "Tell me of the sea") -> tuple[str, Stream]:
        """A request that stays open at its endpoint."""
        stream = self.planes[worker].open(BUFFERED, NONE)
        await stream.headers()
        await stream.must_read()
        await stream.body(chat(text))
        place = destination(await stream.must_read())
        await stream.answer(place)
        await stream.must_read()
        return place, stream

    async def pages(self, path: str) -> list[Any]:
        """A page of each worker's own admin port."""
        ports = [one["admin_port"] for one in (await self.picker.json("/debug/workers"))["workers"]]
        found = []
        async with aiohttp.ClientSession() as session:
            for port in ports:
                async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                    found.append(msgspec.json.decode(await response.read()))
        return found

    async def in_flight(self) -> float:
        """Requests at all endpoints, of all workers."""
        rows = (await self.picker.json("/debug/endpoints"))["pools"]["default"]
        return sum(row["in_flight"] for row in rows)

    async def until_back(self) -> None:
        """Both workers serve."""

        async def back() -> bool:
            page = await self.picker.json("/readyz")
            return page["ready"] and not page["detail"]

        await self.picker.until(back, "both are back", STARTS_S)

    async def close(self) -> None:
        for plane in self.planes:
            await plane.channel.close()


@pytest.fixture(params=["grpc", "wire"])
async def crew(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Crew]:
    flags = ["--endpoints", ",".join(PODS), "--workers", "2", "--transport", request.param]
    async with PickerProgram(tmp_path, *flags) as picker:
        made = Crew(picker)
        yield made
        await made.close()
        assert not picker.said("error", "news of another worker"), picker.child.tail()


async def test_a_booking_is_seen_by_the_next_decision_of_the_other(crew: Crew) -> None:
    """Eight requests, at the workers in turn, each on an endpoint of its own: none sees old news."""
    placed = [await crew.place(number % 2) for number in range(8)]
    assert Counter(place for place, _ in placed) == Counter(PODS)
    assert await crew.in_flight() == 8
    for _, stream in placed:
        await stream.done()
    assert await crew.in_flight() == 0


async def test_simultaneous_arrivals_do_not_herd(crew: Crew) -> None:
    """Sixty-four requests at once at both workers: no endpoint gets much more than its share."""
    placed = await asyncio.gather(*(crew.place(number % 2) for number in range(64)))
    counts = Counter(place for place, _ in placed)
    assert set(counts) == set(PODS)
    # Eight each; two workers that decide within the same microseconds may both choose the same.
    assert max(counts.values()) <= 10, counts
    for _, stream in placed:
        await stream.done()
    assert await crew.in_flight() == 0


async def test_a_killed_workers_bookings_vanish_and_it_comes_back(crew: Crew) -> None:
    lost = [await crew.place(1) for _ in range(4)]
    kept = [await crew.place(0) for _ in range(4)]
    assert len({place for place, _ in (*lost, *kept)}) == 8
    os.kill(crew.picker.ready["workers"][1], signal.SIGKILL)
    await crew.until_back()
    assert await crew.in_flight() == 4
    again = [await crew.place(0) for _ in range(4)]
    assert {place for place, _ in again} == {place for place, _ in lost}, "what the dead one held is free again"
    await crew.planes[1].channel.close()
    crew.planes[1] = DataPlane(crew.picker.ready["ports"][1])
    more = [await crew.place(number % 2) for number in range(8)]
    assert Counter(place for place, _ in more) == Counter(PODS), "the new one knows the old ones' bookings"
    for _, stream in (*kept, *again, *more):
        await stream.done()
    assert await crew.in_flight() == 0


async def test_a_prefix_placed_by_one_is_found_by_the_other(crew: Crew) -> None:
    text = "All the world's a stage, and all the men and women merely players. " * 400
    place, stream = await crew.place(0, text)
    await stream.done()

    async def told() -> bool:
        """Both have it; placements are told within a fraction of a second."""
        indexed = [
            {row["endpoint"]: row["indexed_tokens"] for row in page["pools"]["default"]}
            for page in await crew.pages("/debug/endpoints")
        ]
        return indexed[0] == indexed[1] and indexed[0][place] > 1_000

    await crew.picker.until(told, "both have it")
    for _ in range(4):
        again, stream = await crew.place(1, text)
        await stream.done()
        assert again == place


# ── telemetry ────────────────────────────────────────────────────────────────


class Engine:
    """A metrics page that counts who reads it."""

    def __init__(self) -> None:
        self.running = 3
        self.reads = 0
        self.address = ""

    async def metrics(self, _: web.Request) -> web.Response:
        self.reads += 1
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{model_name="m"}} {self.running}',
            "# TYPE vllm:num_requests_waiting gauge",
            'vllm:num_requests_waiting{model_name="m"} 0',
            "# TYPE vllm:kv_cache_usage_perc gauge",
            'vllm:kv_cache_usage_perc{model_name="m"} 0.25',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    app = web.Application()
    app.add_routes([web.get("/metrics", made.metrics), web.get("/v1/models", made.models)])
    app.add_routes([web.get("/metrics/", made.metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    made.address = f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    yield made
    await runner.cleanup()


async def test_one_reads_and_all_know(engine: Engine, tmp_path: Path) -> None:
    flags = ("--endpoints", engine.address, "--workers", "2")
    async with PickerProgram(tmp_path, *flags) as picker:
        crew = Crew(picker)

        async def rows() -> list[dict[str, Any]]:
            return [page["pools"]["default"][0] for page in await crew.pages("/debug/endpoints")]

        async def known(running: float) -> bool:
            return all(row["running"] == running and row["models_served"] == ["m"] for row in await rows())

        await picker.until(lambda: known(3), "both know")
        assert all(row["foreign"] == 3 for row in await rows())
        polls = (await picker.samples())["poolpilot_telemetry_polls_total"]
        assert polls == pytest.approx(engine.reads, abs=2), "every read is counted, once"
        async with aiohttp.ClientSession() as session:
            port = (await picker.json("/debug/workers"))["workers"][1]["admin_port"]
            async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                assert "poolpilot_telemetry_polls_total 0.0" in await response.text(), "only the first reads"

        # The reader is killed: the other goes on with what it knows, the new one reads, both know.
        engine.running = 5
        os.kill(picker.ready["workers"][0], signal.SIGKILL)
        await crew.until_back()
        await picker.until(lambda: known(5), "both know again", STARTS_S)

        # The other is killed: the new one is told what was told long ago.
        os.kill(picker.ready["workers"][1], signal.SIGKILL)
        await crew.until_back()
        engine.running = 7
        await picker.until(lambda: known(7), "the new one has been told", STARTS_S)
        assert not picker.said("error", "news of another worker")
        await crew.close()


async def test_endpoints_and_configuration_reach_all(tmp_path: Path) -> None:
    file, config = tmp_path / "endpoints.yaml", tmp_path / "config.yaml"
    file.write_text("endpoints:\n- {address: 127.0.0.1, port: 9}\n")
    config.write_text("apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\n")
    flags = ("--endpoints-file", str(file), "--config-file", str(config), "--workers", "2")
    async with PickerProgram(tmp_path, *flags) as picker:
        crew = Crew(picker)
        replace(file, "endpoints:\n" + "".join(f"- {{address: 127.0.0.{n}, port: 9}}\n" for n in (3, 2, 1)))
        replace(config, config.read_text() + "poolpilot: {receipts: {share: 0.5}}\n")

        async def all_know() -> bool:
            addresses = [
                [row["endpoint"] for row in page["pools"]["default"]] for page in await crew.pages("/debug/endpoints")
            ]
            shares = [page["settings"]["receipts"]["share"] for page in await crew.pages("/debug/config")]
            return addresses[0] == addresses[1] and len(addresses[0]) == 3 and shares == [0.5, 0.5]

        await picker.until(all_know, "all know")
        placed = [await crew.place(number % 2) for number in range(3)]
        assert len({place for place, _ in placed}) == 3
        for _, stream in placed:
            await stream.done()
        await crew.close()
