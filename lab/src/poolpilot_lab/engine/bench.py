"""Measures how punctual the stand-in is: `python -m poolpilot_lab.engine.bench`.

The server runs in a process of its own on one core, the client on another. Both read the same monotonic clock, and the
server notes when each token was due by the model, so that lateness is measured per token from the model's plan to the
client's `data_received`, kernel and client included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import uvloop
from typing_extensions import override

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.engine.options import EngineConfig
from poolpilot_lab.engine.server import EngineServer, tune_collector

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from poolpilot_lab.engine.generation import Answer
    from poolpilot_lab.engine.model import Outcome, Sequence


async def _serve(config: EngineConfig, pipe: Connection) -> None:
    """Runs the server until the parent says stop, then sends when each token was due, per request."""
    server = EngineServer(config)
    await server.start()
    due: dict[Sequence, list[float]] = {}
    names: dict[Sequence, str] = {}
    deliver = server.frontend.driver.deliver

    def noted(outcome: Outcome) -> None:
        for sequence in outcome.first_tokens:
            answer, _ = cast("tuple[Answer, int]", sequence.tag)
            names[sequence] = answer.exchange.headers["x-request-id"]
        deliver(outcome)
        for sequence, _ in outcome.tokens:
            due.setdefault(sequence, []).append(sequence.last_token)

    server.frontend.driver.deliver = noted
    pipe.send(server.port)
    started = time.process_time()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    busy = time.process_time() - started
    pipe.send({"due": {names[sequence]: times for sequence, times in due.items()}, "cpu_s": busy})
    await server.close()


def _server_process(config: EngineConfig, pipe: Connection, core: int) -> None:
    os.sched_setaffinity(0, {core})
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, pipe))


class _Stream(asyncio.Protocol):
    """One streaming request; notes when each event arrived."""

    def __init__(self, name: str, request: bytes, done: asyncio.Future[None]) -> None:
        self.name = name
        self.arrivals: list[float] = []
        self._request = request
        self._done = done

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    @override
    def data_received(self, data: bytes) -> None:
        now = time.monotonic() * 1000
        tokens = data.count(b'"text":"')
        if tokens:
            self.arrivals.extend([now] * tokens)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


def _request(name: str, prompt_tokens: int, output_tokens: int) -> bytes:
    words = " ".join(f"w{index % 7}" for index in range(prompt_tokens // 2))
    body = json.dumps({"prompt": f"{name} {words}", "stream": True}).encode()
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\nx-request-id: {name}\r\n"
        f"x-engine-output-tokens: {output_tokens}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _client(port: int, streams: int, prompt_tokens: int, output_tokens: int) -> dict[str, list[float]]:
    loop = asyncio.get_running_loop()
    opened: list[_Stream] = []
    waits: list[asyncio.Future[None]] = []
    for number in range(streams):
        done: asyncio.Future[None] = loop.create_future()
        stream = _Stream(f"s{number}", _request(f"s{number}", prompt_tokens, output_tokens), done)
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)  # type: ignore[misc]
        opened.append(stream)
        waits.append(done)
    await asyncio.gather(*waits)
    return {stream.name: stream.arrivals for stream in opened}


def lateness(due: dict[str, list[float]], arrivals: dict[str, list[float]]) -> tuple[NDArray[np.float64], float, float]:
    """Lateness in ms of every token that arrived while all streams ran; mean time between tokens, due and seen."""
    begin = max(times[0] for times in due.values())
    end = min(times[-1] for times in due.values())
    late: list[NDArray[np.float64]] = []
    planned: list[float] = []
    seen: list[float] = []
    for name, expected in due.items():
        wanted, got = np.array(expected), np.array(arrivals[name])
        if len(wanted) != len(got):
            raise RuntimeError(f"stream {name}: {len(wanted)} tokens were due, {len(got)} arrived")
        inside = (wanted >= begin) & (wanted <= end)
        late.append((got - wanted)[inside])
        planned.append(float(np.diff(wanted[inside]).mean()))
        seen.append(float(np.diff(got[inside]).mean()))
    return np.concatenate(late), float(np.mean(planned)), float(np.mean(seen))


def measure(
    config: EngineConfig, streams: int, prompt_tokens: int, output_tokens: int, cores: tuple[int, int]
) -> dict[str, float]:
    """One run: server on `cores[0]`, client on `cores[1]`."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_server_process, args=(config, there, cores[0]), daemon=True)
    process.start()
    try:
        port = here.recv()
        os.sched_setaffinity(0, {cores[1]})
        tune_collector()
        started = time.monotonic()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            arrivals = runner.run(_client(port, streams, prompt_tokens, output_tokens))
        elapsed = time.monotonic() - started
        here.send(None)
        told = here.recv()
    finally:
        process.join(timeout=5)
        process.kill()
    late, planned, seen = lateness(told["due"], arrivals)
    return {
        "streams": streams,
        "tokens": float(late.size),
        "step_ms": planned,
        "tokens_per_s_per_stream": 1000 / planned,
        "mean_error_pct": 100 * (seen / planned - 1),
        "late_p50_ms": float(np.percentile(late, 50)),
        "late_p99_ms": float(np.percentile(late, 99)),
        "late_p99_pct_of_step": 100 * float(np.percentile(late, 99)) / planned,
        "late_max_ms": float(late.max()),
        "server_cpu_pct": 100 * told["cpu_s"] / elapsed,
    }


def main(argv: list[str]) -> int:
    """Prints one JSON object per run."""
    top = argparse.ArgumentParser(prog="python -m poolpilot_lab.engine.bench", description=__doc__.splitlines()[0])
    top.add_argument("--streams", type=int, nargs="+", default=[200], help="concurrent streams, one run each")
    top.add_argument("--prompt-tokens", type=int, default=64)
    top.add_argument("--output-tokens", type=int, default=600, help="per stream: the length of a run in steps")
    top.add_argument("--profile", default="llama-3.1-8b-h100", choices=sorted(PROFILES))
    top.add_argument("--time-scale", type=float, default=0.9, help="0.9 gives about 50 tokens/s at 200 streams")
    top.add_argument("--cores", type=int, nargs=2, default=[0, 1], metavar=("SERVER", "CLIENT"))
    values = top.parse_args(argv)
    config = EngineConfig(port=0, profile=PROFILES[values.profile], time_scale=values.time_scale)
    for streams in values.streams:
        config = replace(config, max_num_seqs=max(256, streams))
        cores = (values.cores[0], values.cores[1])
        result = measure(config, streams, values.prompt_tokens, values.output_tokens, cores)
        print(json.dumps({key: round(value, 3) for key, value in result.items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
