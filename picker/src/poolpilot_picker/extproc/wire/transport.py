"""The wire transport: sockets of asyncio, connections without I/O between them and the exchanges."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, cast

import msgspec

from poolpilot_picker.extproc.listener import SERVICE
from poolpilot_picker.extproc.wire.calls import Service
from poolpilot_picker.extproc.wire.connection import Connection, unheard
from poolpilot_picker.extproc.wire.errors import Code
from poolpilot_picker.extproc.wire.health import HealthBoard
from poolpilot_picker.extproc.wire.limits import Held, Limits
from poolpilot_picker.extproc.wire.listening import ALPN, Listener, listen
from poolpilot_picker.instruments.seldom import Seldom
from poolpilot_picker.patience import timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_picker.extproc.exchange import Exchange
    from poolpilot_picker.extproc.listener import ListenerSettings

log = logging.getLogger(__name__)

LAST_WORDS_S: Final = 2.0
"""For what still has to be written, and read by the peers, when the time is over."""
LINGER_S: Final = 1.0
"""For a peer to close its side after ours."""
WRITE_HIGH: Final = 4 * 2**20
"""Bytes that the socket has not taken: from here on nothing more is read."""
WRITE_LOW: Final = 2**20


class Socket(asyncio.Protocol):
    """One TCP connection: bytes between its socket and its `Connection`."""

    def __init__(self, server: WireTransport) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._stalled_since: float | None = None
        self._closed_at: float | None = None
        self._turn_due = False
        self._reading = True
        self._flush_due = False
        self.connection = server.new_connection()
        self.connection.spoke = self._flush_soon

    # ---- told by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != ALPN:
            self.connection.fail(Code.HTTP_1_1_REQUIRED, "a TLS client does not offer HTTP/2 (ALPN h2)")
            self._server.complain(self.connection)
            transport.abort()
            return
        self._server.opened(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        connection, transport = self.connection, self._transport
        connection.receive(data, self._server.now())
        if transport is None or connection.closing or not connection.open:
            self.flush()
        elif connection.sender.out:
            transport.write(connection.take())
        if connection.more:
            self._take_turns()

    def eof_received(self) -> bool:
        """A half-closed connection is of no use to a client, nor to us."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.connection.spoke = unheard
        self.connection.lost()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._stalled_since = self._server.now()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self.connection.more:
            self._take_turns()
        self._read_or_not()

    # ---- a share of the event loop

    def _take_turns(self) -> None:
        """There is more to do than for one turn: others come first, and nothing is read meanwhile."""
        if not self._turn_due:
            self._turn_due = True
            self._read_or_not()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._stalled_since is None:
            self.data_received(b"")
        self._read_or_not()

    def _read_or_not(self) -> None:
        """Back-pressure: a peer that does not read is not read from."""
        transport, wanted = self._transport, self._stalled_since is None and not self._turn_due
        if transport is None or transport.is_closing() or wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # ---- told by the server

    def flush(self) -> None:
        """Writes what the connection has to say, and closes where it is over."""
        connection, transport = self.connection, self._transport
        data = connection.take()
        if transport is None:
            return
        if connection.dead:
            self._server.complain(connection)
            transport.abort()
            return
        if data:
            transport.write(data)
        if connection.closing:
            self._server.progressed()
        if not connection.open and self._closed_at is None:
            self._closed_at = self._server.now()
            self._server.complain(connection)
            self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        """Closes when the peer does, or in a moment.

        At once, what the peer has just sent would meet a closed socket: TCP resets, and the peer loses what it has not
        read yet, be it the reason of a failure or the last statuses of a drain.
        """
        if transport.can_write_eof():
            transport.write_eof()
        self._loop.call_later(LINGER_S, transport.close)

    def _flush_soon(self) -> None:
        """Many streams may speak in one turn of the loop: they are written at once."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        self.flush()

    def tick(self, now: float) -> None:
        """Time passes."""
        if self._closed_at is not None:
            if now - self._closed_at > self._server.limits.keepalive_timeout_ms:
                self.abort()
            return
        self.connection.tick(now, stalled_ms=now - self._stalled_since if self._stalled_since is not None else 0.0)
        self.flush()

    def abort(self) -> None:
        """Closes without another word."""
        if self._transport is not None:
            self._transport.abort()


class WireTransport:
    """A server for one pool. `new_exchange` makes the state machine of a stream, `now` is the clock (ms)."""

    def __init__(
        self,
        settings: ListenerSettings,
        new_exchange: Callable[[], Exchange],
        now: Callable[[], float],
        health_services: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        self.now = now
        self.port = 0
        self.limits = msgspec.structs.replace(
            limits or Limits(), max_message_bytes=settings.max_receive_bytes, max_streams=settings.max_streams
        )
        self._settings = settings
        self._held = Held(self.limits.max_held_bytes)
        self._service = Service(new_exchange, now, self.limits, self._held)
        self._health = HealthBoard(("", SERVICE, *health_services))
        self._health.offer(self._service)
        self._listener: Listener | None = None
        self._sockets: set[Socket] = set()
        self._ticking: asyncio.TimerHandle | None = None
        self._ticked = now()
        self._draining = self._hurried = self._over = False
        self._progress = asyncio.Event()
        self._seldom = Seldom()

    @property
    def streams(self) -> int:
        """Open streams."""
        return len(self._service.calls)

    @property
    def ended(self) -> dict[str, int]:
        """Streams that have ended, by gRPC code, spelled as Go's pickers do."""
        return self._service.ended

    # ---- life

    async def start(self) -> int:
        """Listens; returns the port chosen. Raises StartError where that is not possible."""
        sockets = listen(self._settings.address, shared=self._settings.shares_port)
        self.port = sockets[0].getsockname()[1]
        listener = Listener(sockets, lambda: Socket(self), self._settings.tls, self.limits.handshake_ms / 1000.0)
        await listener.open()
        self._listener = listener
        self._ticked = self.now()
        self._tick()
        return self.port

    async def set_serving(self, *, serving: bool) -> None:
        """What the health service answers, overall and for the pool."""
        self._health.set(serving=serving)
        self._flush_all()

    def hurry(self) -> None:
        """Ends the grace of a drain now, also of one that has not begun."""
        self._hurried = True
        self._progress.set()

    async def drain(self, grace_s: float, *, replaced: bool = False) -> None:
        """Refuses new streams (GOAWAY), lets open ones finish, and ends those still open after `grace_s`.

        Those are ended one by one, in the way that does the least harm to their exchange: see `Exchange.give_up`.
        `replaced`: another process serves the port, so health does not change.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._draining = True
        if not replaced:
            self._health.shut()
        await listener.close()
        for one in list(self._sockets):
            one.connection.go_away(self.now())
        self._flush_all()
        await self._until(self._refusing_and_empty, grace_s)
        # Those first that wait for room: what the others leave behind must not be taken for room.
        for call in sorted(self._service.calls, key=lambda call: not call.exchange.waits):
            call.give_up()
        self._health.end_watches()
        self._flush_all()
        self._hurried = False
        await self._until(lambda: not self._sockets, LAST_WORDS_S)
        for one in list(self._sockets):
            one.abort()
        await self._until(lambda: not self._sockets, LAST_WORDS_S)
        self._over = True
        if self._ticking is not None:
            self._ticking.cancel()

    def _refusing_and_empty(self) -> bool:
        """Every peer has read the GOAWAY, and no stream of ours is open."""
        return not self._service.calls and all(one.connection.refusing for one in self._sockets)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                while not (condition() or self._hurried):
                    self._progress.clear()
                    await self._progress.wait()

    def _tick(self) -> None:
        now, every = self.now(), self.limits.tick_ms
        late = now - self._ticked > 2.0 * every
        self._ticked = now
        # After a stall of ours the answers may be there and only not read yet.
        for one in () if late else list(self._sockets):
            one.tick(now)
        self._progress.set()
        self._ticking = asyncio.get_running_loop().call_later(every / 1000.0, self._tick)

    def _flush_all(self) -> None:
        for one in list(self._sockets):
            one.flush()

    # ---- told by its sockets

    def new_connection(self) -> Connection:
        """For a socket that was just accepted."""
        return Connection(self.limits, self._held, self._service.accept, self.now(), self._service.messages)

    def opened(self, one: Socket) -> None:
        """A connection is there."""
        if self._over:
            # Its handshake took longer than the drain: nobody is left to look after it.
            one.abort()
            return
        self._sockets.add(one)
        if self._draining:
            one.connection.go_away(self.now())

    def closed(self, one: Socket) -> None:
        """A connection is gone."""
        self._sockets.discard(one)
        self.progressed()

    def progressed(self) -> None:
        """Something happened that a drain may wait for."""
        self._progress.set()

    def complain(self, connection: Connection) -> None:
        """Logs what was wrong with a peer, if anything was: each kind once a minute."""
        if connection.failure is None:
            return
        code, reason = connection.failure
        if count := self._seldom.due(code.name, self.now()):
            log.warning("a connection was ended: %s", reason, extra={"code": code.name, "times": count})
