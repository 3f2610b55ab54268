"""Scorers by load, formulas of llm-d-router 0.10: queue, running requests, KV cache, requests and tokens in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from poolpilot_picker.config.registry import NoParameters, PluginKind, PluginType
from poolpilot_picker.routing.plugins.telemetry import inflight_tokens, known_or_peers

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats

_SCORER: Final = frozenset({PluginKind.SCORER})
_ONE_ACCOUNT: Final = {"inFlightLoadProducerName": "there is one account of what is in flight"}


def fewest(values: Floats, view: DecisionView) -> Floats:
    """(max − value) ÷ (max − min) over the candidates: 1 for the fewest, 0 for the most, 1 for all when equal."""
    candidates = values[view.mask]
    low, high = candidates.min(), candidates.max()
    if high == low:
        return np.ones(len(values))
    score: Floats = (high - values) / (high - low)
    return score


class QueueScorer:
    """Requests waiting in the engine, between the candidates' fewest and most. Unknown: the median of its peers."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        pass

    def score(self, view: DecisionView) -> Floats:
        """1 for the shortest queue, 0 for the longest."""
        return fewest(known_or_peers(view, view.table.waiting), view)


class RunningRequestsScorer:
    """Requests running in the engine, between the candidates' fewest and most. Unknown: the median of its peers."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        pass

    def score(self, view: DecisionView) -> Floats:
        """1 for the fewest, 0 for the most."""
        return fewest(known_or_peers(view, view.table.running), view)


class KvCacheScorer:
    """Free share of the KV cache. Unknown: the median of its peers."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        pass

    def score(self, view: DecisionView) -> Floats:
        """1 − usage."""
        return 1.0 - known_or_peers(view, view.table.kv_usage)


class LoadAwareParameters(Struct, frozen=True, rename="camel"):
    """Of load-aware-scorer."""

    threshold: Annotated[int, Meta(description="queue length that scores 0; 0 and less mean 128")] = 128


class LoadAwareScorer:
    """Requests waiting, against a threshold. An empty queue scores 0.5, not 1. Unknown: the median of its peers."""

    def __init__(self, parameters: LoadAwareParameters | None = None) -> None:
        wanted = (parameters or LoadAwareParameters()).threshold
        self._threshold = float(wanted if wanted > 0 else 128)

    def score(self, view: DecisionView) -> Floats:
        """0.5 · (1 − min(waiting, threshold) ÷ threshold)."""
        waiting = known_or_peers(view, view.table.waiting)
        return 0.5 * (1.0 - np.minimum(waiting, self._threshold) / self._threshold)


class ActiveRequestParameters(Struct, frozen=True, rename="camel"):
    """Of active-request-scorer."""

    idle_threshold: Annotated[int, Meta(ge=0, description="so many requests in flight still count as idle")] = 0
    max_busy_score: Annotated[float, Meta(ge=0, le=1, description="highest score of an endpoint that is not idle")] = (
        1.0
    )


class ActiveRequestScorer:
    """Requests that this picker placed and that are not finished. Never unknown: it is our own account."""

    def __init__(self, parameters: ActiveRequestParameters | None = None) -> None:
        self._parameters = parameters or ActiveRequestParameters()

    def score(self, view: DecisionView) -> Floats:
        """1 while idle, else (max − count) ÷ max · maxBusyScore."""
        count = view.table.requests
        most = max(float(count[view.mask].max()), 1.0)
        busy = (most - count) / most * self._parameters.max_busy_score
        return np.where(count <= self._parameters.idle_threshold, 1.0, busy)


class TokenLoadParameters(Struct, frozen=True, rename="camel"):
    """Of token-load-scorer."""

    queue_threshold_tokens: Annotated[int, Meta(gt=0, description="tokens that score 0")] = 4_194_304


class TokenLoadScorer:
    """Uncached prompt tokens in flight, this request's own included. Never unknown: it is our own account."""

    def __init__(self, parameters: TokenLoadParameters | None = None) -> None:
        self._threshold = float((parameters or TokenLoadParameters()).queue_threshold_tokens)

    def score(self, view: DecisionView) -> Floats:
        """1 − min(tokens, threshold) ÷ threshold."""
        own = np.maximum(view.request.prompt_tokens - view.cached_tokens, 0.0)
        return 1.0 - np.clip(inflight_tokens(view) + own, 0.0, self._threshold) / self._threshold


TYPES: Final[tuple[PluginType[Any], ...]] = (
    PluginType(
        name="queue-scorer",
        kinds=_SCORER,
        parameters=NoParameters,
        summary="requests waiting in the engine, min–max over the candidates",
        build=QueueScorer,
    ),
    PluginType(
        name="running-requests-size-scorer",
        kinds=_SCORER,
        parameters=NoParameters,
        summary="requests running in the engine, min–max over the candidates",
        build=RunningRequestsScorer,
    ),
    PluginType(
        name="kv-cache-utilization-scorer",
        kinds=_SCORER,
        parameters=NoParameters,
        summary="1 − share of the KV cache in use",
        build=KvCacheScorer,
    ),
    PluginType(
        name="load-aware-scorer",
        kinds=_SCORER,
        parameters=LoadAwareParameters,
        summary="requests waiting, against a threshold; at most 0.5",
        build=LoadAwareScorer,
    ),
    PluginType(
        name="active-request-scorer",
        kinds=_SCORER,
        parameters=ActiveRequestParameters,
        summary="requests that this picker has in flight there",
        build=ActiveRequestScorer,
        unused_parameters={**_ONE_ACCOUNT, "requestTimeout": "requests are counted until they end"},
    ),
    PluginType(
        name="token-load-scorer",
        kinds=_SCORER,
        parameters=TokenLoadParameters,
        summary="uncached prompt tokens in flight there, with this request's",
        build=TokenLoadScorer,
        unused_parameters=_ONE_ACCOUNT,
    ),
)
