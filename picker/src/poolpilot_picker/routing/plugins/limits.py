"""Filters that drop endpoints above a limit: utilization, and the two saturation detectors of llm-d used as filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta, Struct

from poolpilot_picker.config.registry import PluginKind, PluginType
from poolpilot_picker.routing.plugins.telemetry import inflight_tokens, known_mask

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats, Mask

Metric = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]


def _above(view: DecisionView, column: Floats, limit: float) -> Mask:
    """Where a gauge is known and above a limit."""
    return known_mask(view, column) & (column > limit)


class Condition(Struct, frozen=True, rename="camel"):
    """One limit."""

    metric: Metric
    max_value: Annotated[float, Meta(ge=0)]

    def broken(self, view: DecisionView) -> Mask:
        """Where the metric is above the limit; an unknown one is not."""
        table = view.table
        match self.metric:
            case "active-requests":
                return table.requests > self.max_value
            case "running-requests":
                return _above(view, table.running, self.max_value)
            case "waiting-queue":
                return _above(view, table.waiting, self.max_value)
            case "kv-cache-utilization":
                return _above(view, table.kv_usage, self.max_value)


class UtilizationParameters(Struct, frozen=True, rename="camel"):
    """Of utilization-filter."""

    conditions: Annotated[tuple[Condition, ...], Meta(description="metric and maxValue each")] = ()
    fallback_on_empty: Annotated[bool, Meta(description="keep all when every endpoint is above a limit")] = False


class UtilizationFilter:
    """Drops endpoints with any metric above its limit. A metric that is not known drops nobody."""

    def __init__(self, parameters: UtilizationParameters | None = None) -> None:
        self._parameters = parameters or UtilizationParameters()

    def filter(self, view: DecisionView) -> Mask:
        """True where no condition is broken."""
        kept = np.ones(len(view.mask), dtype=np.bool_)
        for condition in self._parameters.conditions:
            kept &= ~condition.broken(view)
        if self._parameters.fallback_on_empty and not (kept & view.mask).any():
            return np.ones(len(view.mask), dtype=np.bool_)
        return kept


class UtilizationDetectorParameters(Struct, frozen=True, rename="camel"):
    """Of utilization-detector."""

    queue_depth_threshold: Annotated[float, Meta(gt=0, description="requests waiting")] = 5.0
    kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1, description="share of the KV cache in use")] = 0.8
    headroom: Annotated[float, Meta(ge=0, description="both limits are raised by this share")] = 0.0
    staleness_policy: Annotated[
        Literal["saturated", "ignore"],
        Meta(description="whether an endpoint that is not heard from is dropped or kept"),
    ] = "saturated"


class UtilizationDetectorFilter:
    """Keeps endpoints whose queue and KV cache are below the thresholds; all of them when none is."""

    def __init__(self, parameters: UtilizationDetectorParameters | None = None) -> None:
        self._parameters = parameters or UtilizationDetectorParameters()

    def filter(self, view: DecisionView) -> Mask:
        """True below both thresholds."""
        parameters, table = self._parameters, view.table
        raised = 1.0 + parameters.headroom
        full = (table.waiting >= parameters.queue_depth_threshold * raised) | (
            table.kv_usage >= parameters.kv_cache_util_threshold * raised
        )
        kept = np.where(view.load.unknown, parameters.staleness_policy == "ignore", ~full)
        return kept if (kept & view.mask).any() else np.ones(len(view.mask), dtype=np.bool_)


class ConcurrencyDetectorParameters(Struct, frozen=True, rename="camel"):
    """Of concurrency-detector."""

    max_concurrency: Annotated[float, Meta(gt=0, description="requests in flight at an endpoint")] = 100.0
    max_token_concurrency: Annotated[float, Meta(gt=0, description="uncached tokens in flight at an endpoint")] = (
        1_000_000.0
    )
    headroom: Annotated[float, Meta(ge=0, description="both limits are raised by this share")] = 0.0
    concurrency_mode: Annotated[
        Literal["requests", "tokens", "hybrid"], Meta(description="which limits count; hybrid = both")
    ] = "requests"


class ConcurrencyDetectorFilter:
    """Keeps endpoints with less in flight than the limits. None is kept when all are at them: 429."""

    def __init__(self, parameters: ConcurrencyDetectorParameters | None = None) -> None:
        self._parameters = parameters or ConcurrencyDetectorParameters()

    def filter(self, view: DecisionView) -> Mask:
        """True below the limits."""
        parameters = self._parameters
        raised = 1.0 + parameters.headroom
        few = view.table.requests < parameters.max_concurrency * raised
        light = inflight_tokens(view) < parameters.max_token_concurrency * raised
        match parameters.concurrency_mode:
            case "requests":
                return few
            case "tokens":
                return light
            case "hybrid":
                return few & light


_DETECTOR: Final = frozenset({PluginKind.FILTER, PluginKind.SATURATION_DETECTOR})

TYPES: Final[tuple[PluginType[Any], ...]] = (
    PluginType(
        name="utilization-filter",
        kinds=frozenset({PluginKind.FILTER}),
        parameters=UtilizationParameters,
        summary="drops endpoints with a metric above its limit",
        build=UtilizationFilter,
        aliases=("active-request-filter",),
    ),
    PluginType(
        name="utilization-detector",
        kinds=_DETECTOR,
        parameters=UtilizationDetectorParameters,
        summary="as a filter: keeps endpoints below a queue and a KV cache threshold, or all",
        build=UtilizationDetectorFilter,
        unused_parameters={"metricsStalenessThreshold": "what counts as stale is poolpilot.telemetry.staleAfterMs"},
    ),
    PluginType(
        name="concurrency-detector",
        kinds=_DETECTOR,
        parameters=ConcurrencyDetectorParameters,
        summary="as a filter: keeps endpoints with less in flight than a limit",
        build=ConcurrencyDetectorFilter,
        unused_parameters={"inFlightLoadProducerName": "there is one account of what is in flight"},
    ),
)
