"""Response headers, attributes and metadata → who answered. Read by the exchange when the response headers come."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.requests import headers as names

Metadata = Mapping[str, Mapping[str, Any]]
"""Dynamic metadata: namespace → key → value."""
NO_METADATA: Final[Metadata] = {}
NO_HEADERS: Final[Mapping[str, str | bytes]] = {}

MOST_ATTEMPTS: Final = 1_000
"""Larger counts are nonsense; nothing loops this often."""


class Answer(NamedTuple):
    """How the request was answered, and by which endpoint."""

    outcome: Outcome
    address: str = ""
    """That served, or was tried last; empty when no endpoint was used or it is unknown."""
    attempts: int = 1


@lru_cache(maxsize=1_024)
def status_of(value: str | bytes | None) -> int:
    """HTTP status of a `:status` value; 0 when it is none."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value or ""
    return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else 0


def who_answered(
    status: int, attributes: Mapping[str, Any], metadata: Metadata, received: Mapping[str, str | bytes] = NO_HEADERS
) -> Answer:
    """From attributes where the data plane sends them, else from metadata; `received`: the response headers.

    Only `response.code_details` = `via_upstream` proves that a pod answered; the `…-served` metadata is also set on the
    data plane's own replies.
    """
    details = attributes.get("response.code_details")
    if isinstance(details, str):
        address = attributes.get("upstream.address")
        attempts = attributes.get("upstream.request_attempt_count")
        answer = _told(
            status, details, address if type(address) is str else "", attempts if type(attempts) is float else 1.0
        )
        if status == 503 and answer.outcome is Outcome.FAILED and names.RETRY_AFTER in received:
            return answer._replace(outcome=Outcome.OVERLOADED)
        return answer
    address = _text(metadata.get(names.LB_NAMESPACE, {}).get(names.SERVED))
    # Without attributes a local reply looks like a pod's answer: an error teaches nothing, a success only with a
    # served endpoint named.
    return Answer(Outcome.SERVED if address and 200 <= status < 300 else Outcome.UNCONFIRMED, address)


@lru_cache(maxsize=1_024)
def _told(status: int, details: str, address: str, attempts: float) -> Answer:
    """By the data plane's word; most answers differ in nothing but the endpoint."""
    # Numbers of a protobuf Struct are floats.
    count = int(attempts) if 1 <= attempts <= MOST_ATTEMPTS else 1
    outcome = _by_details(status, details, address, count)
    return Answer(outcome, "" if outcome is Outcome.LOCAL_REPLY else address, count)


def _by_details(status: int, details: str, address: str, attempts: int) -> Outcome:
    if details == "via_upstream":
        if not status:
            return Outcome.UNCONFIRMED
        if status >= 500:
            return Outcome.FAILED
        return Outcome.SERVED if 200 <= status < 300 or status == 101 else Outcome.REJECTED
    if not address or "overflow" in details:
        # A full circuit breaker is the data plane's, whatever host it had in mind.
        return Outcome.LOCAL_REPLY
    # A retry that finds no host left hides how the attempt before it ended, but not where.
    if details.startswith("upstream_reset") or (details == "no_healthy_upstream" and attempts > 1):
        return Outcome.UNREACHABLE
    return Outcome.TIMED_OUT if "timeout" in details else Outcome.LOCAL_REPLY


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
