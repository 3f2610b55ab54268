"""The stand-in servers and the load generator: a small Go program, built once into the user's cache and steered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import aiohttp
import msgspec

from poolpilot_lab import gotools
from poolpilot_lab.bench.cost.pages import MODELS, metrics_page, model_list
from poolpilot_lab.bench.errors import BenchError, UsageError
from poolpilot_lab.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

SOURCE: Final = Path(__file__).parent / "tools"
_PER_NET: Final = 250
_T = TypeVar("_T")


async def built(say: Callable[[str], None] | None = None) -> Path:
    """The program; UsageError where there is no Go, BenchError where it does not build. `say` hears of builds."""
    try:
        return await gotools.built(gotools.GoProgram(SOURCE), say)
    except gotools.BuildFailedError as failed:
        raise BenchError(failed.reason) from failed
    except gotools.NotAvailable as missing:
        raise UsageError(f"stand-in servers and load generator: {missing.reason}") from missing


def addresses(count: int, port: int) -> list[str]:
    """The stand-in servers' addresses: 127.0.1.1 and on, as many as there are endpoints."""
    return [f"127.0.{1 + index // _PER_NET}.{1 + index % _PER_NET}:{port}" for index in range(count)]


class _Ready(msgspec.Struct):
    port: int


class _Steered:
    """One process of the program and the port on which it takes orders."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._port = 0

    async def __aenter__(self) -> Self:
        """ProcessError if it does not start."""
        self._port = msgspec.json.decode(await self.child.start().line(), type=_Ready).port
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.child.stop(0.0)

    async def _order(self, path: str, body: object, kind: type[_T]) -> _T:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        url = f"http://127.0.0.1:{self._port}{path}"
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(url, data=msgspec.json.encode(body)) as answer,
            ):
                status, said = answer.status, await answer.read()
        except aiohttp.ClientError as error:
            raise BenchError(f"{self.child.name}: {error}\n{self.child.tail()}") from error
        if status != 200:
            raise BenchError(f"{self.child.name}: {said.decode('utf-8', 'replace').strip()}\n{self.child.tail()}")
        return msgspec.json.decode(said, type=kind)


class Counts(msgspec.Struct):
    """Of all servers since their start: metrics pages and their bytes, model lists, completions."""

    pages: int
    page_bytes: int
    models: int
    requests: int


class Servers(_Steered):
    """Model servers on many loopback addresses. `selects`: whether they can serve single families of their page."""

    def __init__(self, program: Path, where: Sequence[str], folder: Path, *, selects: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        page, models = folder / "metrics.txt", folder / "models.json"
        page.write_bytes(metrics_page())
        models.write_bytes(model_list())
        argv = [
            str(program), "serve", "-listen", ",".join(where), "-page", str(page), "-models", str(models),
            f"-select={'true' if selects else 'false'}",
        ]  # fmt: skip
        super().__init__(Child("servers", argv, log=folder / "servers.log", out=folder / "servers.ready"))

    async def shape(self, chunks: int, interval_ms: float) -> None:
        """Of streamed answers from now on."""
        await self._order("/shape", {"chunks": chunks, "interval_ms": interval_ms}, dict[str, float])

    async def counts(self) -> Counts:
        """Now."""
        return await self._order("/counts", {}, Counts)


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """How requests look: bytes of the body; `prefixes` common beginnings of `prefix_share` of it, 0 for none."""

    bytes: int
    stream: bool = False
    models: tuple[str, ...] = MODELS[:1]
    prefixes: int = 0
    prefix_share: float = 0.0


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run: a closed loop of `concurrency` clients, or `rate` arrivals a second (Poisson); so long or so many."""

    target: str = ""
    concurrency: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    stagger_ms: float = 0.0
    prompt: Prompt
    seed: int = 1
    limit_s: float = 120.0


class Quantiles(msgspec.Struct):
    """In ms."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class LoadResult(msgspec.Struct):
    """What the clients saw. `latency_ms` counts, in the open loop, from the time at which a request was due."""

    count: int
    errors: int
    reasons: dict[str, int]
    seconds: float
    chunks: int
    latency_ms: Quantiles
    first_byte_ms: Quantiles
    late_p99_ms: float
    connections: int


class ProbeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Exchanges with a picker, without Envoy: `rate` arrivals a second (Poisson); messages are serialized protobuf."""

    target: str
    rate: float
    requests: int
    seed: int
    head: bytes
    bodies: list[bytes]
    """One of them follows the head; then comes the reply, and after it the tail."""
    tail: list[bytes]
    limit_s: float = 120.0


class ProbeResult(msgspec.Struct):
    """`handed_ms`: from before the write of a request's last byte until the picker handed the reply's first to its
    socket, by the kernel; `reply_ms`: from that write until that byte was read; `late_ms`: of the prober."""

    count: int
    errors: int
    unstamped: int
    """Replies of which the kernel told no time: `reply_ms` stands for `handed_ms`."""
    handed_ms: Quantiles
    reply_ms: Quantiles
    late_ms: Quantiles


class Generator(_Steered):
    """The clients of Envoy, and of pickers."""

    def __init__(self, program: Path, folder: Path) -> None:
        argv = [str(program), "load"]
        super().__init__(Child("load generator", argv, log=folder / "load.log", out=folder / "load.ready"))

    async def run(self, spec: LoadSpec) -> LoadResult:
        """Returns when the last answer is there."""
        return await self._order("/run", spec, LoadResult)

    async def probe(self, spec: ProbeSpec) -> ProbeResult:
        """Returns when the last exchange has ended."""
        return await self._order("/probe", spec, ProbeResult)
