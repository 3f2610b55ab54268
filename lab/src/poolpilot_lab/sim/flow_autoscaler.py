"""Kubernetes' HorizontalPodAutoscaler, as its formula has it. Beside the simulation, which lets endpoints start late.

Sans I/O. After `replica_calculator.go` and `horizontal.go` of Kubernetes 1.34: one recommendation for each metric, the
largest counts, then the stabilisation windows, then how many pods may come or go in a period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

TOLERANCE: Final = 0.1
"""A metric that is so near to its target changes nothing."""


class Signal(NamedTuple):
    """An external metric and its target."""

    value: float
    target: float
    average: bool
    """Target of the kind AverageValue: for each pod; else Value: for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How a pool is scaled. Times in ms; what has no other source as docs/autoscaling.md has it."""

    first: int
    """Endpoints at the start; all others of the fleet may be started."""
    goal: int
    """So many are needed once the load is what it will be."""
    since_ms: float
    """From the start of the run until the load grows: from here on is measured how long scaling takes."""
    start_ms: float = 30_000.0
    """Until a pod that was asked for is an endpoint."""
    sync_ms: float = 15_000.0
    """Between two decisions (kube-controller-manager's default)."""
    scrape_ms: float = 10_000.0
    """Between two readings of the metrics, whose last one counts."""
    queue_target: float = 4.0
    saturation_target: float = 0.7
    up_pods: int = 4
    up_period_ms: float = 60_000.0
    up_window_ms: float = 0.0
    down_pods: int = 1
    down_period_ms: float = 120_000.0
    down_window_ms: float = 600_000.0


class Autoscaler:
    """Its memory. `most`: pods."""

    def __init__(self, scaling: Scaling, most: int) -> None:
        self._scaling = scaling
        self._most = most
        self._wanted: list[tuple[float, int]] = []
        self._changed: list[tuple[float, int]] = []

    def decide(self, signals: list[Signal], pods: int, ready: int, now: float) -> int:
        """How many pods there are to be; `pods`: asked for, `ready`: those that are endpoints. Time in ms."""
        scaling = self._scaling
        wanted = max((recommended(signal, pods, ready) for signal in signals), default=pods)
        wanted = min(max(1, wanted), self._most)
        if not self._wanted:
            # As it does when it first sees a target: nothing ends because nothing is known of the time before.
            self._wanted.append((now, pods))
        longest = max(scaling.up_window_ms, scaling.down_window_ms)
        self._wanted = [one for one in self._wanted if one[0] > now - longest]
        up = min([wanted, *(count for at, count in self._wanted if at > now - scaling.up_window_ms)])
        down = max([wanted, *(count for at, count in self._wanted if at > now - scaling.down_window_ms)])
        self._wanted.append((now, wanted))
        stable = min(max(pods, up), down)
        if stable > pods:
            came = sum(max(0, change) for at, change in self._changed if at > now - scaling.up_period_ms)
            stable = max(pods, min(stable, pods - came + scaling.up_pods))
        elif stable < pods:
            went = sum(max(0, -change) for at, change in self._changed if at > now - scaling.down_period_ms)
            stable = min(pods, max(stable, pods + went - scaling.down_pods))
        if stable != pods:
            self._changed.append((now, stable - pods))
        return stable


def recommended(signal: Signal, pods: int, ready: int) -> int:
    """Pods by one metric: ceil(value ÷ target), or ceil(ready × value ÷ target)."""
    if signal.average:
        ratio, count = signal.value / (signal.target * pods), math.ceil(signal.value / signal.target)
    else:
        ratio = signal.value / signal.target
        count = math.ceil(ratio * ready)
    return pods if abs(1.0 - ratio) <= TOLERANCE else count
