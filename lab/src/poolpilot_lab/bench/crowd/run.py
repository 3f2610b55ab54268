"""Plays the crowds and measures the picker: its CPU, its memory, the order in which it lets requests go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Final, Self

import msgspec

from poolpilot_lab.bench.cost import machine
from poolpilot_lab.bench.cost.gateway import BodyMode, gateway
from poolpilot_lab.bench.crowd.pod import Pod
from poolpilot_lab.bench.soak.watch import AdminPages, complaints, total
from poolpilot_lab.processes import Child
from poolpilot_picker.envoy.settings import HostPort

if TYPE_CHECKING:
    from pathlib import Path

QUEUED: Final = "llm_d_epp_flow_control_queue_size"
HELD: Final = "poolpilot_held_body_bytes"
RUNNING: Final = "llm_d_epp_request_running"
CONFIG: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
"""
ONE_AT_A_TIME: Final = """\
featureGates: [flowControl]
flowControl: {defaultRequestTTL: 300s, maxRequests: 20k, defaultPriorityBand: {maxRequests: 20k}}
poolpilot:
  flowControl: {endpointRequests: 1, shortReserve: 0}
"""
PATIENCE_S: Final = 120.0
AT_ONCE: Final = 200
"""Connections that are being made, and streams that are being opened, at a time."""
STILL_S: Final = 5.0


class Waiting(msgspec.Struct, kw_only=True):
    """Requests that came at once and had to wait."""

    requests: int
    body_bytes: int
    arrival_s: float
    """From the first byte sent until the queue holds all."""
    cpu_us_in: float
    """Of the picker, per request, until then."""
    bytes_each: float
    """Resident memory, per request in the queue."""
    held_bytes: float
    """What the picker says that it holds of bodies."""
    still_cpu_share: float
    """Of one processor, while all wait."""
    gone: int
    """Clients that went away while they waited."""
    gone_s: float
    """Until the queue was so much shorter."""
    served_s: float
    """From the first place that became free until the last answer."""
    cpu_us_out: float
    """Of the picker, per request served, from then on."""
    displaced: int
    """How many places any request was served before or after its turn, at most."""


class Open(msgspec.Struct, kw_only=True):
    """Streams that stay open."""

    streams: int
    opened_s: float
    cpu_us_in: float
    bytes_each: float
    still_cpu_share: float
    closed_s: float
    cpu_us_out: float


class Outcome(msgspec.Struct, kw_only=True):
    """Of a run."""

    waiting: Waiting
    open: Open
    complaints: list[str]
    left: dict[str, float]
    machine: machine.Machine


class Client:
    """One connection with one request."""

    def __init__(self, number: int, do: str, body: bytes) -> None:
        self._head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: pool\r\ncontent-type: application/json\r\n"
            f"x-n: {number}\r\nx-do: {do}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        self._body = body
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self, address: str) -> None:
        """Opens the connection."""
        place = HostPort.parse(address, "gateway")
        self._streams = await asyncio.open_connection(place.host, place.port)

    @property
    def _reader(self) -> asyncio.StreamReader:
        assert self._streams is not None
        return self._streams[0]

    def send(self) -> None:
        """The request, as one write."""
        assert self._streams is not None
        self._streams[1].write(self._head + self._body)

    async def status(self) -> int:
        """Of the answer's head."""
        return int((await self._reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])

    async def rest(self) -> None:
        """The end of a chunked answer."""
        await self._reader.readuntil(b"0\r\n\r\n")

    def leave(self) -> None:
        """Closes at once, whatever is under way."""
        assert self._streams is not None
        self._streams[1].transport.abort()


def chat(size: int) -> bytes:
    """A chat of about so many bytes."""
    return json.dumps({"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "x" * size}]}).encode()


class Stage:
    """One pod, one picker, one Envoy."""

    def __init__(self, folder: Path, name: str, flow: str, transport: str, still_s: float = STILL_S) -> None:
        """`flow`: what the configuration says of flow control; `still_s`: how long a crowd that stands is watched."""
        self._still_s = still_s
        self._folder = folder
        self._name = name
        self._flow = flow
        self._transport = transport
        self.pod = Pod()
        self._log = folder / f"picker-{name}.log"

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as started:
            await self._start(started)
            self._started = started.pop_all()
        return self

    async def _start(self, started: contextlib.AsyncExitStack) -> None:
        await self.pod.start()
        started.push_async_callback(self.pod.stop)
        config = self._folder / f"picker-{self._name}.yaml"
        config.write_text(CONFIG + self._flow)
        argv = [
            sys.executable, "-m", "poolpilot_picker", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
            "--endpoints", f"127.0.0.1:{self.pod.port}", "--transport", self._transport, "--config-file", str(config),
            "--log-level", "warning", "--print-ready",
        ]  # fmt: skip
        child = Child("picker", argv, log=self._log, out=self._folder / f"picker-{self._name}.out")
        self._child = await started.enter_async_context(child)
        ready = json.loads(await self._child.line())
        self.pages = AdminPages(ready["admin_port"])
        front = gateway(self._folder, f"envoy-{self._name}", [ready["port"]], BodyMode.BUFFERED)
        started.push_async_callback(front.child.stop)
        await front.start()
        self.address = front.address

    async def __aexit__(self, *_: object) -> None:
        await self._started.aclose()

    def cpu_s(self) -> float:
        """Of the picker so far."""
        return machine.cpu_seconds(machine.tree([self._child.pid]))

    def rss(self) -> int:
        """Of the picker."""
        return machine.rss_bytes(machine.tree([self._child.pid]))

    async def until(self, name: str, wanted: float) -> float:
        """Until a metric has this value; how long it took, in seconds."""
        began = time.perf_counter()
        while (value := total(await self.pages.metrics(), name)) != wanted:
            if time.perf_counter() - began > PATIENCE_S:
                raise RuntimeError(f"{name} is {value:g} after {PATIENCE_S:g} s, not {wanted:g}")
            await asyncio.sleep(0.05)
        return time.perf_counter() - began

    async def still(self) -> float:
        """The picker's share of a processor while nothing comes."""
        before = self.cpu_s()
        await asyncio.sleep(self._still_s)
        return (self.cpu_s() - before) / self._still_s

    async def crowd(self, count: int, do: str, body: bytes) -> list[Client]:
        """Connected clients, numbered."""
        clients = [Client(number, do, body) for number in range(count)]
        gate = asyncio.Semaphore(AT_ONCE)

        async def connect(client: Client) -> None:
            async with gate:
                await client.connect(self.address)

        await asyncio.gather(*map(connect, clients))
        return clients

    def complaints(self) -> list[str]:
        """Of the picker's log."""
        return complaints(self._log)


async def _served(client: Client) -> None:
    if (status := await client.status()) != 200:
        raise RuntimeError(f"a request was answered {status}")


async def waiting(stage: Stage, count: int, size: int) -> Waiting:
    """`count` requests come while the only pod takes one at a time and has one; a tenth of the clients gives up."""
    body = chat(size)
    [first] = await stage.crowd(1, "hold", body)
    first.send()
    await stage.until(RUNNING, 1)
    clients = await stage.crowd(count, "", body)
    cpu, rss, began = stage.cpu_s(), stage.rss(), time.perf_counter()
    for client in clients:
        client.send()
    await stage.until(QUEUED, count)
    arrival, cpu_in, grown = time.perf_counter() - began, stage.cpu_s() - cpu, stage.rss() - rss
    held = total(await stage.pages.metrics(), HELD)
    share = await stage.still()
    going, staying = clients[::10], [client for number, client in enumerate(clients) if number % 10]
    for client in going:
        client.leave()
    gone_s = await stage.until(QUEUED, len(staying))
    cpu, began = stage.cpu_s(), time.perf_counter()
    stage.pod.let_go.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(_served, [first, *staying]))
    served = time.perf_counter() - began
    cpu_out = stage.cpu_s() - cpu
    order = stage.pod.order[1:]
    for client in [first, *staying]:
        client.leave()
    turns = {number: turn for turn, number in enumerate(sorted(order))}
    return Waiting(
        requests=count,
        body_bytes=len(body),
        arrival_s=arrival,
        cpu_us_in=1e6 * cpu_in / count,
        bytes_each=grown / count,
        held_bytes=held,
        still_cpu_share=share,
        gone=len(going),
        gone_s=gone_s,
        served_s=served,
        cpu_us_out=1e6 * cpu_out / len(staying),
        displaced=max(abs(turns[number] - turn) for turn, number in enumerate(order)),
    )


async def opened(stage: Stage, count: int) -> Open:
    """`count` answers begin, and stay open for a while."""
    clients = await stage.crowd(count, "stream", chat(200))
    cpu, rss, began = stage.cpu_s(), stage.rss(), time.perf_counter()
    # One process is all the clients and the pod: with all at once it would be what is measured.
    async with asyncio.timeout(PATIENCE_S):
        for first in range(0, count, AT_ONCE):
            some = clients[first : first + AT_ONCE]
            for client in some:
                client.send()
            await asyncio.gather(*map(_served, some))
    await stage.until(RUNNING, count)
    took, cpu_in, grown = time.perf_counter() - began, stage.cpu_s() - cpu, stage.rss() - rss
    share = await stage.still()
    cpu, began = stage.cpu_s(), time.perf_counter()
    stage.pod.let_go.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(client.rest() for client in clients))
    await stage.until(RUNNING, 0)
    for client in clients:
        client.leave()
    return Open(
        streams=count,
        opened_s=took,
        cpu_us_in=1e6 * cpu_in / count,
        bytes_each=grown / count,
        still_cpu_share=share,
        closed_s=time.perf_counter() - began,
        cpu_us_out=1e6 * (stage.cpu_s() - cpu) / count,
    )


async def play(
    folder: Path, requests: int, streams: int, size: int, transport: str, still_s: float = STILL_S
) -> Outcome:
    """Both crowds, one after the other, each with a picker and an Envoy of its own."""
    async with Stage(folder, "queue", ONE_AT_A_TIME, transport, still_s) as stage:
        queue = await waiting(stage, requests, size)
        left, said = await stage.pages.left(10.0), stage.complaints()
    async with Stage(folder, "open", "", transport, still_s) as stage:
        stay = await opened(stage, streams)
        left |= await stage.pages.left(10.0)
        said += stage.complaints()
    here = machine.describe(machine.cores(os.sched_getaffinity(0)))
    return Outcome(waiting=queue, open=stay, complaints=said, left=left, machine=here)
