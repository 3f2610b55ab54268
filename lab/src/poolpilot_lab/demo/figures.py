"""From outcomes and counters to figures: what the tables print and `demo.json` holds. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolpilot_lab.client.load import Outcome


class Percentiles(msgspec.Struct, frozen=True):
    """Of times in ms. None: no request, or the percentile falls on a failed one (it took forever)."""

    p50: float | None
    p95: float | None
    p99: float | None


class Counters(msgspec.Struct, frozen=True):
    """What an engine counted in one run."""

    adapter_loads: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Counters) -> Counters:
        """Sums of a pool."""
        return Counters(
            self.adapter_loads + other.adapter_loads,
            self.preemptions + other.preemptions,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one policy, or of one endpoint under it."""

    requests: int
    errors: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    requests_per_s: float
    """Completed requests over the time from the first request sent in the run to the last answer."""
    cached_token_share: float
    """Prompt tokens that came from the prefix cache, as the engines counted them."""
    adapter_loads: int
    preemptions: int


class EndpointFigures(Figures, frozen=True, kw_only=True):
    """The same of one endpoint."""

    address: str
    profile: str


class PolicyFigures(Figures, frozen=True, kw_only=True):
    """Of one policy."""

    endpoints: list[EndpointFigures]


class DemoFigures(msgspec.Struct, frozen=True):
    """Everything in `demo.json`."""

    seed: int
    policies: dict[str, PolicyFigures]

    @property
    def errors(self) -> int:
        """Failed requests of all policies."""
        return sum(policy.errors for policy in self.policies.values())


class Endpoint(msgspec.Struct, frozen=True):
    """An engine as the figures name it: `name` is what it writes into its answers."""

    name: str
    address: str
    profile: str


def percentiles(values: Iterable[float]) -> Percentiles:
    """The smallest value that at least p % do not exceed: always a value that occurred, infinity included."""
    array = np.fromiter(values, float)
    if array.size == 0:
        return Percentiles(None, None, None)
    found = np.percentile(array, (50, 95, 99), method="inverted_cdf")
    return Percentiles(*(round(float(value), 3) if math.isfinite(value) else None for value in found))


def policy_figures(
    outcomes: Sequence[Outcome], endpoints: Sequence[Endpoint], counters: Mapping[str, Counters]
) -> PolicyFigures:
    """Figures of one run; `counters` by name of the endpoint. A failed request took forever."""
    span_s = lasted_s(outcomes)
    pool = sum((counters[endpoint.name] for endpoint in endpoints), Counters())
    return PolicyFigures(
        **_fields(outcomes, pool, span_s),
        endpoints=[
            EndpointFigures(
                **_fields(
                    [outcome for outcome in outcomes if outcome.endpoint == endpoint.name],
                    counters[endpoint.name],
                    span_s,
                ),
                address=endpoint.address,
                profile=endpoint.profile,
            )
            for endpoint in endpoints
        ],
    )


def _fields(outcomes: Sequence[Outcome], counters: Counters, span_s: float) -> dict[str, Any]:
    good = [outcome for outcome in outcomes if not outcome.error]
    never = [math.inf] * (len(outcomes) - len(good))
    return {
        "requests": len(outcomes),
        "errors": len(never),
        "ttft_ms": percentiles([outcome.ttft_ms for outcome in good] + never),
        "tpot_ms": percentiles([outcome.tpot_ms for outcome in good if outcome.tpot_ms is not None] + never),
        "e2e_ms": percentiles([outcome.e2e_ms for outcome in good] + never),
        "requests_per_s": round(len(good) / span_s, 3) if span_s > 0 else 0.0,
        "cached_token_share": round(counters.cached_tokens / max(1, counters.prompt_tokens), 4),
        "adapter_loads": counters.adapter_loads,
        "preemptions": counters.preemptions,
    }


def lasted_s(outcomes: Sequence[Outcome]) -> float:
    """Seconds from the first request sent to the last answer."""
    sent = [outcome for outcome in outcomes if outcome.end_ms > 0]
    if not sent:
        return 0.0
    return (max(outcome.end_ms for outcome in sent) - min(outcome.sent_ms for outcome in sent)) / 1000.0
