"""Builds decision views over a hand-made pool, for tests of the routing room."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable
from poolpilot_picker.state.samples import EngineSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NOW = 1_000_000.0


def make_table(
    count: int, labels: Sequence[Mapping[str, str]] = (), sampled: bool = True, **columns: Iterable[float]
) -> EndpointTable:
    """A table with `count` endpoints 10.0.0.1:8000, 10.0.0.2:8000, … and the given columns; sampled 10 ms ago."""
    table = EndpointTable()
    table.apply(
        EndpointSpec(host=f"10.0.0.{index + 1}", port=8000, labels=labels[index] if index < len(labels) else {})
        for index in range(count)
    )
    if sampled:
        table.sample_ms[:] = NOW - 10.0
        table.running[:] = table.waiting[:] = table.kv_usage[:] = 0.0
    for name, values in columns.items():
        getattr(table, name)[:] = list(values)
    return table


def make_adapters(
    count: int, models: Sequence[Sequence[str]] = (), slots: int = 4, waiting: Sequence[Sequence[str]] = ()
) -> AdapterResidency:
    """Residency of `count` endpoints whose metrics show these running and waiting adapters."""
    adapters = AdapterResidency()
    adapters.resize(count)
    for index in range(count):
        adapters.apply_sample(
            index,
            EngineSample(
                taken_ms=NOW,
                max_adapters=slots,
                active_adapters=tuple(models[index]) if index < len(models) else (),
                waiting_adapters=tuple(waiting[index]) if index < len(waiting) else (),
            ),
        )
    return adapters


def make_view(
    table: EndpointTable,
    *,
    request: InferenceRequest | None = None,
    cached: Sequence[float] | None = None,
    mask: Sequence[bool] | None = None,
    adapters: AdapterResidency | None = None,
    seed: int = 1,
    now: float = NOW,
) -> DecisionView:
    """A view of everything that the table holds, its gauges taken as just sampled."""
    there = np.nan_to_num(table.running) + np.nan_to_num(table.waiting)
    table.foreign[:] = np.maximum(there - table.inflight, 0.0)
    table.load_ms[:] = np.where(np.isnan(table.running), -np.inf, table.sample_ms)
    return DecisionView(
        request=request or InferenceRequest(request_id="r"),
        table=table,
        now=now,
        mask=table.eligible.copy() if mask is None else np.array(mask, dtype=np.bool_),
        cached_tokens=np.zeros(len(table)) if cached is None else np.array(cached, dtype=np.float64),
        indexed_tokens=np.zeros(len(table)),
        adapters=adapters or make_adapters(len(table)),
        rng=random.Random(seed),
    )
