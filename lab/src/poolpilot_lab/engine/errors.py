"""What a client of the stand-in gets when its request cannot be served: HTTP status and vLLM's error object.

ApiError                    status, message, type, param
├── InvalidBodyError             400  "Bad Request"       the body cannot be read
├── BadRequestError              400  "BadRequestError"   a value is out of range, or the prompt is too long
├── InvalidUserInputError        400  "InvalidUserInput"  the LoRA API was misused
├── NotFoundError                404  "NotFoundError"     unknown model or adapter
└── InjectedFailureError         as configured
"""

from __future__ import annotations

import msgspec


class ApiError(Exception):
    """An answer in vLLM's error format."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """The error object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class InvalidBodyError(ApiError):
    """The body is not JSON, or a field has a wrong type."""

    status = 400
    type = "Bad Request"


class BadRequestError(ApiError):
    """A value that the engine cannot serve."""

    status = 400
    type = "BadRequestError"


class InvalidUserInputError(ApiError):
    """The LoRA API was misused."""

    status = 400
    type = "InvalidUserInput"


class NotFoundError(ApiError):
    """The model or the adapter is not known here."""

    status = 404
    type = "NotFoundError"


class InjectedFailureError(ApiError):
    """A failure that `--fault` or `POST /fault` asked for."""

    def __init__(self, status: int) -> None:
        super().__init__("Injected failure.")
        self.status = status
