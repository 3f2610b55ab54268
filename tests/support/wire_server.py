"""The wire transport on a small pool, listening; and a client that writes bytes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from typing import TYPE_CHECKING, Any, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from prometheus_client import CollectorRegistry

from exchange_desk import ADDRESSES, Chosen, spec_of
from poolpilot_picker.extproc.certificates import Certificates, TlsFiles
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.listener import ListenerSettings
from poolpilot_picker.extproc.wire.transport import WireTransport
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.instruments.metrics import PickerMetrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from h2.events import Event

    from poolpilot_picker.extproc.wire.limits import Limits

WAIT_S = 15.0


class WireServer:
    """A picker's data port. At its end every stream and every booking must be gone."""

    def __init__(
        self,
        limits: Limits | None = None,
        tls: TlsFiles | Certificates | None = None,
        now: Callable[[], float] = lambda: time.monotonic() * 1000.0,
        **settings: Any,
    ) -> None:
        certificates = Certificates(tls) if isinstance(tls, TlsFiles) else tls
        self.pool = Pool("pool", Chosen(), random.Random(1))
        self.pool.apply_endpoints([spec_of(address) for address in ADDRESSES])
        self.metrics = PickerMetrics(CollectorRegistry())
        self.transport = WireTransport(
            ListenerSettings(address="127.0.0.1:0", tls=certificates, **settings),
            lambda: Exchange(self.pool, self.metrics, ExchangeSettings()),
            now,
            limits=limits,
        )
        self._clients: list[Raw] = []

    async def client(self, tls: ssl.SSLContext | None = None) -> Raw:
        """A new connection to it, closed at the end."""
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, limit=2**24)
        self._clients.append(Raw(*streams))
        return self._clients[-1]

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.transport.port

    @property
    def held(self) -> int:
        """Bytes kept for later."""
        return self.transport._held.bytes

    def booked(self) -> int:
        """Requests in flight."""
        return int(self.pool.table.requests.sum())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something to come true."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> Self:
        await self.transport.start()
        await self.transport.set_serving(serving=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        await self.transport.drain(0)
        for client in self._clients:
            await client.closed()
        if kind is None:
            assert self.transport.streams == 0 and self.booked() == 0 and self.held == 0


class Raw:
    """A TCP connection to a server, with an h2 client beside it for those who want one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self._answering: asyncio.Task[None] | None = None

    def greet(self) -> Raw:
        """Sends the preface."""
        self.h2.initiate_connection()
        return self.flush()

    def flush(self) -> Raw:
        """Sends what the h2 client has to say."""
        self.writer.write(self.h2.data_to_send())
        return self

    async def read(self) -> list[Event]:
        """New events; none when the server has closed."""
        data = await asyncio.wait_for(self.reader.read(2**20), WAIT_S)
        events = self.h2.receive_data(data) if data else []
        self.events += events
        self.flush()
        return events

    async def until(self, kind: type[Any]) -> Any:
        """The first event of a kind."""
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    return event
            data = await asyncio.wait_for(self.reader.read(2**20), WAIT_S)
            assert data, f"closed after {self.events}"
            self.events += self.h2.receive_data(data)
            self.flush()

    async def until_said(self, said: bytes) -> None:
        """Reads until these bytes have come, past the h2 client."""
        seen = b""
        while said not in seen:
            data = await asyncio.wait_for(self.reader.read(2**20), WAIT_S)
            assert data, f"closed after {seen!r}"
            seen += data

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), WAIT_S)
        except ConnectionError:
            return b""

    def keep_answering(self) -> None:
        """From now on: reads, and acknowledges what is to be acknowledged."""

        async def answer() -> None:
            with contextlib.suppress(ConnectionError):
                while await self.read() or not self.reader.at_eof():
                    pass

        self._answering = asyncio.ensure_future(answer())

    def close(self) -> None:
        """Closes without waiting for anything."""
        if self._answering is not None:
            self._answering.cancel()
        self.writer.transport.abort()

    async def closed(self) -> None:
        """Waits until it is closed."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()
        if self._answering is not None:
            await asyncio.gather(self._answering, return_exceptions=True)


def request_head(path: str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process") -> list[tuple[str, str]]:
    """Header fields of a gRPC call."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "picker"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]


def prefixed(message: bytes, flag: int = 0) -> bytes:
    """A gRPC message with its prefix."""
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message
