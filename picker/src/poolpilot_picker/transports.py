"""Which transport serves a data port. Beside app and fleet; only the one that is asked for is loaded: the gRPC library
takes tens of megabytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.extproc.listener import TransportName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolpilot_picker.extproc.exchange import Exchange
    from poolpilot_picker.extproc.listener import ListenerSettings, Transport


def new_transport(
    name: TransportName,
    settings: ListenerSettings,
    new_exchange: Callable[[], Exchange],
    now: Callable[[], float],
    *,
    health_services: Sequence[str],
    arriving_bytes: int,
    frames_at_once: int | None = None,
) -> Transport:
    """A server that is not started yet. `arriving_bytes`: of messages that are not complete yet, of all its connections
    (wire only); `frames_at_once`: of one connection before others have their turn (wire only)."""
    if name is not TransportName.WIRE:
        from poolpilot_picker.extproc.grpc_transport import GrpcTransport

        return GrpcTransport(settings, new_exchange, now, health_services=health_services)
    from poolpilot_picker.extproc.wire.limits import Limits
    from poolpilot_picker.extproc.wire.transport import WireTransport

    limits = Limits(
        # One message must always find room.
        max_held_bytes=max(arriving_bytes, settings.max_receive_bytes),
        frames_at_once=Limits().frames_at_once if frames_at_once is None else frames_at_once,
    )
    return WireTransport(settings, new_exchange, now, health_services=health_services, limits=limits)
