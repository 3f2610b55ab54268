"""What a listening port of the picker is told, whichever transport serves it."""

from __future__ import annotations

from typing import Final

import msgspec

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The gRPC service, also by this name in the health service."""


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
