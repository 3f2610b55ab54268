"""Clients of a real Envoy in front of the picker, in each body mode: whole exchanges, and some that they break off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.bench.cost.gateway import BodyMode, gateway
from poolpilot_lab.bench.soak.pods import EVENT, EVENTS, WHOLE

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from poolpilot_lab.bench.soak.plane import Tally

CLIENTS: Final = 8
"""Side by side, for each body mode."""
BREAKS: Final = ("mid-body", "body", "mid-answer")
SIZES: Final = (1_000, 1_000, 1_000, 20_000, 200_000)
PATIENCE_S: Final = 30.0
HEAD: Final = b"\r\n".join(
    (
        b"POST /v1/chat/completions HTTP/1.1",
        b"host: pool",
        b"content-type: application/json",
        b"content-length: %d",
        b"",
        b"",
    )
)


async def play_behind_envoy(
    tally: Tally, port: int, models: Sequence[str], broken_share: float, rng: random.Random, folder: Path
) -> None:
    """Until no more exchanges are wanted. `port`: the picker's."""
    gateways = [gateway(folder, f"envoy-{mode.value}", [port], mode) for mode in BodyMode]
    try:
        for one in gateways:
            await one.start()
        players = [
            _client(one.address, mode.value, tally, models, broken_share, rng)
            for one, mode in zip(gateways, BodyMode, strict=True)
            for _ in range(CLIENTS)
        ]
        await asyncio.gather(*players)
    finally:
        for one in gateways:
            await one.child.stop()


async def _client(
    address: str, mode: str, tally: Tally, models: Sequence[str], broken_share: float, rng: random.Random
) -> None:
    host, _, port = address.rpartition(":")
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while tally.wanted > 0:
        tally.wanted -= 1
        tally.begun += 1
        broken = rng.choice(BREAKS) if rng.random() < broken_share else ""
        name = f"Envoy {mode}-{broken or 'whole'}"
        tally.scripts[name] += 1
        if streams is None:
            streams = await asyncio.open_connection(host, int(port))
            tally.connections[mode] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                problem = await _exchange(*streams, tally.begun, models, broken, rng)
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            problem = repr(error)
        if broken:
            tally.broken += 1
        elif problem:
            tally.failed[f"{name}: {problem}"] += 1
        else:
            tally.whole += 1
        if broken or problem:
            streams[1].transport.abort()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()
            streams = None
    if streams is not None:
        streams[1].close()


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    number: int,
    models: Sequence[str],
    broken: str,
    rng: random.Random,
) -> str:
    """One exchange, or its beginning where it is `broken`; what was wrong with the answer."""
    streamed = rng.random() < 0.5
    text = (f"question {number} " + "word " * (rng.choice(SIZES) // 5)) if rng.random() < 0.5 else "the same " * 500
    messages = [{"role": "user", "content": text}]
    body = msgspec.json.encode({"model": rng.choice(models), "stream": streamed, "messages": messages})
    sent = HEAD % len(body) + body
    writer.write(sent[: len(sent) // 2] if broken == "mid-body" else sent)
    await writer.drain()
    if broken in ("mid-body", "body"):
        return ""
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not answer.startswith(b"http/1.1 200"):
        return answer.split(b"\r\n", 1)[0].decode("latin-1")
    if broken:
        return ""
    wanted = EVENT * EVENTS if streamed else WHOLE
    if b"transfer-encoding: chunked" in answer:
        got = await _chunked(reader)
    else:
        got = await reader.readexactly(len(wanted))
    return "" if got == wanted else "another body"


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, without trailers. In full duplex every body comes so."""
    chunks: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(chunks)
