"""Sockets and TLS of a listening port, before any byte of HTTP/2 (RFC 9113, sections 3.2 and 9.2)."""

from __future__ import annotations

import errno
import socket
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import StartError

if TYPE_CHECKING:
    from poolpilot_picker.extproc.listener import TlsFiles

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
        with tempfile.TemporaryDirectory() as folder:
            # The library reads them from files only; the folder is for us alone.
            certificate, key = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
            certificate.write_bytes(files.certificate)
            key.write_bytes(files.key)
            context.load_cert_chain(certificate, key, password=_no_password)
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=files.client_ca.decode("ascii"))
    except (ValueError, OSError) as error:
        raise StartError(f"certificate, key or client CA cannot be used: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")
