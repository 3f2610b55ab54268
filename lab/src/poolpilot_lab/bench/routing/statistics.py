"""Means and intervals over seeds: geometric means, paired log ratios with Student's t. Infinite stays infinite."""

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
    logs = [_log_ratio(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    if not logs:
        return Ratio(math.nan, math.nan, math.nan)
    mean = sum(logs) / len(logs)
    if len(logs) == 1 or not math.isfinite(mean):
        return Ratio(_exp(mean), 0.0, math.inf)
    deviation = math.sqrt(sum((log - mean) ** 2 for log in logs) / (len(logs) - 1))
    half = _T975[min(len(logs) - 2, len(_T975) - 1)] * deviation / math.sqrt(len(logs))
    return Ratio(_exp(mean), _exp(mean - half), _exp(mean + half))


def _log_ratio(mine: float, other: float) -> float:
    if math.isinf(mine) and math.isinf(other):
        return 0.0
    if math.isinf(other):
        return -math.inf
    if math.isinf(mine):
        return math.inf
    return math.log(max(LEAST, mine) / max(LEAST, other))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
