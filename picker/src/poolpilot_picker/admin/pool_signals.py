"""What autoscalers read of a pool: how much waits, how long one more request would wait, how full its endpoints are.

All of it is also there, and a number, while the pool has no endpoints: a signal that is missing when nothing runs never
starts anything.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from prometheus_client.core import GaugeMetricFamily

from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.room import Room, RoomSettings
from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.routing.cost_model import CostModel, CostParameters
from poolpilot_picker.routing.view import DecisionView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from poolpilot_picker.flow.pool import Pool

_ROOM: Final = Room(RoomSettings())
"""How full endpoints are, where no flow control says what full is."""
_ONE: Final = InferenceRequest(request_id="", prompt_tokens=1)
"""Of the request that comes next nothing is known but that it is one."""
_LABELS: Final = ("pool", "pool_namespace", "pool_name")
"""The two parts also alone: a metrics API knows objects by namespace and name."""


class PoolSignals(NamedTuple):
    """Of one moment."""

    engine_queue: float
    """Sequences that wait in the engines, as they last said."""
    held: int
    """Requests that this picker holds back."""
    predicted_wait_s: float
    """Of a request that came now, until an engine would begin with it; never less than what the oldest has waited."""
    saturation: float
    """0 idle, 1 saturated; 1 without endpoints."""


def pool_signals(pool: Pool, now: float) -> PoolSignals:
    """Of this time, ms. To be asked by who owns the pool."""
    table = pool.table
    fresh = table.eligible & (now - table.load_ms <= pool.settings.stale_after_ms)
    queue = float(np.nan_to_num(table.waiting[fresh]).sum())
    wait_s = _shortest_wait_ms(pool, now) / 1000.0
    flow = pool.flow
    if not isinstance(flow, FlowControl):
        return PoolSignals(queue, 0, wait_s, _ROOM.saturation(table, now, pool.settings.stale_after_ms))
    reading = flow.reading(now)
    behind_s = float(np.nan_to_num(reading.predicted_wait_s))
    return PoolSignals(queue, reading.requests, max(wait_s + behind_s, reading.oldest_s), reading.saturation)


def _shortest_wait_ms(pool: Pool, now: float) -> float:
    """By the cost model, at the endpoint that would begin first; 0 without endpoints."""
    table = pool.table
    if not table.any_wanted:
        return 0.0
    slots = len(table)
    view = DecisionView(
        request=_ONE,
        table=table,
        now=now,
        mask=table.eligible,
        cached_tokens=np.zeros(slots),
        indexed_tokens=np.zeros(slots),
        adapters=pool.adapters,
        rng=random.Random(0),
        stale_after_ms=pool.settings.stale_after_ms,
        expected_rest=pool.lengths.remaining(),
    )
    cost = CostModel(view, CostParameters())
    return min(cost.forecast(slot).wait_ms for slot in np.flatnonzero(table.eligible).tolist())


def families(found: Iterable[tuple[str, PoolSignals]]) -> Iterator[Metric]:
    """The metrics of some pools, by their names."""
    queue = GaugeMetricFamily(
        "poolpilot_pool_queue_size",
        "What waits: in the engines, and held back by this picker",
        labels=(*_LABELS, "at"),
    )
    wait = GaugeMetricFamily(
        "poolpilot_pool_predicted_wait_seconds", "Of a request that came now, until an engine begins", labels=_LABELS
    )
    saturation = GaugeMetricFamily(
        "poolpilot_pool_saturation", "0 idle, 1 saturated; 1 without endpoints", labels=_LABELS
    )
    for pool, signals in found:
        namespace, _, name = pool.rpartition("/")
        labels = (pool, namespace, name)
        queue.add_metric((*labels, "engines"), signals.engine_queue)
        queue.add_metric((*labels, "picker"), signals.held)
        wait.add_metric(labels, signals.predicted_wait_s)
        saturation.add_metric(labels, signals.saturation)
    yield from (queue, wait, saturation)
