"""Requests that a client sends again: told by what the client says of it, or by one that ended badly coming once more.

Bounded: only the newest of those that ended badly are remembered, each as one number; what ends well costs nothing. A
trace's request id may stand on several requests, so that with it only an equal body is the same request.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import InferenceRequest

WINDOW_MS: Final = 60_000.0
"""From the end of one attempt to the next."""
REMEMBERED: Final = 16_384
"""Requests; about 2 MB."""


class Sign(StrEnum):
    """By what a retry is known."""

    COUNT = "retry-count"
    """The client counts its retries in a header."""
    KEY = "idempotency-key"
    REQUEST_ID = "request-id"


class ClientRetries:
    """Of one pool."""

    __slots__ = ("_known", "_most", "_window_ms")

    def __init__(self, most: int = REMEMBERED, window_ms: float = WINDOW_MS) -> None:
        self._most = most
        self._window_ms = window_ms
        self._known: OrderedDict[int, float] = OrderedDict()
        """Identity → when its last attempt ended, the longest ago first."""

    def __len__(self) -> int:
        return len(self._known)

    def came(self, request: InferenceRequest, now: float) -> Sign | None:
        """A request has come. By what it is known for a retry; None: for a first attempt."""
        before = None
        if self._known and (identity := _identity(request)) is not None:
            before = self._known.pop(identity, None)
        if request.client_retries:
            return Sign.COUNT
        if before is None or now - before > self._window_ms:
            return None
        return Sign.KEY if request.idempotency_key else Sign.REQUEST_ID

    def failed(self, request: InferenceRequest, now: float) -> None:
        """It has ended without an answer that its client could use: it may come again."""
        identity, known = _identity(request), self._known
        if identity is None:
            return
        known[identity] = now
        known.move_to_end(identity)
        while len(known) > self._most or now - known[next(iter(known))] > self._window_ms:
            known.popitem(last=False)


def _identity(request: InferenceRequest) -> int | None:
    """Equal for attempts of the same request; None where nothing tells."""
    if request.idempotency_key:
        return hash((request.tenant, request.idempotency_key))
    if not request.client_id:
        return None
    hashes = request.prefix.hashes
    body = (request.model, request.body_bytes, request.prompt_tokens, hashes[-1] if len(hashes) else 0)
    return hash((request.tenant, request.client_id, body))
