"""Names of the cluster over UDP: A records of Services, and the word that there is nothing else.

`question` and `answer` are pure; RFC 1035 numbers sections and codes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEADER: Final = struct.Struct("!HHHHHH")
_A, _ANY, _INTERNET = 1, 255, 1
_NO_SUCH_NAME, _NOT_IMPLEMENTED = 3, 4
_ANSWER, _RECURSION = 0x8400, 0x0080
_TTL_S: Final = 1
_MOST_ANSWERS: Final = 28
"""As many as fit into the 512 bytes of an answer without options, whatever the name."""


class Question(NamedTuple):
    """What is asked; `section` as it came, to be repeated."""

    identity: int
    flags: int
    name: str
    kind: int
    section: bytes


def question(packet: bytes) -> Question | None:
    """The one question of a packet; None if it has none, more than one, or cannot be read."""
    try:
        identity, flags, questions, *_ = _HEADER.unpack_from(packet)
        if questions != 1 or flags & 0x8000:
            return None
        labels, at = [], _HEADER.size
        while length := packet[at]:
            if length > 63 or at + 1 + length > len(packet):
                return None
            labels.append(packet[at + 1 : at + 1 + length].decode("ascii").lower())
            at += 1 + length
        kind, _ = struct.unpack_from("!HH", packet, at + 1)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    return Question(identity, flags, ".".join(labels), kind, packet[_HEADER.size : at + 5])


def answer(asked: Question, addresses: Sequence[str] | None) -> bytes:
    """`addresses` of the name; None: there is no such name. Other types of record have no data."""
    code = _NO_SUCH_NAME if addresses is None else 0
    if asked.flags & 0x7800:
        code = _NOT_IMPLEMENTED
    found = list(addresses or ())[:_MOST_ANSWERS] if code == 0 and asked.kind in (_A, _ANY) else []
    flags = _ANSWER | _RECURSION | (asked.flags & 0x0100) | code
    header = _HEADER.pack(asked.identity, flags, 1, len(found), 0, 0)
    records = b"".join(
        # 0xC00C: the name of the question.
        struct.pack("!HHHIH", 0xC00C, _A, _INTERNET, _TTL_S, 4) + ipaddress.IPv4Address(one).packed
        for one in found
    )
    return header + asked.section + records


class _Server(asyncio.DatagramProtocol):
    def __init__(self, resolve: Callable[[str], Sequence[str] | None]) -> None:
        self._resolve = resolve
        self._transport: asyncio.DatagramTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    @override
    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = question(data)
        if asked is not None and self._transport is not None:
            self._transport.sendto(answer(asked, self._resolve(asked.name)), addr)


async def serve(resolve: Callable[[str], Sequence[str] | None], host: str, port: int = 53) -> asyncio.DatagramTransport:
    """Answers until the transport is closed."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Server(resolve), local_addr=(host, port)
    )
    return transport
