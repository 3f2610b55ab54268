"""Why an endpoint was chosen: every candidate with every term, and what excluded the others. Kept for people."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.decision import Decision


class CandidateReceipt(msgspec.Struct, omit_defaults=True):
    """One endpoint of the pool as the decision saw it. Terms of the cost in ms, scores without unit."""

    endpoint: str
    terms: dict[str, float | None] = {}
    excluded_by: str = ""
    in_flight: float = 0.0
    foreign: float = 0.0
    cached_tokens: float = 0.0
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


def _number(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def make_receipt(pool: str, request: InferenceRequest, decision: Decision, inflight: list[float]) -> Receipt:
    """Copies out of the live arrays what the receipt keeps. `inflight` is per slot, before this booking."""
    view = decision.view
    table, now = view.table, view.now
    candidates = []
    for endpoint in table:
        slot = endpoint.slot
        excluded = view.excluded.get(slot, "")
        if endpoint.draining:
            excluded = excluded or "draining"
        age = now - float(table.sample_ms[slot])
        candidates.append(
            CandidateReceipt(
                endpoint=endpoint.address,
                terms={} if excluded else {name: _number(float(values[slot])) for name, values in view.terms.items()},
                excluded_by=excluded,
                in_flight=inflight[slot],
                foreign=float(view.load.foreign[slot]),
                cached_tokens=float(view.cached_tokens[slot]),
                telemetry_age_ms=_number(age),
            )
        )
    forecast = decision.forecast
    return Receipt(
        request_id=request.request_id,
        at_ms=now,
        pool=pool,
        model=request.model,
        target_model=request.target_model,
        prompt_tokens=request.prompt_tokens,
        expected_output_tokens=round(forecast.output_tokens, 1),
        chosen=decision.endpoints[0].address,
        fallbacks=[endpoint.address for endpoint in decision.endpoints[1:]],
        predicted_ttft_ms=round(forecast.ttft_ms, 3),
        predicted_finish_ms=round(forecast.finish_ms, 3),
        candidates=candidates,
    )


class ReceiptBook:
    """The newest receipts, bounded."""

    def __init__(self, keep: int = 1_000) -> None:
        self._receipts: deque[Receipt] = deque(maxlen=keep)

    def add(self, receipt: Receipt) -> None:
        """Keeps a receipt, dropping the oldest above the limit."""
        self._receipts.append(receipt)

    def newest(self, limit: int, *, request_id: str = "", endpoint: str = "", model: str = "") -> list[Receipt]:
        """The newest receipts first, filtered."""
        found: list[Receipt] = []
        for receipt in reversed(self._receipts):
            if len(found) >= limit:
                break
            if (
                (not request_id or receipt.request_id == request_id)
                and (not endpoint or receipt.chosen == endpoint)
                and (not model or model in (receipt.model, receipt.target_model))
            ):
                found.append(receipt)
        return found
