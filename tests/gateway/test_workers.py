"""One picker of two workers behind a real Envoy: streams spread over them, and what a worker's end costs clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml

from gateway_client import Http1
from gateway_envoy import Variant, start_gateway
from gateway_pods import sse_events
from gateway_site import chat
from gateway_stage import MODES, Counts, under_load
from picker_program import STARTS_S, PickerProgram
from poolpilot_lab.processes import free_ports
from poolpilot_picker.envoy.command import main as envoy_config
from poolpilot_picker.envoy.settings import EnvoySettings, FailureMode, HostPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway_envoy import Gateway
    from gateway_pods import Pods

WORKERS = 2
WHOLE = b"".join(sse_events(10))


def first_of_two_ports() -> int:
    """A port with another free one behind it."""
    for _ in range(50):
        [port] = free_ports(1)
        with contextlib.suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
            return port
    raise AssertionError("no two free ports in a row")


class Crew:
    """The picker and its Envoy."""

    def __init__(self, picker: PickerProgram, gateway: Gateway) -> None:
        self.picker = picker
        self.gateway = gateway

    async def post(self, variant: str, script: str = "*=ok", body: bytes | None = None) -> tuple[int, bool]:
        """One exchange: status, and whether a streamed answer came whole."""
        async with await Http1.connect(self.gateway.ports[variant]) as connection:
            response = await connection.request(headers={"x-pod": script}, body=body or chat(2_000, stream=True))
        return response.status, response.complete and (not script.startswith("*=sse") or response.body == WHOLE)

    async def streams(self) -> list[float]:
        """Streams that have ended, by worker."""
        samples = await self.picker.samples()
        return [samples[f'poolpilot_worker_streams_total{{worker="{one}"}}'] for one in range(WORKERS)]

    async def pids(self) -> list[int]:
        return [one["pid"] for one in (await self.picker.json("/debug/workers"))["workers"]]

    async def until_whole(self) -> None:
        """All workers serve, have each answered two more of Envoy's health checks, and count as healthy."""
        healthy, answered = "cluster.picker.membership_healthy", "cluster.picker.health_check.success"
        before = (await self.gateway.stats(answered))[answered]

        async def whole() -> bool:
            page = await self.picker.json("/readyz")
            stats = await self.gateway.stats("cluster.picker.")
            seen = stats[healthy] == WORKERS and stats[answered] >= before + 2 * WORKERS
            return page["ready"] and not page["detail"] and seen

        await self.picker.until(whole, "both workers serve", STARTS_S)

    async def settled(self) -> None:
        """Nothing is open and nothing is booked."""

        async def idle() -> bool:
            samples = await self.picker.samples()
            booked = sum(value for name, value in samples.items() if name.startswith("poolpilot_endpoint_inflight"))
            return samples["llm_d_epp_extproc_streams_inflight"] == 0 and booked == 0

        await self.picker.until(idle, "nothing is left")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    transport: str, pods: Pods, envoy_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Crew]:
    folder = tmp_path_factory.mktemp("workers")
    (folder / "eds").mkdir()
    port = first_of_two_ports()
    flags = ["--listen", f"127.0.0.1:{port}", "--workers", str(WORKERS), "--transport", transport]
    flags += ["--endpoints", ",".join(pods.addresses), "--eds-dir", str(folder / "eds"), "--log-level", "warning"]
    async with PickerProgram(folder, *flags) as picker:
        assert picker.ready["ports"] == [port, port + 1]
        variants = [
            Variant(
                f"{mode}-{fail.value}",
                EnvoySettings(
                    pickers=tuple(HostPort("127.0.0.1", one) for one in picker.ready["ports"]),
                    eds_directory=str(folder / "eds"),
                    body_mode=MODES[mode],
                    fail=fail,
                ),
            )
            for mode in MODES
            for fail in FailureMode
        ]
        gateway = await start_gateway(folder, variants)
        yield Crew(picker, gateway)
        await gateway.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def crew(running: Crew) -> AsyncIterator[Crew]:
    """Both workers serve, at the beginning and, with nothing booked, at the end."""
    await running.until_whole()
    yield running
    await running.until_whole()
    await running.settled()


def test_the_command_generates_what_is_tested_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert envoy_config(["--picker", "127.0.0.1:9002", "--picker-workers", "2"]) == 0
    clusters = yaml.safe_load(capsys.readouterr().out)["static_resources"]["clusters"]
    [assignment] = [one["load_assignment"] for one in clusters if one["name"] == "picker"]
    ports = [
        one["endpoint"]["address"]["socket_address"]["port_value"] for one in assignment["endpoints"][0]["lb_endpoints"]
    ]
    assert ports == [9002, 9003]


async def begin_of(turn: int) -> None:
    """A moment in the first half of an odd, or even, turn of Envoy's, by the clock of this machine."""
    length_ms = EnvoySettings().picker_turn_ms

    def begun() -> bool:
        now, into = divmod(time.time_ns() // 10**6, length_ms)
        return now % 2 == turn % 2 and into < length_ms / 2

    while not begun():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("mode", MODES)
async def test_each_takes_its_share(crew: Crew, mode: str) -> None:
    """40 to 60 % of the streams each."""
    before = await crew.streams()
    for turn in range(10):
        await begin_of(turn)
        got = await asyncio.gather(*(crew.post(f"{mode}-close") for _ in range(20)))
        assert {status for status, _ in got} == {200}
    await crew.settled()
    taken = [now - then for now, then in zip(await crew.streams(), before, strict=True)]
    assert sum(taken) == 200
    assert all(80 <= share <= 120 for share in taken), taken


async def short_stream(crew: Crew, variant: str) -> str:
    """What a client got: a status, and `truncated` for a 200 that was cut off."""
    status, whole = await crew.post(variant, "*=sse.10.10")
    return str(status) if status != 200 or whole else "truncated"


@pytest.mark.parametrize("victim", range(WORKERS))
async def test_a_killed_worker_costs_nobody_a_request_where_the_pool_fails_open(crew: Crew, victim: int) -> None:
    """What it was deciding fails open; the rest goes to the other worker. It comes back and takes streams again."""

    async def crash(_: Counts) -> None:
        before = (await crew.pids())[victim]
        os.kill(before, signal.SIGKILL)

        async def back() -> bool:
            page = await crew.picker.json("/readyz")
            return not page["detail"] and (await crew.pids())[victim] != before

        await crew.picker.until(back, "it is back", STARTS_S)
        await crew.until_whole()

    got = await under_load(partial(short_stream, crew), ["partial-open", "buffered-open", "partial-close"], crash)
    assert set(got["partial-open"]) == set(got["buffered-open"]) == {"200"}, got
    # Where it fails close, what the dead one was deciding is refused, and nothing else.
    assert {"200"} <= set(got["partial-close"]) <= {"200", "503"} and got["partial-close"]["503"] <= 2, got
    await crew.settled()
    before = await crew.streams()
    for turn in range(20):
        await begin_of(turn)
        assert (await crew.post("partial-close"))[0] == 200
    await crew.settled()
    taken = [now - then for now, then in zip(await crew.streams(), before, strict=True)]
    assert sum(taken) == 20 and all(8 <= share <= 12 for share in taken), taken


async def test_a_worker_that_is_stopped_drains(crew: Crew) -> None:
    """SIGTERM to one worker (as if memory had grown too large): it drains, is started again, and no request fails."""

    async def roll(_: Counts) -> None:
        for victim, pid in enumerate(await crew.pids()):
            os.kill(pid, signal.SIGTERM)

            async def back(victim: int = victim, pid: int = pid) -> bool:
                page = await crew.picker.json("/readyz")
                return not page["detail"] and (await crew.pids())[victim] != pid

            await crew.picker.until(back, "it is back", STARTS_S)
            await crew.until_whole()

    variants = ["partial-close", "buffered-close", "duplex-close"]
    got = await under_load(partial(short_stream, crew), variants, roll)
    assert {variant: set(counts) for variant, counts in got.items()} == {variant: {"200"} for variant in variants}, got
