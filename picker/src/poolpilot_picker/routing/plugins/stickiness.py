"""Keeps requests where their state is: prefix affinity until the sticky endpoint is too busy, and session bindings."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from msgspec import Meta, Struct, field

from poolpilot_picker.config.registry import PluginKind, PluginType
from poolpilot_picker.routing.plugins.telemetry import inflight_tokens, prefix_ratio

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Endpoint, Floats, Mask

MAX_SESSIONS: Final = 100_000
"""Bindings held at most: clients choose the keys."""


class PrefixAffinityParameters(Struct, frozen=True, rename="camel"):
    """Of prefix-cache-affinity-filter."""

    affinity_threshold: Annotated[
        float, Meta(ge=0, le=1, description="matched share that makes an endpoint sticky")
    ] = 0.8
    exploration_probability: Annotated[
        float, Meta(ge=0, le=1, description="share of requests that ignore stickiness")
    ] = 0.0
    max_ttft_penalty_ms: Annotated[
        float, Meta(ge=0, description="how much later the first token may come for stickiness; 0 = always stick")
    ] = field(default=18_000.0, name="maxTTFTPenaltyMs")
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    peak_prefill_throughput: Annotated[float, Meta(gt=0, description="prefill speed of one endpoint, tokens/s")] = (
        15_928.0
    )

    def __post_init__(self) -> None:
        if self.ttft_source != "prefillThroughput":
            raise ValueError(
                f"ttftSource {self.ttft_source} is known but not supported yet; write prefillThroughput, or use "
                "predicted-finish-picker, which predicts latency without a sidecar"
            )


class PrefixAffinityFilter:
    """Keeps the endpoints that hold most of the prompt, unless their queue would delay the first token too much.

    The delay is estimated from uncached tokens in flight at the best endpoint of either group.
    """

    def __init__(self, parameters: PrefixAffinityParameters | None = None) -> None:
        self._parameters = parameters or PrefixAffinityParameters()

    def filter(self, view: DecisionView) -> Mask:
        """The sticky endpoints, or all."""
        parameters = self._parameters
        everyone = np.ones(len(view.mask), dtype=np.bool_)
        sticky = view.mask & (prefix_ratio(view) >= parameters.affinity_threshold) & (view.cached_tokens > 0)
        others = view.mask & ~sticky
        if not sticky.any() or not others.any():
            return everyone
        if parameters.exploration_probability and view.rng.random() < parameters.exploration_probability:
            return everyone
        ttft_ms = inflight_tokens(view) / parameters.peak_prefill_throughput * 1000.0
        behind = float(ttft_ms[sticky].min() - ttft_ms[others].min())
        if parameters.max_ttft_penalty_ms and behind > parameters.max_ttft_penalty_ms:
            return everyone
        return sticky


class SessionParameters(Struct, frozen=True, rename="camel"):
    """Of the session-affinity plugins."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    eviction_ttl_seconds: Annotated[float, Meta(gt=0, description="a session unused for so long is forgotten")] = 300.0
    eviction_sweep_seconds: Annotated[float, Meta(gt=0, description="how often is looked for such sessions")] = 10.0

    def __post_init__(self) -> None:
        if self.strategy != "session_id":
            raise ValueError(
                "strategy encoded_endpoint_header (the default) is known but not supported yet; write strategy: "
                "session_id, which binds by the header x-poolpilot-routing-key or x-session-id"
            )


class _Binding(NamedTuple):
    endpoint: Endpoint
    used_ms: float


class _Sessions:
    """Session → endpoint. Bound when first placed; rebound only when the bound endpoint was no candidate."""

    def __init__(self, parameters: SessionParameters) -> None:
        self._ttl_ms = parameters.eviction_ttl_seconds * 1000.0
        self._sweep_ms = parameters.eviction_sweep_seconds * 1000.0
        self._swept_ms = -np.inf
        self._bound: OrderedDict[str, _Binding] = OrderedDict()
        """Least recently used first."""

    def slot(self, view: DecisionView) -> int | None:
        """Where the request's session is bound, if that endpoint is a candidate."""
        binding = self._bound.get(view.request.routing_key)
        if binding is None or view.now - binding.used_ms > self._ttl_ms:
            return None
        slot = binding.endpoint.slot
        return slot if view.table.holds(binding.endpoint) and view.mask[slot] else None

    def placed(self, view: DecisionView, slot: int) -> None:
        """Binds, or keeps the binding of, the request's session."""
        key = view.request.routing_key
        if not key:
            return
        self._sweep(view.now)
        binding = self._bound.get(key)
        endpoint = view.table.at(slot)
        if binding is not None and view.now - binding.used_ms <= self._ttl_ms and self._was_candidate(view, binding):
            endpoint = binding.endpoint
        self._bind(key, endpoint, view.now)

    def placed_elsewhere(self, routing_key: str, endpoint: Endpoint, now: float) -> None:
        """Binds a session that another process has placed first; one that is bound here stays where it is."""
        binding = self._bound.get(routing_key)
        if binding is not None and now - binding.used_ms <= self._ttl_ms:
            endpoint = binding.endpoint
        self._bind(routing_key, endpoint, now)

    def _bind(self, key: str, endpoint: Endpoint, now: float) -> None:
        self._bound[key] = _Binding(endpoint, now)
        self._bound.move_to_end(key)
        if len(self._bound) > MAX_SESSIONS:
            self._bound.popitem(last=False)

    @staticmethod
    def _was_candidate(view: DecisionView, binding: _Binding) -> bool:
        """Also when a filter removed it: a busy moment does not end a session."""
        slot = binding.endpoint.slot
        return view.table.holds(binding.endpoint) and (bool(view.mask[slot]) or slot in view.excluded)

    def _sweep(self, now: float) -> None:
        if now - self._swept_ms < self._sweep_ms:
            return
        self._swept_ms = now
        while self._bound:
            key, binding = next(iter(self._bound.items()))
            if now - binding.used_ms <= self._ttl_ms:
                break
            del self._bound[key]


class SessionAffinityScorer:
    """Prefers the endpoint that a session was first placed on. The session is the request's routing key."""

    def __init__(self, parameters: SessionParameters) -> None:
        self._sessions = _Sessions(parameters)

    def score(self, view: DecisionView) -> Floats:
        """1 for the bound endpoint, 0 for others, 0 for all without a binding."""
        score = np.zeros(len(view.mask))
        slot = self._sessions.slot(view)
        if slot is not None:
            score[slot] = 1.0
        return score

    def placed(self, view: DecisionView, slot: int) -> None:
        """Binds the session."""
        self._sessions.placed(view, slot)

    def placed_elsewhere(self, routing_key: str, endpoint: Endpoint, now: float) -> None:
        """Binds a session that another process has placed."""
        self._sessions.placed_elsewhere(routing_key, endpoint, now)


class SessionAffinityFilter:
    """Pins a session to the endpoint it was first placed on; passes all where that is no candidate."""

    def __init__(self, parameters: SessionParameters) -> None:
        self._sessions = _Sessions(parameters)

    def filter(self, view: DecisionView) -> Mask:
        """The bound endpoint alone, or all."""
        slot = self._sessions.slot(view)
        if slot is None:
            return np.ones(len(view.mask), dtype=np.bool_)
        kept = np.zeros(len(view.mask), dtype=np.bool_)
        kept[slot] = True
        return kept

    def placed(self, view: DecisionView, slot: int) -> None:
        """Binds the session."""
        self._sessions.placed(view, slot)

    def placed_elsewhere(self, routing_key: str, endpoint: Endpoint, now: float) -> None:
        """Binds a session that another process has placed."""
        self._sessions.placed_elsewhere(routing_key, endpoint, now)


_ONE_PROFILE: Final = {"profileName": "there is one profile"}

TYPES: Final[tuple[PluginType[Any], ...]] = (
    PluginType(
        name="prefix-cache-affinity-filter",
        kinds=frozenset({PluginKind.FILTER}),
        parameters=PrefixAffinityParameters,
        summary="keeps endpoints that hold most of the prompt, unless their queue is too long",
        build=PrefixAffinityFilter,
        unused_parameters={
            "prefixMatchInfoProducerName": "there is one prefix index",
            "inFlightLoadProducerName": "there is one account of what is in flight",
        },
    ),
    PluginType(
        name="session-affinity-scorer",
        kinds=frozenset({PluginKind.SCORER}),
        parameters=SessionParameters,
        summary="prefers the endpoint that the session was first placed on",
        build=SessionAffinityScorer,
        unused_parameters=_ONE_PROFILE,
    ),
    PluginType(
        name="session-affinity-filter",
        kinds=frozenset({PluginKind.FILTER}),
        parameters=SessionParameters,
        summary="pins a session to the endpoint it was first placed on",
        build=SessionAffinityFilter,
        unused_parameters=_ONE_PROFILE,
    ),
)
