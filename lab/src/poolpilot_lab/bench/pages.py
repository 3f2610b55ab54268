"""Stand-in metrics pages for `bench.scrape`: many addresses, one process, pages of real shape at next to no cost.

Run by the bench as a process of its own: `python -m poolpilot_lab.bench.pages COUNT PORT` listens on COUNT addresses
from 127.0.1.1 on and says so in one line of JSON, with the sizes of its pages. The page is the stand-in engine's,
filled up with the families that an instrumented web server adds; running, waiting, KV usage and generated tokens differ
with every answer, as those of a working engine do, or never with `--idle`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl, urlsplit

import uvloop
from typing_extensions import override

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.engine.options import EngineConfig
from poolpilot_lab.engine.server import EngineServer, tune_collector
from poolpilot_picker.sources.http import HttpClient, Limits

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_BYTES: Final = 55_000
PER_NET: Final = 250
MODEL: Final = "model"
_MOVING: Final = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
)
_BUCKETS: Final = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "+Inf")
_MODELS: Final = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]})


def addresses(count: int) -> list[str]:
    """The loopback addresses of so many endpoints."""
    return [f"127.0.{1 + number // PER_NET}.{1 + number % PER_NET}" for number in range(count)]


async def engine_page() -> bytes:
    """The whole metrics page of one idle stand-in engine, filled up to `PAGE_BYTES`."""
    server = EngineServer(EngineConfig(port=0, profile=PROFILES["llama-3.1-8b-h100"], served_model_names=(MODEL,)))
    await server.start()
    try:
        client = HttpClient("127.0.0.1", server.port)
        body = (await client.get("/metrics", {}, Limits())).body
        client.close()
    finally:
        await server.close()
    return body + _filling(PAGE_BYTES - len(body))


def _filling(size: int) -> bytes:
    name = "http_request_duration_seconds"
    lines = [f"# HELP {name} Latency with only few buckets by handler.", f"# TYPE {name} histogram"]
    handler = 0
    while sum(map(len, lines)) + len(lines) < size:
        handler += 1
        labels = f'handler="/v1/handler-{handler}",method="POST"'
        lines += [f'{name}_bucket{{{labels},le="{bound}"}} {handler}.0' for bound in _BUCKETS]
        lines += [f"{name}_count{{{labels}}} {handler}.0", f"{name}_sum{{{labels}}} {handler / 7}"]
    return ("\n".join(lines) + "\n").encode() if handler else b""


class Pages:
    """The answers to every target: whole or selected pages whose moving values are new each time."""

    def __init__(self, page: bytes, *, idle: bool = False) -> None:
        self._idle = idle
        self._lines = page.decode().splitlines(keepends=True)
        self._pieces: dict[bytes, tuple[list[bytes], list[int]]] = {}
        self._answers = 0

    def answer(self, target: bytes) -> bytes:
        """One HTTP answer."""
        self._answers += 1
        if target == b"/v1/models":
            return _answer(_MODELS.encode(), "application/json")
        known = self._pieces.get(target)
        if known is None:
            known = self._pieces[target] = self._cut(target.decode())
        pieces, holes = known
        count = self._answers
        if self._idle:
            count = 0
        moving = (b"%d.0" % (count * 7 % 300), b"%d.0" % (count % 5), b"0.%d" % (count * 37 % 1000), b"%d.0" % count)
        for at, which in enumerate(holes):
            pieces[2 * at + 1] = moving[which]
        return _answer(b"".join(pieces), "text/plain; version=1.0.0; charset=utf-8")

    def _cut(self, target: str) -> tuple[list[bytes], list[int]]:
        """The page as constant pieces with a hole between each two, and which moving value each hole takes."""
        url = urlsplit(target)
        names = {value for key, value in parse_qsl(url.query) if key == "name[]"} if url.path.endswith("/") else None
        pieces, holes, fixed = [], [], ""
        for line in self._selected(names):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            if name in _MOVING:
                fixed += line[: line.rindex(" ") + 1]
                pieces += [fixed.encode(), b""]
                holes.append(_MOVING.index(name))
                fixed = "\n"
            else:
                fixed += line
        return [*pieces, fixed.encode()], holes

    def _selected(self, names: set[str] | None) -> Iterable[str]:
        header: list[str] = []
        for line in self._lines:
            if line.startswith("# HELP"):
                header = [line]
            elif line.startswith("#"):
                header.append(line)
            elif names is None or re.split(r"[{ ]", line, maxsplit=1)[0] in names:
                yield from header
                header = []
                yield line


def _answer(body: bytes, content_type: str) -> bytes:
    head = (
        "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Answers each GET that arrives whole, which is how pollers send them."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._pages.answer(data.split(b" ", 2)[1]))


async def _serve(count: int, port: int, *, idle: bool) -> None:
    pages = Pages(await engine_page(), idle=idle)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers = [
        await loop.create_server(lambda: _Connection(pages), address, port, backlog=64) for address in addresses(count)
    ]
    print(json.dumps({"addresses": count, "page_bytes": len(pages.answer(b"/metrics"))}), flush=True)
    await stop.wait()
    for server in servers:
        server.close()


def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("count", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("--idle", action="store_true", help="engines without work")
    options = parser.parse_args()
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options.count, options.port, idle=options.idle))


if __name__ == "__main__":
    main()
