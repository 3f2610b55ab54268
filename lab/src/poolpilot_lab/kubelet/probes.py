"""Probes of a container: one check, and what a row of results means."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp
import grpc.aio

from poolpilot_lab.kubelet.environment import MissingError, port_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from poolpilot_lab.kubelet.objects import Json

_SERVING: Final = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse with status SERVING."""


@dataclass(slots=True)
class Threshold:
    """Turns results into verdicts: after so many of one kind in a row."""

    successes: int
    failures: int
    _row: int = 0
    _last: bool | None = None

    @classmethod
    def of(cls, probe: Json) -> Threshold:
        """As the API has it."""
        return cls(probe.get("successThreshold", 1), probe.get("failureThreshold", 3))

    def add(self, good: bool) -> bool | None:
        """The verdict, given again with each further result; None while the row is too short."""
        self._row = self._row + 1 if good is self._last else 1
        self._last = good
        return good if self._row >= (self.successes if good else self.failures) else None


async def check(probe: Json, container: Json, address: str, run: Callable[[Sequence[str]], Awaitable[int]]) -> str:
    """Why the probe fails; nothing if it succeeds."""
    limit_s = probe.get("timeoutSeconds", 1)
    try:
        async with asyncio.timeout(limit_s):
            return await _check(probe, container, address, run)
    except TimeoutError:
        return f"no answer within {limit_s} s"
    except (OSError, aiohttp.ClientError, grpc.RpcError, MissingError) as error:
        return str(error) or type(error).__name__


async def _check(probe: Json, container: Json, address: str, run: Callable[[Sequence[str]], Awaitable[int]]) -> str:
    if "httpGet" in probe:
        return await http_get(probe["httpGet"], container, address)
    if "tcpSocket" in probe:
        there = probe["tcpSocket"]
        _, writer = await asyncio.open_connection(there.get("host") or address, port_number(container, there["port"]))
        writer.close()
        return ""
    if "grpc" in probe:
        return await _grpc(probe["grpc"], address)
    code = await run(probe["exec"]["command"])
    return f"the command ended with exit code {code}" if code else ""


async def http_get(there: Json, container: Json, address: str) -> str:
    """Why a GET fails; nothing for a status from 200 to 399. Certificates are not verified."""
    port = port_number(container, there["port"])
    url = f"{there.get('scheme', 'HTTP').lower()}://{there.get('host') or address}:{port}{there.get('path', '/')}"
    headers = {"user-agent": "kube-probe/1.37", **{one["name"]: one["value"] for one in there.get("httpHeaders", ())}}
    # A connection of its own each time, as a kubelet's: what is kept open would hold up the end of a server.
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
    ):
        return "" if 200 <= answer.status < 400 else f"{url}: status {answer.status}"


async def _grpc(there: Json, address: str) -> str:
    service = (there.get("service") or "").encode()
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    async with grpc.aio.insecure_channel(f"{address}:{there['port']}") as channel:
        answer = await channel.unary_unary("/grpc.health.v1.Health/Check")(request)
    return "" if answer == _SERVING else "the service is not SERVING"
