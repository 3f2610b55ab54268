"""A data plane on one connection of the picker's port: plays scripts side by side, and checks what comes back."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from poolpilot_lab.bench.soak.scripts import MARK, SERVED, Script, header_block
from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.hpack import Decoder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

WIDE: Final = 2**28
FRAME: Final = 16_384
ADDRESS: Final = SERVED.encode()
HOST: Final = b"127.0.0.1:"


@dataclass(frozen=True, slots=True)
class Manner:
    """How a data plane behaves."""

    name: str
    window: int = WIDE
    """SETTINGS_INITIAL_WINDOW_SIZE; a small one is refilled with every read."""
    pauses: bool = False
    """It stops reading now and then."""
    traced: bool = False
    """Its header blocks all differ."""
    changes: bool = False
    """It changes its settings now and then."""
    tls: bool = False
    at_once: int = 16
    """Exchanges side by side."""
    lifetime: int = 20_000
    """Exchanges, about, until it ends the connection and opens another."""


@dataclass(slots=True)
class Tally:
    """What happened, of all connections together."""

    wanted: int
    """Exchanges still to be begun."""
    begun: int = 0
    whole: int = 0
    broken: int = 0
    """By the client itself."""
    failed: Counter[str] = field(default_factory=Counter)
    scripts: Counter[str] = field(default_factory=Counter)
    connections: Counter[str] = field(default_factory=Counter)
    replies: int = 0

    @property
    def done(self) -> int:
        """Exchanges that are over, however they ended."""
        return self.whole + self.broken + self.failed.total()


class Exchange:
    """One that is open."""

    __slots__ = ("at", "echoed", "missing", "number", "partial", "received", "script", "served")

    def __init__(self, script: Script, number: bytes) -> None:
        self.script = script
        self.number = number
        self.at = 0
        """The step that is to be sent next."""
        self.missing = 0
        """Replies that are still to come to the last one."""
        self.partial = b""
        """Of a reply that is not there in full."""
        self.received = 0
        self.served = b""
        self.echoed = 0


class Plane(asyncio.Protocol):
    """One connection. `over` is called when it is at its end."""

    def __init__(
        self, manner: Manner, scripts: list[Script], tally: Tally, rng: random.Random, over: Callable[[], None]
    ) -> None:
        self._manner = manner
        self._scripts = scripts
        self._tally = tally
        self._rng = rng
        self._over = over
        self._open: dict[int, Exchange] = {}
        self._next = 1
        self._rest = b""
        self._decoder: Decoder[dict[bytes, bytes]] = Decoder(dict, 2**16)
        self._decoder.allow(4_096)
        self._window = manner.window
        self._taken = 0
        self._room = frames.DEFAULT_WINDOW
        """Of the connection, for what we send."""
        self._waiting: deque[tuple[int, Exchange]] = deque()
        """Steps that the connection's window has no room for."""
        self._out: list[bytes] = []
        self._block = header_block(traced=manner.traced)
        self._lifetime = rng.randrange(manner.lifetime // 2, manner.lifetime * 3 // 2)
        self._ending = self._gone = False
        self._transport: asyncio.Transport | None = None

    # ---- told by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._tally.connections[self._manner.name] += 1
        hello = [frames.PREFACE, frames.settings([(frames.INITIAL_WINDOW_SIZE, self._window)])]
        if self._manner.window == WIDE:
            hello.append(frames.window_update(0, 2**30))
        self._out += hello
        self._fill()
        self._flush()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, size, end = 0, len(data), 0
        while at + frames.HEAD_BYTES <= size:
            high, low, kind, flags, stream = frames.unpack_head(data, at)
            end = at + frames.HEAD_BYTES + (high << 8 | low)
            if end > size:
                break
            self._frame(kind, flags, stream, data[at + frames.HEAD_BYTES : end])
            at = end
        self._rest = data[at:]
        self._refill()
        self._fill()
        self._flush()
        if self._manner.pauses and self._rng.random() < 0.002 and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._rng.random() * 0.2, self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._gone = True
        for exchange in self._open.values():
            self._fail(exchange, f"connection lost: {error}")
        self._open.clear()
        self._over()

    # ---- what we send

    def _fill(self) -> None:
        """Begins exchanges until enough are open, or ends the connection."""
        tally = self._tally
        while not self._ending and len(self._open) < self._manner.at_once and tally.wanted > 0 and self._lifetime > 0:
            tally.wanted -= 1
            tally.begun += 1
            self._lifetime -= 1
            script = self._rng.choice(self._scripts)
            exchange = Exchange(script, b"%012d" % tally.begun)
            stream, self._next = self._next, self._next + 2
            self._open[stream] = exchange
            block = self._block.replace(MARK, exchange.number) if self._manner.traced else self._block
            self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block))
            self._step(stream, exchange)
            if self._manner.changes and self._rng.random() < 0.01:
                self._change()
        if self._ending or (tally.wanted > 0 and self._lifetime > 0):
            return
        if self._lifetime <= 0 and self._rng.random() < 0.3:
            self._abort()
        elif not self._open:
            self._ending = True
            if self._rng.random() < 0.5:
                self._out.append(frames.goaway(0, 0))
            self._flush()
            if self._transport is not None:
                self._transport.close()

    def _abort(self) -> None:
        """As a proxy that crashes: its exchanges are broken off by us."""
        self._ending = True
        self._tally.broken += len(self._open)
        self._tally.scripts["connection aborted"] += len(self._open)
        self._open.clear()
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

    def _step(self, stream: int, exchange: Exchange) -> None:
        """The next step of an exchange, or its end."""
        script = exchange.script
        while True:
            if exchange.at == len(script.steps):
                self._finish(stream, exchange)
                return
            step = script.steps[exchange.at]
            if self._waiting or len(step.messages) + 4_096 > self._room:
                self._waiting.append((stream, exchange))
                return
            exchange.at += 1
            exchange.missing += step.replies
            self._send(stream, self._filled(step.messages, exchange))
            if step.replies:
                return

    def _filled(self, messages: bytes, exchange: Exchange) -> bytes:
        messages = messages.replace(MARK, exchange.number)
        return messages.replace(ADDRESS, exchange.served) if exchange.served else messages

    def _send(self, stream: int, data: bytes) -> None:
        self._room -= len(data)
        for at in range(0, len(data), FRAME):
            self._out.append(frames.frame(frames.DATA, 0, stream, data[at : at + FRAME]))

    def _finish(self, stream: int, exchange: Exchange) -> None:
        """All is said."""
        script = exchange.script
        if script.broken:
            self._tally.broken += 1
        elif script.resets:
            self._whole(exchange)
        else:
            self._out.append(frames.frame(frames.DATA, frames.END_STREAM, stream))
            return
        self._out.append(frames.rst_stream(stream, 8))
        self._tally.scripts[script.name] += 1
        del self._open[stream]

    def _whole(self, exchange: Exchange) -> None:
        if exchange.echoed < exchange.script.echoed:
            self._fail(exchange, "less came back than was sent")
        else:
            self._tally.whole += 1

    def _fail(self, exchange: Exchange, why: str) -> None:
        self._tally.failed[f"{exchange.script.name} at step {exchange.at}: {why}"] += 1

    def _change(self) -> None:
        """Other settings in the middle of everything."""
        self._window = self._rng.choice((WIDE, 2**20, 65_535, 20_000))
        frame_bytes = self._rng.choice((16_384, 65_536, 2**20))
        self._out.append(
            frames.settings([(frames.INITIAL_WINDOW_SIZE, self._window), (frames.MAX_FRAME_SIZE, frame_bytes)])
        )

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # ---- what comes

    def _refill(self) -> None:
        """Gives the peer back what it has used of a small window."""
        if self._manner.window == WIDE:
            if self._taken > 2**28:
                self._out.append(frames.window_update(0, self._taken))
                self._taken = 0
        elif self._taken:
            self._out.append(frames.window_update(0, self._taken))
            self._taken = 0
        if self._window == WIDE:
            return
        for stream, exchange in self._open.items():
            if exchange.received:
                self._out.append(frames.window_update(stream, exchange.received))
                exchange.received = 0

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        exchange = self._open.get(stream)
        if kind == frames.DATA:
            self._taken += len(payload)
            if exchange is not None:
                exchange.received += len(payload)
                self._data(stream, exchange, payload)
        elif kind == frames.HEADERS:
            # Also of streams that are over: the next block may need its table.
            fields = self._decoder.decode(payload)
            if flags & frames.END_STREAM and exchange is not None:
                self._ended(stream, exchange, fields)
        elif kind == frames.RST_STREAM and exchange is not None:
            del self._open[stream]
            self._fail(exchange, f"reset by the picker with code {frames.unpack_number(payload)[0]}")
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._out.append(frames.SETTINGS_ACK)
        elif kind == frames.PING and not flags & frames.ACK:
            self._out.append(frames.ping(payload, ack=True))
        elif kind == frames.WINDOW_UPDATE and not stream:
            self._room += frames.unpack_number(payload)[0]
            waiting, self._waiting = self._waiting, deque()
            for number, one in waiting:
                if self._open.get(number) is one:
                    self._step(number, one)
        elif kind == frames.GOAWAY:
            self._ending = True
            self._tally.scripts[f"GOAWAY {payload[4:8].hex()} {payload[8:].decode()}"] += 1

    def _ended(self, stream: int, exchange: Exchange, fields: dict[bytes, bytes]) -> None:
        """The trailers."""
        del self._open[stream]
        script = exchange.script
        self._tally.scripts[script.name] += 1
        status = fields.get(b"grpc-status", b"").decode()
        if status != "0":
            self._fail(exchange, f"ended with status {status} {fields.get(b'grpc-message', b'').decode()}")
        elif script.broken or script.resets or exchange.at < len(script.steps) or exchange.missing:
            self._fail(exchange, "ended with OK before its end")
        else:
            self._whole(exchange)

    def _data(self, stream: int, exchange: Exchange, payload: bytes) -> None:
        """Bytes of replies."""
        if not exchange.partial and len(payload) == 5 + int.from_bytes(payload[1:5], "big"):
            self._reply(exchange, payload[5:])
        else:
            self._cut(exchange, payload)
        if exchange.missing < 0:
            del self._open[stream]
            self._fail(exchange, "more replies than were due")
            self._out.append(frames.rst_stream(stream, 8))
        elif not exchange.missing and not exchange.partial:
            self._step(stream, exchange)

    def _cut(self, exchange: Exchange, payload: bytes) -> None:
        data = exchange.partial + payload
        at = 0
        while len(data) - at >= 5:
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            self._reply(exchange, data[at + 5 : end])
            at = end
        exchange.partial = data[at:]

    def _reply(self, exchange: Exchange, reply: bytes) -> None:
        self._tally.replies += 1
        exchange.missing -= 1
        exchange.echoed += len(reply)
        if not exchange.served:
            found = reply.find(HOST)
            if found >= 0:
                # Now and then another endpoint serves than the one that was named.
                others = reply.rfind(HOST) if self._rng.random() < 0.1 else found
                exchange.served = reply[others : others + len(ADDRESS)]
