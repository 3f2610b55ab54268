"""Metrics of requests, decisions and bookings. Any room may count; only admin renders.

Names that operators' dashboards already know are kept (llm-d-router 0.10, prefix `llm_d_epp_`); what exists only here
has the prefix `poolpilot_`. What every request writes are tallies of our own, kept by who writes them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter

from poolpilot_picker.instruments.seldom import Seldom
from poolpilot_picker.instruments.tallies import Gauges, Spread, Spreads, Tallies, Tally

LABEL_VALUES: Final = 1_000
"""Distinct values kept per label; later ones are reported as `other`."""
LABEL_SETS: Final = 500
"""Distinct combinations kept of a request's labels: each has about 110 series. Later ones are `other` throughout."""
OWN_SETS: Final = 10
"""Of one of several pools in a process, whatever the others have."""
PICKED_SETS: Final = 10_000
"""The same for model × endpoint, which has one series."""
LABEL_LENGTH: Final = 128
"""Characters kept of a value: clients choose the names of models and tenants."""
OTHER: Final = "other"

_DURATION = (
    0.005,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    1.25,
    1.5,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    15,
    20,
    30,
    45,
    60,
    120,
    180,
    240,
    300,
    360,
    480,
    600,
    900,
    1200,
    1800,
    2700,
    3600,
)
_TTFT = _DURATION[: _DURATION.index(120) + 1]
_TOKENS = (1, *(2**power for power in range(3, 21)))
_SIZES = tuple(2**power for power in range(6, 31))
_DECISION = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

_L4 = ("model_name", "target_model_name", "fairness_id", "priority")


class LabelCap:
    """Cuts long values and replaces those beyond the first LABEL_VALUES by `other`: no client can grow the page."""

    def __init__(self, limit: int = LABEL_VALUES) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        value = value[:LABEL_LENGTH]
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value


class Room:
    """Combinations of labels that all pools of a process may have together; each has OWN_SETS for itself."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class SetCap:
    """Replaces combinations of label values beyond the first `limit` by another; or sooner, where no room is left."""

    def __init__(self, limit: int, room: Room | None = None) -> None:
        self._limit = limit
        self._room = room
        self._seen: set[tuple[str, ...]] = set()

    def __call__(self, labels: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
        if labels in self._seen:
            return labels
        if len(self._seen) >= self._limit:
            return other
        if self._room is not None and len(self._seen) >= OWN_SETS:
            if self._room.left <= 0:
                return other
            self._room.left -= 1
        self._seen.add(labels)
        return labels

    def free(self) -> None:
        """Gives its room back: it is not used any more."""
        if self._room is not None:
            self._room.left += max(0, len(self._seen) - OWN_SETS)
            self._room, self._limit = None, len(self._seen)


class RequestHandles(NamedTuple):
    """Children of the request metrics for one label set. What only watched exchanges tell is made when it is told."""

    labels: tuple[str, ...]
    total: Tally
    duration: Spread
    size: Spread
    input_tokens: Spread
    cached_tokens: Spread
    running: Tally


class PickerMetrics:
    """Every metric that is written per event. One instance for each pool, handed to the rooms that count."""

    def __init__(self, registry: CollectorRegistry, room: Room | None = None) -> None:
        """`room`: where several pools share a process."""
        self.registry = registry
        prefix = "llm_d_epp_"
        self._total = Tallies(prefix + "request", "Requests received", _L4, registry)
        self._errors = Counter(
            prefix + "request_error", "Requests that ended in an error", (*_L4, "error_code"), registry=registry
        )
        self._duration = Spreads(
            prefix + "request_duration_seconds",
            "From request headers to the end of the exchange",
            _L4,
            registry,
            _DURATION,
        )
        self._size = Spreads(prefix + "request_size_bytes", "Request bodies", _L4, registry, _SIZES)
        self._input = Spreads(
            prefix + "request_input_tokens",
            "Prompt tokens (estimated unless usage was seen)",
            _L4,
            registry,
            _TOKENS,
        )
        self._output = Spreads(
            prefix + "request_output_tokens",
            "Output tokens of observed exchanges",
            _L4,
            registry,
            _TOKENS,
        )
        self._cached = Spreads(
            prefix + "request_cached_tokens",
            "Prompt tokens that were cached (predicted unless usage was seen)",
            _L4,
            registry,
            _TOKENS,
        )
        self._ttft = Spreads(
            prefix + "request_ttft_seconds",
            "Time to first token of observed exchanges",
            (*_L4, "streaming"),
            registry,
            _TTFT,
        )
        self._running = Gauges(prefix + "request_running", "Requests in flight", _L4, registry=registry)
        self.decision = Spreads(
            prefix + "scheduler_e2e_duration_seconds", "Choosing and booking", (), registry, _DECISION
        ).labels()
        self._attempts = Tallies(
            prefix + "scheduler_attempts",
            "Decisions",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
            registry=registry,
        )
        self._rewrites = Counter(
            prefix + "model_rewrite_decisions",
            "Models rewritten by an InferenceModelRewrite",
            ("model_rewrite_name", "model_name", "target_model"),
            registry=registry,
        )
        self.refused = Counter(
            "poolpilot_requests_refused",
            "Requests answered by the picker itself",
            ("pool", "code", "reason"),
            registry=registry,
        )
        self.outcomes = Tallies(
            "poolpilot_exchanges",
            "Exchanges that were placed, by how they ended",
            ("pool", "outcome"),
            registry=registry,
        )
        self.moved = Tallies(
            "poolpilot_bookings_moved", "Bookings moved because another endpoint served", ("pool",), registry=registry
        )
        self.events = Counter(
            "poolpilot_events",
            "Rare events worth an alert: telemetry errors, duplicate ends of stream, plugin failures",
            ("kind",),
            registry=registry,
        )
        self._models, self._tenants = LabelCap(), LabelCap()
        self._endpoints = LabelCap()
        self._request_sets, self._picked_sets = SetCap(LABEL_SETS, room), SetCap(PICKED_SETS)
        self._rewritten_sets = SetCap(LABEL_SETS)
        self._handles: dict[tuple[str, str, str, int], RequestHandles] = {}
        self._picked: dict[tuple[str, str, int], Tally] = {}
        self._ended: dict[tuple[str, str], Tally] = {}
        self.seldom = Seldom()
        """For what the rooms log of single requests."""

    def free(self) -> None:
        """The pool is gone: what its labels took of the room is free."""
        self._request_sets.free()

    def labels(self, model: str, target: str, tenant: str, priority: int) -> tuple[str, ...]:
        """A request's labels, capped: (model, target model, tenant, priority)."""
        labels = (self._models(model), self._models(target), self._tenants(tenant), str(priority))
        return self._request_sets(labels, (OTHER, OTHER, OTHER, labels[3]))

    def request(self, model: str, target: str, tenant: str, priority: int) -> RequestHandles:
        """The children for a request's labels."""
        key = (model, target, tenant, priority)
        handles = self._handles.get(key)
        if handles is None:
            if len(self._handles) > 4 * LABEL_VALUES:
                self._handles.clear()
            labels = self.labels(model, target, tenant, priority)
            handles = self._handles[key] = RequestHandles(
                labels=labels,
                total=self._total.labels(*labels),
                duration=self._duration.labels(*labels),
                size=self._size.labels(*labels),
                input_tokens=self._input.labels(*labels),
                cached_tokens=self._cached.labels(*labels),
                running=self._running.labels(*labels),
            )
        return handles

    def first_token(self, handles: RequestHandles, seconds: float) -> None:
        """The first token was seen: only event streams show it."""
        self._ttft.labels(*handles.labels, "true").observe(seconds)

    def output(self, handles: RequestHandles, tokens: float) -> None:
        """The length of an answer is known."""
        self._output.labels(*handles.labels).observe(tokens)

    def error(self, model: str, target: str, tenant: str, priority: int, code: str) -> None:
        """A request ended in an error of this code."""
        self._errors.labels(*self.labels(model, target, tenant, priority), code).inc()

    def picked(self, target: str, endpoint: str, port: int) -> None:
        """A decision chose this endpoint (its name, or its address where it has none)."""
        key = (target, endpoint, port)
        child = self._picked.get(key)
        if child is None:
            if len(self._picked) > 4 * LABEL_VALUES:
                self._picked.clear()
            labels = ("success", self._models(target), self._endpoints(endpoint), "", str(port))
            other = ("success", OTHER, OTHER, "", "")
            child = self._picked[key] = self._attempts.labels(*self._picked_sets(labels, other))
        child.value += 1

    def not_picked(self, target: str) -> None:
        """A decision found no endpoint."""
        labels = ("failure", self._models(target), "", "", "")
        self._attempts.labels(*self._picked_sets(labels, ("failure", OTHER, "", "", ""))).inc()

    def rewritten(self, rule: str, model: str, target: str) -> None:
        """A rule gave a request another model."""
        labels = (rule, self._models(model), self._models(target))
        self._rewrites.labels(*self._rewritten_sets(labels, (rule, OTHER, OTHER))).inc()

    def ended(self, pool: str, outcome: str) -> None:
        """A placed exchange ended."""
        child = self._ended.get((pool, outcome))
        if child is None:
            child = self._ended[pool, outcome] = self.outcomes.labels(pool, str(outcome))
        child.value += 1
