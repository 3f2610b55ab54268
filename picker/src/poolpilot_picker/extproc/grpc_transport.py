"""The reference transport: ext_proc and health over grpc.aio, between Envoy's bytes and the exchanges."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.codec import dispatch, encode
from poolpilot_picker.extproc.listener import SERVICE
from poolpilot_picker.extproc.ports import stop_listening
from poolpilot_picker.instruments.seldom import Seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from poolpilot_picker.extproc.certificates import Certificates
    from poolpilot_picker.extproc.exchange import Exchange
    from poolpilot_picker.extproc.listener import ListenerSettings
    from poolpilot_picker.extproc.replies import Reply

log = logging.getLogger(__name__)

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
LAST_WORDS_S: Final = 2.0
"""For what streams still have to say when their time is over."""
AGE_S: Final = 10.0
"""Of a connection whose process may be replaced: see `_hand_over`."""
HELD_S: Final = 1.0
"""The last stream of a connection ends so long after the others: see `_end_streams`."""
FAILURES: Final = {
    "Internal": (grpc.StatusCode.INTERNAL, "the picker failed; its log has the details"),
    "Unavailable": (grpc.StatusCode.UNAVAILABLE, "the picker is shutting down"),
}


class _Stream:
    """One open stream, and the task that serves it."""

    __slots__ = ("_turn", "context", "ending", "exchange", "late", "reading", "task", "watching")

    def __init__(
        self, exchange: Exchange, task: asyncio.Task[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        self.exchange = exchange
        self.task = task
        self.context = context
        self.reading = False
        """Waiting for a message: nothing is half done, so the wait may be broken off."""
        self.watching = False
        """Observability mode: nobody reads our answers."""
        self.ending = False
        self._turn = asyncio.Lock()
        self.late: asyncio.Task[None] | None = None
        """Writes what was said without being asked; everything else waits until it has."""
        exchange.outlet = self

    def say(self, replies: list[Reply]) -> None:
        """What the exchange says without being asked: behind what was said before."""
        before = self.late

        async def write() -> None:
            if before is not None:
                await before
            await self._write(replies)

        self.late = asyncio.get_running_loop().create_task(write())
        self.late.add_done_callback(_look_away)

    async def answer(self, replies: list[Reply]) -> None:
        """Writes what a message was answered."""
        late, self.late = self.late, None
        if late is not None:
            await late
        await self._write(replies)

    async def _write(self, replies: list[Reply]) -> None:
        # One write at a time: what is dispatched while patience is still being asked for comes second.
        async with self._turn:
            for reply in replies:
                await self.context.write(encode(reply))

    def end(self) -> None:
        """Has the stream say its last words, as soon as what it is saying is said."""
        self.ending = True
        if self.reading:
            self.task.cancel()


def _look_away(task: asyncio.Task[None]) -> None:
    """A stream that is gone cannot be written to: its own task finds out, and says so."""
    if not task.cancelled():
        task.exception()


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Each handshake asks for what has changed. It does so in a thread of the library."""
    in_use = certificates.files

    def configured() -> grpc.ServerCertificateConfiguration:
        pairs = [(in_use.key, in_use.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, in_use.client_ca)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal in_use
        if certificates.files is in_use:
            return None
        in_use = certificates.files
        return configured()

    return grpc.dynamic_ssl_server_credentials(
        configured(), changed, require_client_authentication=in_use.client_ca is not None
    )


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
        self._streams: dict[_Stream, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._hurry = asyncio.Event()
        self._seldom = Seldom()
        self.port = 0
        self.ended: dict[str, int] = {}
        """Streams that have ended, by gRPC code, spelled as Go's pickers do."""

    @property
    def streams(self) -> int:
        """Open streams."""
        return len(self._streams)

    async def start(self) -> int:
        """Listens; returns the port chosen. Raises StartError where that is not possible."""
        # Channel code of grpc.aio polls in a loop of its own; it must be bound to this one.
        grpc.aio.init_grpc_aio()
        age = [("grpc.max_connection_age_ms", int(1000 * AGE_S))] if self._settings.shares_port else []
        server = grpc.aio.server(
            options=[
                *age,
                ("grpc.max_receive_message_length", self._settings.max_receive_bytes),
                ("grpc.max_send_message_length", self._settings.max_receive_bytes),
                ("grpc.max_concurrent_streams", self._settings.max_streams),
                # Two pickers on one port must fail loudly, not share it, unless one replaces the other.
                ("grpc.so_reuseport", int(self._settings.shares_port)),
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
        self.port = self._bind(server)
        await self.set_serving(serving=False)
        await server.start()
        self._server = server
        return self.port

    def _bind(self, server: grpc.aio.Server) -> int:
        address, tls = self._settings.address, self._settings.tls
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(tls))
        except RuntimeError as error:
            # gRPC does not tell why, and its own advice (set a variable) helps nobody here.
            raise StartError(
                f"cannot listen on {address} for ext_proc: the port is taken, or the address is not one of this machine"
            ) from error
        return int(port)

    async def set_serving(self, *, serving: bool) -> None:
        """What the health service answers, overall and for the pool."""
        for service in self._services:
            await self._health.set(service, SERVING if serving else NOT_SERVING)

    def hurry(self) -> None:
        """Ends the grace of a drain now, also of one that has not begun."""
        self._hurry.set()

    async def drain(self, grace_s: float, *, replaced: bool = False) -> None:
        """Refuses new streams (GOAWAY), lets open ones finish, and ends those still open after `grace_s`.

        Those are ended one by one, in the way that does the least harm to their exchange: see `Exchange.give_up`.
        `replaced`: another process serves the port, so health does not change.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if replaced:
            await self._hand_over()
        else:
            await self._health.enter_graceful_shutdown()
        # The time is a bound for what is no stream of ours, such as a watch on the health service.
        stopping = asyncio.ensure_future(server.stop(grace_s + 3.0 * LAST_WORDS_S + HELD_S))
        await self._until(self._empty, grace_s)
        self._hurry.clear()
        await self._end_streams()
        # A status leaves after its handler has returned; stopping at once would overtake it and cut answers off.
        await asyncio.wait({stopping}, timeout=LAST_WORDS_S)
        await server.stop(0)
        await stopping

    async def _hand_over(self) -> None:
        """Leaves all connections to the process that replaces this one, as if each had reached its age.

        A server of the library that stops cancels what is on its way to it. A connection that is too old only sends
        GOAWAY, and the server takes what was sent before that was read. So it stops when no connection is left but
        those of open streams.
        """
        stop_listening(self.port)
        # The library lets the age vary by a tenth.
        await self._until(asyncio.Event(), 1.3 * AGE_S)

    async def _end_streams(self) -> None:
        """Ends what is open, and on each connection one stream later than the others.

        The library closes a connection with its last stream. What the peer has just sent then meets a closed socket,
        TCP resets, and the peer loses statuses that it has not read yet: answers would be cut off.
        """
        # Those first that wait for room: what the others leave behind must not be taken for room.
        await self._end([one for one in self._streams if one.exchange.waits], 0.0)
        held: dict[str, _Stream] = {}
        youngest_first = reversed(list(self._streams))
        others = [one for one in youngest_first if held.setdefault(one.context.peer(), one) is not one]
        await self._end(others, HELD_S)
        await self._end(held.values(), 0.0)

    async def _end(self, streams: Collection[_Stream], patience_s: float) -> None:
        """Ends streams, waits until their statuses are sent, and then up to `patience_s` until all others are gone."""
        if not streams:
            return
        sent, left = asyncio.Event(), len(streams)

        def done(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                sent.set()

        for stream in streams:
            stream.context.add_done_callback(done)
            stream.end()
        await self._until(sent, LAST_WORDS_S)
        await self._until(self._empty, patience_s)

    async def _until(self, event: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.ensure_future(one.wait()) for one in (event, self._hurry)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        stream = _Stream(self._new_exchange(), task, context)
        self._streams[stream] = None
        self._empty.clear()
        code = "OK"
        try:
            code = await self._serve(stream, context)
            if code in FAILURES:
                await context.abort(*FAILURES[code])
        except asyncio.CancelledError:
            code = "Canceled"
            raise
        finally:
            self._streams.pop(stream, None)
            if not self._streams:
                self._empty.set()
            self.ended[code] = self.ended.get(code, 0) + 1
            stream.exchange.closed(now=self._now())

    async def _serve(self, stream: _Stream, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """Messages in, answers out, to the end of the stream; returns the code to end it with."""
        exchange, now = stream.exchange, self._now
        try:
            while not stream.ending:
                stream.reading = True
                message = await context.read()
                stream.reading = False
                if message is grpc.aio.EOF:
                    return "OK"
                if message.observability_mode:
                    # Nobody reads our answers, so nothing is placed.
                    stream.watching = True
                    continue
                await stream.answer(dispatch(exchange, message, now()))
        except asyncio.CancelledError:
            if not (stream.ending and stream.reading):
                raise
            stream.task.uncancel()
        except Exception:
            if context.done():
                return "Canceled"
            # A fault of ours, or bytes that are no message: the data plane's failure mode says what becomes of it.
            if count := self._seldom.due("stream", now()):
                log.exception("a stream failed", extra={"times": count})
            return "Internal"
        if stream.watching:
            return "OK"
        replies = exchange.give_up(now())
        await stream.answer(replies or [])
        return "OK" if replies is not None else "Unavailable"
