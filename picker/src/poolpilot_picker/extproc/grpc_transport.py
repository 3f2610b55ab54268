"""The reference transport: ext_proc and health over grpc.aio, between Envoy's bytes and the exchanges."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from poolpilot_picker.extproc.codec import dispatch, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_picker.extproc.exchange import Exchange

log = logging.getLogger(__name__)

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM contents for a TLS listener; `client_ca` asks for client certificates."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One listening port: one pool."""

    address: str
    max_receive_bytes: int = 66 * 2**20
    """Above Envoy's buffer limit (32 MiB in our configurations, 64 MiB at most) plus 2 MiB."""
    max_streams: int = 100_000
    tls: TlsFiles | None = None


class GrpcTransport:
    """A server for one pool. `new_exchange` makes the state machine of a stream, `now` is the clock (ms)."""

    def __init__(
        self,
        settings: ListenerSettings,
        new_exchange: Callable[[], Exchange],
        now: Callable[[], float],
        health_services: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._new_exchange = new_exchange
        self._now = now
        self._services = ("", SERVICE, *health_services)
        self._server: grpc.aio.Server | None = None
        self._health = health_aio.HealthServicer()
        self._streams: dict[Exchange, asyncio.Task[Any]] = {}
        self.port = 0
        self.streams_total = 0

    @property
    def streams(self) -> int:
        """Open streams."""
        return len(self._streams)

    async def start(self) -> int:
        """Listens; returns the port chosen."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._settings.max_receive_bytes),
                ("grpc.max_send_message_length", self._settings.max_receive_bytes),
                ("grpc.max_concurrent_streams", self._settings.max_streams),
                # Two pickers on one port must fail loudly, not share it.
                ("grpc.so_reuseport", 0),
                # A data plane that vanished without a word must not hold bookings for ever.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ext_proc.ProcessingRequest.FromString,
            response_serializer=ext_proc.ProcessingResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        tls = self._settings.tls
        if tls is None:
            self.port = server.add_insecure_port(self._settings.address)
        else:
            credentials = grpc.ssl_server_credentials(
                [(tls.key, tls.certificate)], tls.client_ca, require_client_auth=tls.client_ca is not None
            )
            self.port = server.add_secure_port(self._settings.address, credentials)
        await self.set_serving(serving=False)
        await server.start()
        self._server = server
        return self.port

    async def set_serving(self, *, serving: bool) -> None:
        """What the health service answers, overall and for the pool."""
        for service in self._services:
            await self._health.set(service, SERVING if serving else NOT_SERVING)

    async def drain(self, grace_s: float) -> None:
        """Refuses new streams (GOAWAY), lets open ones finish, and after `grace_s` ends what may be ended safely."""
        server = self._server
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.ensure_future(server.stop(grace_s + 2.0))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), grace_s)
        for exchange, task in list(self._streams.items()):
            if exchange.give_up(self._now()) == []:
                task.cancel("drained")
        await stopping
        self._server = None

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        exchange = self._new_exchange()
        task = asyncio.current_task()
        assert task is not None
        self._streams[exchange] = task
        self.streams_total += 1
        now = self._now
        try:
            while True:
                message = await context.read()
                if message is grpc.aio.EOF:
                    return
                if message.observability_mode:
                    # Nobody reads our answers, so nothing is placed.
                    continue
                for reply in dispatch(exchange, message, now()):
                    await context.write(encode(reply))
        except asyncio.CancelledError as cancelled:
            if cancelled.args == ("drained",) and exchange.give_up(now()) == []:
                # The rest of the response passes without us; ending with OK leaves it whole.
                return
            raise
        finally:
            del self._streams[exchange]
            exchange.closed(now=now())
