"""Requests to pods: one at a time, or a steady load that counts what fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import msgspec

from poolpilot_lab.client.chat import INSTANCE, OUTPUT_TOKENS, PATH
from poolpilot_lab.client.errors import ClientError
from poolpilot_lab.client.pool import HttpClient

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from poolpilot_lab.client.connection import Answer

RECEIPT: Final = "x-poolpilot-receipt"
_WAIT_S: Final = 30.0
_KEPT: Final = 20


async def get(host: str, path: str, port: int = 80) -> tuple[int, str]:
    """Status and body; (0, reason) without an answer."""
    try:
        async with (
            asyncio.timeout(_WAIT_S),
            aiohttp.ClientSession() as session,
            session.get(f"http://{host}:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()
    except (aiohttp.ClientError, OSError) as error:
        return 0, str(error) or "no answer"


def chat(model: str, words: str) -> bytes:
    """A streamed chat completion."""
    message = {"role": "user", "content": words}
    return msgspec.json.encode({"model": model, "messages": [message], "stream": True})


@dataclass
class Exchange:
    """One request that was answered."""

    status: int
    pod: str
    """Name of the engine that answered."""
    receipt: dict[str, Any]
    complete: bool


async def ask(
    client: HttpClient, model: str, words: str, tokens: int = 5, headers: Mapping[str, str] | None = None
) -> Exchange:
    """A chat, with the picker's receipt. Raises ClientError or TimeoutError."""
    sent = {"content-type": "application/json", RECEIPT: "1", OUTPUT_TOKENS: str(tokens), **(headers or {})}
    async with asyncio.timeout(_WAIT_S):
        answer = await client.request("POST", PATH, sent, chat(model, words))
    receipt = answer.headers.get(RECEIPT)
    return Exchange(
        answer.status,
        answer.headers.get(INSTANCE, ""),
        msgspec.json.decode(receipt) if receipt else {},
        _is_complete(answer),
    )


def _is_complete(answer: Answer) -> bool:
    return answer.body.rstrip().endswith(b"[DONE]")


@dataclass
class Load:
    """Some clients that ask again and again, each on connections of its own, while the context lasts."""

    host: str
    port: int
    model: str
    clients: int = 6
    tokens: int = 20
    pause_s: float = 0.02
    answered: Counter[str] = field(default_factory=Counter)
    """By engine."""
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _running: bool = True

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(self.clients)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        async with asyncio.timeout(2 * _WAIT_S):
            await asyncio.gather(*self._tasks)

    @property
    def total(self) -> int:
        """Answered requests."""
        return self.answered.total()

    async def more(self, count: int, within_s: float = 60.0) -> None:
        """Waits for so many more answers or failures."""
        wanted = self.total + self.failed + count
        async with asyncio.timeout(within_s):
            while self.total + self.failed < wanted:
                await asyncio.sleep(0.02)

    async def _client(self, number: int) -> None:
        client = HttpClient(self.host, self.port)
        turn = 0
        with contextlib.closing(client):
            while self._running:
                turn += 1
                try:
                    got = await ask(client, self.model, f"client {number} turn {turn}", self.tokens)
                except (ClientError, TimeoutError) as error:
                    self._fail(str(error) or "no answer")
                else:
                    if got.status == 200 and got.complete:
                        self.answered[got.pod] += 1
                    else:
                        self._fail(f"status {got.status}, {'complete' if got.complete else 'cut off'}, of {got.pod}")
                await asyncio.sleep(self.pause_s)

    def _fail(self, reason: str) -> None:
        self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(reason)
