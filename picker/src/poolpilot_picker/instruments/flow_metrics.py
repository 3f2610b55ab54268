"""Metrics of flow control, in llm-d-router 0.10's names where it has them. Made only where flow control is on.

What waits is counted as it comes and goes; what is a reading of the moment is read when the page is.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from poolpilot_picker.instruments.metrics import LABEL_VALUES
from poolpilot_picker.instruments.tallies import Gauges, Spread, Spreads, Tallies, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

    from poolpilot_picker.instruments.metrics import PickerMetrics

_PREFIX: Final = "llm_d_epp_flow_control_"
_QUEUED: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_WAITING: Final = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")


class FlowReading(NamedTuple):
    """Of one moment."""

    saturation: float
    oldest_s: float
    predicted_wait_s: float
    """NaN where nothing is known of the pool's pace."""
    retry_budget: float
    requests: int
    bytes: int
    most_requests: float
    most_bytes: float
    bands: list[tuple[int, float, float]]
    """(priority, share of its requests, share of its bytes)."""


class Readable(Protocol):
    """Flow control, as its metrics read it. May be asked in another thread."""

    def reading(self, now: float) -> FlowReading:
        """At this time, ms."""
        ...


class Described(Protocol):
    """What labels need of a request."""

    model: str
    target_model: str
    priority: int


class Queued(Protocol):
    """What is counted of a ticket."""

    @property
    def request(self) -> Described: ...

    tenant: str
    arrived_ms: float
    overdue_ms: float
    size_bytes: int


class FlowMetrics(Collector):
    """Of one pool."""

    def __init__(
        self,
        metrics: PickerMetrics,
        pool: str,
        now: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` (s) measures how long decisions take."""
        registry = metrics.registry
        self.clock = clock
        self._decision = metrics.decision
        self._labels = metrics.labels
        self._pool = pool
        self._now = now
        self._watched: Readable | None = None
        self._duration = Spreads(
            _PREFIX + "request_queue_duration_seconds",
            "From arrival to dispatch, or to another end",
            ("fairness_id", "priority", "outcome", "inference_pool", "model_name", "target_model_name"),
            registry,
            _QUEUED,
        )
        self._size = Gauges(_PREFIX + "queue_size", "Requests that wait", _WAITING, registry=registry)
        self._bytes = Gauges(_PREFIX + "queue_bytes", "Their bodies", _WAITING, registry=registry)
        self._requests = Tallies(
            _PREFIX + "requests",
            "Requests by what became of them",
            ("outcome", "priority", "inference_pool"),
            registry=registry,
        )
        self._overdue = Tallies(
            "poolpilot_flow_control_overdue",
            "Requests that waited longer than their band's ageing time before they were dispatched",
            ("inference_pool", "priority"),
            registry=registry,
        )
        self._retries = Tallies(
            "poolpilot_flow_control_client_retries",
            "Requests that a client has sent before, by what tells it",
            ("inference_pool", "sign"),
            registry=registry,
        )
        self._clamped = Tallies(
            "poolpilot_flow_control_clamped",
            "Requests whose max_tokens was lowered to their tenant's",
            ("inference_pool",),
            registry=registry,
        )
        self._passed: dict[tuple[str, str, str, int], tuple[Spread, Tally]] = {}
        registry.register(self)

    def watch(self, flow: Readable) -> None:
        """Whom to ask for what is a reading."""
        self._watched = flow

    def passed(self, request: Described, tenant: str) -> None:
        """A request did not wait."""
        key = (request.model, request.target_model, tenant, request.priority)
        handles = self._passed.get(key)
        if handles is None:
            if len(self._passed) > 4 * LABEL_VALUES:
                self._passed.clear()
            handles = self._passed[key] = self._of(request, tenant, "Dispatched")
        handles[0].observe(0.0)
        handles[1].value += 1

    def decided(self, began: float) -> None:
        """A request that waited was placed; `began`: by the clock, when its decision did."""
        self._decision.observe(self.clock() - began)

    def clamped(self) -> None:
        """A request's max_tokens was lowered."""
        self._clamped.labels(self._pool).value += 1

    def client_retried(self, sign: str) -> None:
        """A request came that its client had sent before."""
        self._retries.labels(self._pool, sign).value += 1

    def _of(self, request: Described, tenant: str, outcome: str) -> tuple[Spread, Tally]:
        model, target, fairness, priority = self._labels(request.model, request.target_model, tenant, request.priority)
        return (
            self._duration.labels(fairness, priority, outcome, self._pool, model, target),
            self._requests.labels(outcome, priority, self._pool),
        )

    def ended(self, request: Described, tenant: str, outcome: str, seconds: float) -> None:
        """A request was dispatched after a wait, or will not be."""
        spread, tally = self._of(request, tenant, outcome)
        spread.observe(seconds)
        tally.value += 1

    def queued(self, ticket: Queued) -> None:
        """It waits."""
        size, volume = self._waiting(ticket)
        size.value += 1
        volume.value += ticket.size_bytes

    def left(self, ticket: Queued, outcome: str, now: float) -> None:
        """It waits no more."""
        size, volume = self._waiting(ticket)
        size.value -= 1
        volume.value -= ticket.size_bytes
        self.ended(ticket.request, ticket.tenant, outcome, (now - ticket.arrived_ms) / 1000.0)
        if outcome == "Dispatched" and now > ticket.overdue_ms:
            self._overdue.labels(self._pool, str(ticket.request.priority)).value += 1

    def _waiting(self, ticket: Queued) -> tuple[Tally, Tally]:
        request = ticket.request
        model, target, fairness, priority = self._labels(
            request.model, request.target_model, ticket.tenant, request.priority
        )
        labels = (fairness, priority, self._pool, model, target)
        return self._size.labels(*labels), self._bytes.labels(*labels)

    def collect(self) -> Iterable[Metric]:
        """The readings. Also while the pool has no endpoints: autoscalers must see the queue that engines do not."""
        reading = self._watched.reading(self._now()) if self._watched is not None else None
        pool = self._pool

        def family(name: str, documentation: str, value: float | None, **named: str) -> Metric:
            gauge = GaugeMetricFamily(name, documentation, labels=("inference_pool", *named))
            if value is not None and not math.isnan(value):
                gauge.add_metric((pool, *named.values()), value)
            return gauge

        def read(name: str) -> float | None:
            return None if reading is None else float(getattr(reading, name))

        yield family(_PREFIX + "pool_saturation", "0 idle, 1 saturated", read("saturation"), stage="effective")
        yield family("poolpilot_flow_control_oldest_wait_seconds", "Of those that wait now", read("oldest_s"))
        yield family(
            "poolpilot_flow_control_predicted_wait_seconds",
            "Of a request that came now; absent where nothing is known of the pool's pace",
            read("predicted_wait_s"),
        )
        yield family("poolpilot_flow_control_retry_budget", "Retries that may come at once", read("retry_budget"))
        for what, most in (("requests", "most_requests"), ("bytes", "most_bytes")):
            used, limit = read(what), read(most)
            share = None if used is None or limit is None else used / limit
            yield family(
                f"{_PREFIX}global_capacity_utilization_{what}", "Share of the whole queue that is taken", share
            )
        for index, what in ((1, "requests"), (2, "bytes")):
            gauge = GaugeMetricFamily(
                f"{_PREFIX}capacity_utilization_{what}",
                "Share of a priority's queue that is taken",
                labels=("priority", "inference_pool"),
            )
            for band in reading.bands if reading is not None else ():
                gauge.add_metric((str(band[0]), pool), band[index])
            yield gauge
