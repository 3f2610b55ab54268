"""Every way the picker refuses: each class says what the caller gets, an HTTP status or an exit code.

Tree::

    PoolPilotError
    ├── RequestRefused            answered to the client (Endpoint Picker Protocol, error mapping)
    │   ├── BadRequest            400
    │   ├── NotFound              404
    │   ├── PreconditionFailed    412
    │   ├── TooManyRequests       429
    │   ├── InternalError         500
    │   └── ServiceUnavailable    503
    │       └── NoEndpoints       503, rejected-no-endpoints
    ├── ConfigurationError        exit code 2 at start; on reload the old configuration stays
    └── StartError                exit code 1: a port cannot be had
"""

from __future__ import annotations

from typing import ClassVar


class PoolPilotError(Exception):
    """Base of everything the picker raises on purpose."""


class RequestRefused(PoolPilotError):  # noqa: N818 - says what happened, as its subclasses do
    """The request is answered by the picker itself.

    `message` is the text after `inference error: <Code> - `; `param` names the offending field of the
    body, if one does; `dropped_reason` becomes the header `x-llm-d-request-dropped-reason`, `retry_after_s` the header
    `retry-after`.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "Internal"
    grpc_status: ClassVar[int] = 13
    error_type: ClassVar[str] = "InternalServerError"
    default_reason: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        dropped_reason: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.dropped_reason = dropped_reason or self.default_reason
        self.retry_after_s = retry_after_s

    @property
    def text(self) -> str:
        """The protocol's text: `inference error: <Code> - <message>`."""
        return f"inference error: {self.code} - {self.message}"


class BadRequest(RequestRefused):
    """400: the body is malformed, lacks the model or has a wrong type."""

    status = 400
    code = "BadRequest"
    grpc_status = 3
    error_type = "BadRequestError"


class NotFound(RequestRefused):
    """404: the thing asked for does not exist."""

    status = 404
    code = "NotFound"
    grpc_status = 5
    error_type = "NotFoundError"


class PreconditionFailed(RequestRefused):
    """412: `prefer: if-available` and no endpoint holds the prefix."""

    status = 412
    code = "PreconditionFailed"
    grpc_status = 9
    error_type = "PreconditionFailedError"


class TooManyRequests(RequestRefused):
    """429: dropped under load, or a configured filter left no endpoint."""

    status = 429
    code = "ResourceExhausted"
    grpc_status = 8
    error_type = "RateLimitError"
    default_reason = "rejected-saturated"


class InternalError(RequestRefused):
    """500: a fault of ours, or of a user's plugin."""


class ServiceUnavailable(RequestRefused):
    """503: the picker cannot serve now."""

    status = 503
    code = "ServiceUnavailable"
    grpc_status = 14
    error_type = "ServiceUnavailableError"


class NoEndpoints(ServiceUnavailable):
    """503: the pool is empty or the subset hint matches none of it."""

    default_reason = "rejected-no-endpoints"


class ConfigurationError(PoolPilotError):
    """A flag or file is wrong: exit code 2 at start; on reload the old configuration stays in force.

    `problems` are complete sentences that name the place, the value and what is allowed.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StartError(PoolPilotError):
    """The picker cannot start although its flags and files are right: exit code 1."""

    exit_code: ClassVar[int] = 1
