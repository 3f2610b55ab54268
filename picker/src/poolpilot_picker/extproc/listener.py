"""What a listening port of the picker is told, whichever transport serves it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from poolpilot_picker.extproc.certificates import Certificates

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The gRPC service, also by this name in the health service."""


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One listening port: one pool."""

    address: str
    max_receive_bytes: int = 66 * 2**20
    """Above Envoy's buffer limit (32 MiB in our configurations, 64 MiB at most) plus 2 MiB."""
    max_streams: int = 100_000
    tls: Certificates | None = None
    shares_port: bool = False
    """Another process may listen there too: the one that this one replaces, or that replaces it."""


class TransportName(StrEnum):
    """What can serve a port."""

    GRPC = "grpc"
    WIRE = "wire"


class Transport(Protocol):
    """What every transport offers."""

    port: int

    @property
    def streams(self) -> int:
        """Open streams."""
        ...

    @property
    def ended(self) -> Mapping[str, int]:
        """Streams that have ended, by gRPC code."""
        ...

    async def start(self) -> int:
        """Listens; returns the port chosen."""
        ...

    async def set_serving(self, *, serving: bool) -> None:
        """What the health service answers."""
        ...

    async def drain(self, grace_s: float, *, replaced: bool = False) -> None:
        """Stops in good order. `replaced`: another process serves the port, so health does not change."""
        ...

    def hurry(self) -> None:
        """Ends the grace of a drain now."""
        ...
