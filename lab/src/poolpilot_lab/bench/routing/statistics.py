"""Means and intervals over seeds: geometric means, paired log ratios with Student's t.

A figure that is infinite in one draw (a policy that left requests unanswered) must not decide a mean over all draws:
a ratio counts as 100 at most, and as 1/100 at least.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_T975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""0.975 quantile of Student's t by degrees of freedom, from 1."""
LEAST: Final = 1e-3
"""What a ratio takes for zero: one thousandth of a millisecond, or of a request per second."""


MOST_LOG: Final = math.log(100.0)


class Ratio(NamedTuple):
    """A geometric mean ratio with its 95 % interval; the interval is infinitely wide with one seed."""

    value: float
    low: float
    high: float


def geometric_mean(values: Iterable[float]) -> float:
    """Infinite when one value is, NaN of nothing."""
    logs = [math.log(max(LEAST, value)) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Geometric mean of ours ÷ theirs, pair by pair. Where both are infinite they are equal."""
    return of_logs([log_ratio(mine, other) for mine, other in zip(ours, theirs, strict=True)])


def of_logs(logs: Sequence[float]) -> Ratio:
    """exp of the mean of independent logarithms, with the t interval of that mean."""
    if not logs:
        return Ratio(math.nan, math.nan, math.nan)
    mean = sum(logs) / len(logs)
    if len(logs) == 1:
        return Ratio(math.exp(mean), 0.0, math.inf)
    deviation = math.sqrt(sum((log - mean) ** 2 for log in logs) / (len(logs) - 1))
    half = _T975[min(len(logs) - 2, len(_T975) - 1)] * deviation / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def log_ratio(mine: float, other: float) -> float:
    """Bounded logarithm of mine ÷ other."""
    if math.isinf(mine) or math.isinf(other):
        return MOST_LOG * (math.isinf(mine) - math.isinf(other))
    return max(-MOST_LOG, min(MOST_LOG, math.log(max(LEAST, mine) / max(LEAST, other))))


def short(value: float) -> str:
    """As tables show it."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 10.0 else f"{value:,.0f}"


def shown(ratio: Ratio) -> str:
    """A ratio with its interval, where there is one."""
    if math.isnan(ratio.value) or math.isinf(ratio.high):
        return short(ratio.value)
    return f"{short(ratio.value)} ({short(ratio.low)}–{short(ratio.high)})"
