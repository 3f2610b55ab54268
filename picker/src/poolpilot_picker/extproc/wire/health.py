"""grpc.health.v1.Health on the data port: what gateways and kubelets ask before they send anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from poolpilot_picker.extproc.wire.calls import GrpcCall
from poolpilot_picker.extproc.wire.errors import CallFault, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from poolpilot_picker.extproc.wire.calls import Service
    from poolpilot_picker.extproc.wire.connection import Connection
    from poolpilot_picker.extproc.wire.grpc_messages import MessageReader
    from poolpilot_picker.extproc.wire.stream import Call, Stream

CHECK: Final = b"/grpc.health.v1.Health/Check"
WATCH: Final = b"/grpc.health.v1.Health/Watch"

SERVING: Final = int(health_pb2.HealthCheckResponse.SERVING)
NOT_SERVING: Final = int(health_pb2.HealthCheckResponse.NOT_SERVING)
SERVICE_UNKNOWN: Final = int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)


def answer(status: int) -> bytes:
    """A HealthCheckResponse."""
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())


class HealthBoard:
    """Who is serving, and who wants to hear of changes."""

    def __init__(self, services: Iterable[str]) -> None:
        self._serving = dict.fromkeys(services, False)
        self._watches: dict[WatchCall, None] = {}
        self._shut = False

    def offer(self, service: Service) -> None:
        """Adds the health methods to a service."""

        def check(connection: Connection, stream: Stream, reader: MessageReader) -> Call:
            return CheckCall(self, connection, stream, reader, service.log_failure)

        def watch(connection: Connection, stream: Stream, reader: MessageReader) -> Call:
            return WatchCall(self, connection, stream, reader, service.log_failure)

        service.add(CHECK, check)
        service.add(WATCH, watch)

    def status(self, name: str) -> int:
        """Of a service."""
        serving = self._serving.get(name)
        if serving is None:
            return SERVICE_UNKNOWN
        return SERVING if serving else NOT_SERVING

    def set(self, *, serving: bool) -> None:
        """Of all services alike; after `shut` nothing serves again."""
        if self._shut:
            return
        self._serving = dict.fromkeys(self._serving, serving)
        for watch in list(self._watches):
            watch.tell()

    def shut(self) -> None:
        """Nothing serves any more."""
        self.set(serving=False)
        self._shut = True

    def enrol(self, watch: WatchCall) -> None:
        """Tells it of every change from now on."""
        self._watches[watch] = None

    def dismiss(self, watch: WatchCall) -> None:
        """No longer."""
        self._watches.pop(watch, None)

    def end_watches(self) -> None:
        """The picker stops."""
        for watch in list(self._watches):
            watch.end(Status.UNAVAILABLE, "the picker is shutting down")

    def connections(self) -> list[Connection]:
        """Those with a watch: they may have something to write after `set`, `shut` and `end_watches`."""
        return list({watch.connection: None for watch in self._watches})


class _HealthCall(GrpcCall):
    __slots__ = ("_board", "_name")

    def __init__(
        self,
        board: HealthBoard,
        connection: Connection,
        stream: Stream,
        reader: MessageReader,
        log_failure: Callable[[], None],
    ) -> None:
        super().__init__(connection, stream, reader, log_failure)
        self._board = board
        self._name: str | None = None

    def message(self, data: bytes) -> None:
        if self._name is not None:
            raise CallFault(Status.INTERNAL, "there is more than one request message")
        try:
            self._name = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            raise CallFault(Status.INTERNAL, "the message is no HealthCheckRequest") from None


class CheckCall(_HealthCall):
    """Health/Check: one question, one answer."""

    __slots__ = ()

    def complete(self) -> None:
        if self._name is None:
            self.end(Status.INTERNAL, "there is no request message")
            return
        status = self._board.status(self._name)
        if status == SERVICE_UNKNOWN:
            self.end(Status.NOT_FOUND, "the service is unknown")
            return
        self.send(answer(status))
        self.end()


class WatchCall(_HealthCall):
    """Health/Watch: the state now, and whenever it changes."""

    __slots__ = ("_told",)

    def complete(self) -> None:
        if self._name is None:
            self.end(Status.INTERNAL, "there is no request message")
            return
        self._told = -1
        self._board.enrol(self)
        self.tell()

    def tell(self) -> None:
        """Sends the state if it is another than before."""
        assert self._name is not None
        status = self._board.status(self._name)
        if status != self._told:
            self._told = status
            self.send(answer(status))

    def closed(self) -> None:
        super().closed()
        self._board.dismiss(self)
