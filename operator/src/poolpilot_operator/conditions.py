"""Conditions as the API conventions want them: one list entry each type, a time that moves only with the status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

Conditions: TypeAlias = list[dict[str, Any]]


class Condition(msgspec.Struct, frozen=True):
    """One aspect; `status` is True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str = ""


def holds(type_: str, ok: bool, reason: str, message: str = "") -> Condition:
    """A condition that is either true or false."""
    return Condition(type_, "True" if ok else "False", reason, message)


def merged(before: Conditions, wanted: list[Condition], generation: int, now: datetime) -> Conditions:
    """`wanted` as the API has them, each with the time since when its status holds."""
    known = {one.get("type"): one for one in before}
    result: Conditions = []
    for one in wanted:
        old = known.get(one.type)
        kept = old is not None and old.get("status") == one.status
        result.append(
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message[:32_000],
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if kept and old is not None else timestamp(now),
            }
        )
    return result


def timestamp(now: datetime) -> str:
    """RFC 3339 in seconds, as the API writes times."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
