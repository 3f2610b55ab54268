"""Why a source could not read something. Nothing here reaches a client: it is counted, logged and retried."""

from __future__ import annotations

from enum import StrEnum

from poolpilot_picker.errors import PoolPilotError


class ErrorKind(StrEnum):
    """One word per cause: the `kind` label of the error counter and the `reason` given to the sink."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    TIMEOUT = "timeout"
    RESET = "reset"
    TLS = "tls"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    REDIRECT = "redirect"
    HTTP_STATUS = "http_status"
    CONTENT = "content"
    NO_FAMILIES = "no_families"
    UNKNOWN_ENGINE = "unknown_engine"
    INTERNAL = "internal"

    @property
    def down(self) -> bool:
        """No connection could be made: a request sent there would fail too. All other kinds say only that telemetry is
        unknown."""
        return self in (ErrorKind.REFUSED, ErrorKind.UNREACHABLE, ErrorKind.CONNECT_TIMEOUT)


class FetchError(PoolPilotError):
    """A read of an engine failed. `detail` never holds credentials or bodies.

    `unheard`: the connection ended before the first byte of the answer; a kept one may have been closed by then.
    """

    def __init__(self, kind: ErrorKind, detail: str, *, unheard: bool = False) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.unheard = unheard
