"""Why an endpoint was chosen: every candidate with every term, and what excluded the others. Kept for people.

A decision is remembered as copied arrays, which costs next to nothing, and written out when somebody asks.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolpilot_picker.routing.decision import Decision
    from poolpilot_picker.state.endpoints import Endpoint, Mask

MOST_ROWS: Final = 100_000
"""Candidates in all remembered decisions together: at most about 6 MB, however large the pool."""


class CandidateReceipt(msgspec.Struct, omit_defaults=True):
    """One endpoint of the pool as the decision saw it. Terms of the cost in ms, scores without unit; a term that is not
    listed was 0 everywhere."""

    endpoint: str
    terms: dict[str, float | None] = {}
    excluded_by: str = ""
    in_flight: float = 0.0
    foreign: float = 0.0
    cached_tokens: float = 0.0
    """Prompt tokens that this picker knows to be there."""
    hoped_tokens: float = 0.0
    """Further ones that other pickers have probably left there."""
    telemetry_age_ms: float | None = None


class Receipt(msgspec.Struct):
    """One decision. `at_ms` is on the picker's monotonic clock."""

    request_id: str
    at_ms: float
    pool: str
    model: str
    target_model: str
    prompt_tokens: int
    expected_output_tokens: float
    chosen: str
    fallbacks: list[str]
    predicted_ttft_ms: float
    predicted_finish_ms: float
    candidates: list[CandidateReceipt]
    queued_ms: float = 0.0
    """How long the request waited in the queue before this decision."""
    queued_for: str = ""
    """What it waited for."""


class Snapshot:
    """What a receipt needs of a decision: made before the booking, while its arrays are valid."""

    __slots__ = ("_eligible", "_endpoints", "_excluded", "_home", "_names", "_values", "receipt")

    def __init__(self, pool: str, decision: Decision) -> None:
        view, forecast = decision.view, decision.forecast
        table, request = view.table, view.request
        self._endpoints: list[Endpoint | None] = list(table.slots)
        self._eligible: Mask = table.eligible.copy()
        self._excluded = view.excluded
        self._home = view.home
        terms = dict(view.terms) if view.cost is None else {**view.terms, **view.cost.terms, "cost": view.cost.total}
        self._names = tuple(terms)
        age = view.now - table.sample_ms
        facts = (table.requests, view.expected_load.foreign, view.cached_tokens, age)
        self._values: NDArray[np.float32] = np.array([*facts, *terms.values()], dtype=np.float32)
        self.receipt = Receipt(
            request_id=request.request_id,
            at_ms=view.now,
            pool=pool,
            model=request.model,
            target_model=request.target_model,
            prompt_tokens=request.prompt_tokens,
            expected_output_tokens=round(forecast.output_tokens, 1),
            chosen=decision.endpoints[0].address,
            fallbacks=[endpoint.address for endpoint in decision.endpoints[1:]],
            predicted_ttft_ms=round(forecast.ttft_ms, 3),
            predicted_finish_ms=round(forecast.finish_ms, 3),
            candidates=[],
            queued_ms=round(request.queued_ms, 3),
            queued_for=request.queued_for,
        )

    @property
    def rows(self) -> int:
        """How many endpoints it remembers."""
        return len(self._endpoints)

    def write(self) -> Receipt:
        """The receipt, with its candidates."""
        candidates = self.receipt.candidates
        if candidates:
            return self.receipt
        home = self._home
        for slot, endpoint in enumerate(self._endpoints):
            if endpoint is None:
                continue
            in_flight, foreign, cached, age, *terms = self._values[:, slot].tolist()
            excluded = self._excluded.get(slot, "") or ("" if self._eligible[slot] else "draining")
            candidates.append(
                CandidateReceipt(
                    endpoint=endpoint.address,
                    terms={} if excluded else dict(zip(self._names, map(_number, terms), strict=True)),
                    excluded_by=excluded,
                    in_flight=in_flight,
                    foreign=round(foreign, 3),
                    cached_tokens=round(cached, 3),
                    hoped_tokens=round(home.tokens, 3) if home is not None and home.slot == slot else 0.0,
                    telemetry_age_ms=_number(age),
                )
            )
        return self.receipt


def _number(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


class ReceiptBook:
    """The newest decisions, bounded in number and in size."""

    def __init__(self, keep: int = 1_000, rows: int = MOST_ROWS) -> None:
        self._keep = keep
        self._most_rows = rows
        self._snapshots: deque[Snapshot] = deque()
        self._rows = 0

    def add(self, snapshot: Snapshot) -> None:
        """Remembers a decision, and forgets the oldest above the limits."""
        self._snapshots.append(snapshot)
        self._rows += snapshot.rows
        while len(self._snapshots) > self._keep or (self._rows > self._most_rows and len(self._snapshots) > 1):
            self._rows -= self._snapshots.popleft().rows

    def newest(self, limit: int, *, request_id: str = "", endpoint: str = "", model: str = "") -> list[Receipt]:
        """The newest receipts first, filtered."""
        found: list[Receipt] = []
        for snapshot in reversed(self._snapshots):
            if len(found) >= limit:
                break
            receipt = snapshot.receipt
            if (
                (not request_id or receipt.request_id == request_id)
                and (not endpoint or receipt.chosen == endpoint)
                and (not model or model in (receipt.model, receipt.target_model))
            ):
                found.append(snapshot.write())
        return found
