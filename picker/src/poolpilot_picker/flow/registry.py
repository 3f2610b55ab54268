"""Which detector or admitter the parameters of a configuration stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolpilot_picker.flow.admission import Admitter, LatencySloAdmitter, ProbabilisticAdmitter
from poolpilot_picker.flow.saturation import ConcurrencyDetector, UtilizationDetector
from poolpilot_picker.routing.plugins.limits import ConcurrencyDetectorParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.flow.pool import Pool


def detector_of(parameters: Any) -> Callable[[Pool, float], float]:
    """(pool, now) → saturation, by the parameters of utilization-detector or concurrency-detector."""
    if isinstance(parameters, ConcurrencyDetectorParameters):
        return ConcurrencyDetector(parameters)
    return UtilizationDetector(parameters)


def admitter_of(name: str, parameters: Any, draw: Callable[[], float]) -> Admitter:
    """The admitter of this name; `draw` gives a number in [0, 1)."""
    return LatencySloAdmitter() if name == "latency-slo-admitter" else ProbabilisticAdmitter(parameters, draw)
