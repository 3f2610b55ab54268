"""Sockets and TLS of a listening port, before any byte of HTTP/2 (RFC 9113, sections 3.2 and 9.2)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.certificates import load_client_ca, load_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.extproc.certificates import Certificates, TlsFiles

log = logging.getLogger(__name__)

BACKLOG: Final = 1_024
ALPN: Final = "h2"
_TLS12_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Not on HTTP/2's list of prohibited ones (RFC 9113, appendix A). TLS 1.3 has its own, all good."""


def listen(address: str, *, shared: bool = False) -> list[socket.socket]:
    """Listening sockets for `HOST:PORT` (IPv6 in brackets, port 0 chooses one), all with the same port.

    The IPv6 wildcard takes IPv4 too; where there is no IPv6, it is IPv4 alone. `shared`: with other processes that say
    so too. Raises StartError.
    """
    host, _, port_text = address.rpartition(":")
    host, port = host.strip("[]"), int(port_text)
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, target in dict.fromkeys((family, target) for family, _, _, _, target in found):
            where = (target[0], sockets[0].getsockname()[1], *target[2:]) if sockets else target
            sockets.append(_bound(family, where, shared=shared))
    except OSError as error:
        for one in sockets:
            one.close()
        if host == "::" and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return listen(f"0.0.0.0:{port}", shared=shared)
        raise StartError(f"cannot listen on {address} for ext_proc: {_why(error)}") from error
    return sockets


def _bound(family: int, target: tuple[object, ...], *, shared: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(target[0] != "::"))
        one.bind(target)
        one.listen(BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is taken"
    if error.errno == errno.EADDRNOTAVAIL:
        return "the address is not one of this machine"
    return error.strerror or str(error)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or 1.3 with ALPN h2, and client certificates where a CA for them is given. Raises StartError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS12_CIPHERS)
    context.set_alpn_protocols([ALPN])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        load_pair(context, files)
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            load_client_ca(context, files.client_ca)
    except (ValueError, OSError) as error:
        raise StartError(f"certificate, key or client CA cannot be used: {error}") from error
    return context


class Listener:
    """Accepts on some sockets, until it is closed.

    Certificates that change are for a context of their own, not for the one there is: with that, clients could take up
    sessions again for which the old client CA had vouched.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        certificates: Certificates | None,
        handshake_s: float,
    ) -> None:
        self._sockets = sockets
        self._protocol = protocol
        self._certificates = certificates
        self._handshake_s = handshake_s
        self._servers: list[asyncio.Server] = []
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Begins to accept. Raises StartError."""
        try:
            self._servers = await self._serve(self._sockets)
        except StartError:
            for one in self._sockets:
                one.close()
            raise
        if self._certificates is not None:
            self._certificates.follow(self._changed)

    async def _serve(self, sockets: list[socket.socket]) -> list[asyncio.Server]:
        loop, tls, patience_s = asyncio.get_running_loop(), None, None
        if self._certificates is not None:
            tls, patience_s = tls_context(self._certificates.files), self._handshake_s
        return [
            await loop.create_server(self._protocol, sock=one, ssl=tls, ssl_handshake_timeout=patience_s)
            for one in sockets
        ]

    def _changed(self) -> None:
        self._renewing = asyncio.get_running_loop().create_task(self._renew(self._renewing))

    async def _renew(self, before: asyncio.Task[None] | None) -> None:
        """Accepts with what is in force now. The port stays open: the same sockets, by other descriptors."""
        if before is not None:
            await before
        if self._closed:
            return
        sockets: list[socket.socket] = []
        try:
            sockets += (one.dup() for one in self._sockets)
            servers = await self._serve(sockets)
        except Exception:
            for one in sockets:
                one.close()
            log.exception("new certificates could not be taken into use; the port keeps those it has")
            return
        if self._closed:
            await _retire(servers, sockets)
            return
        old = self._servers, self._sockets
        self._servers, self._sockets = servers, sockets
        await _retire(*old)

    async def close(self) -> None:
        """Accepts no more; connections stay."""
        self._closed = True
        if self._certificates is not None:
            self._certificates.leave(self._changed)
        await _retire(self._servers, self._sockets)


async def _retire(servers: list[asyncio.Server], sockets: list[socket.socket]) -> None:
    """Accepts there no more. What was just accepted needs its server in the next turn, and speaks a turn later."""
    loop = asyncio.get_running_loop()
    for one in sockets:
        with contextlib.suppress(RuntimeError):  # uvloop, which has no such gap
            loop.remove_reader(one)
    for _ in range(2):
        await asyncio.sleep(0)
    for server in servers:
        server.close()
