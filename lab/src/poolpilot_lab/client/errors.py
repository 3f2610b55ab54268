"""How a request can fail on the client's side. No error here ends a run: it becomes the outcome of its request."""

from __future__ import annotations


class ClientError(Exception):
    """Base of what the load client raises."""


class ExchangeError(ClientError):
    """The answer did not arrive whole: connection refused, reset, closed in mid-answer, or not HTTP."""


class AnswerError(ClientError):
    """The answer arrived, but is not what was asked for: a status other than 200, a broken stream, a wrong length."""
