"""Gauges computed when the metrics page is read: what the pools hold now. Nothing here costs a request anything."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from poolpilot_picker.admin.views import EndpointRow, endpoint_rows
from poolpilot_picker.flow.pool import Pool

PER_ENDPOINT: Final[tuple[tuple[str, str, Callable[[EndpointRow], float | None]], ...]] = (
    ("poolpilot_endpoint_inflight", "Requests of this picker at the endpoint", lambda row: row.in_flight),
    ("poolpilot_endpoint_foreign", "Sequences at the endpoint that others placed, estimated", lambda row: row.foreign),
    ("poolpilot_endpoint_running", "Sequences the engine ran at the last sample", lambda row: row.running),
    ("poolpilot_endpoint_waiting", "Sequences the engine queued at the last sample", lambda row: row.waiting),
    ("poolpilot_endpoint_kv_usage", "Share of the KV cache in use at the last sample", lambda row: row.kv_usage),
    ("poolpilot_endpoint_prefill_queue_seconds", "Predicted prefill work ahead of a new request", lambda row: row.prefill_queue_ms / 1000.0),
    ("poolpilot_endpoint_prefix_tokens", "Prefix tokens thought to be in the engine's cache", lambda row: row.indexed_tokens),
    ("poolpilot_endpoint_telemetry_age_seconds", "Age of the last sample", lambda row: None if row.telemetry_age_ms is None else row.telemetry_age_ms / 1000.0),
    ("poolpilot_endpoint_prefill_slowdown", "Learned: prefill takes this times the profile's time", lambda row: row.prefill_speed),
    ("poolpilot_endpoint_decode_slowdown", "Learned: a decode step takes this times the profile's time", lambda row: row.decode_speed),
    ("poolpilot_endpoint_cache_trust", "Observed over predicted cache hits", lambda row: row.cache_trust),
    ("poolpilot_endpoint_failure_penalty_seconds", "Cost added for recent failures", lambda row: row.failure_penalty_ms / 1000.0),
)  # fmt: skip


class PoolCollector(Collector):
    """Per-endpoint and per-pool gauges, under llm-d's names where one exists."""

    def __init__(self, pools: Callable[[], list[Pool]], now: Callable[[], float]) -> None:
        self._pools = pools
        self._now = now

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not read the pools to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Families of all pools."""
        rows = {pool.name: endpoint_rows(pool, self._now()) for pool in self._pools()}
        labels = ["name", "model_server_endpoint"]
        for name, text, value_of in PER_ENDPOINT:
            family = GaugeMetricFamily(name, text, labels=labels)
            for pool, endpoints in rows.items():
                for row in endpoints:
                    value = value_of(row)
                    # A gauge that is not known is absent: zero would read as idle.
                    if value is not None:
                        family.add_metric([pool, row.endpoint], value)
            yield family
        yield from self._pool_families(rows)
        learned = CounterMetricFamily("poolpilot_learned", "Observations taken by each learner", labels=["name", "learner"])
        for pool_object in self._pools():
            for learner, count in pool_object.learning_counts().items():
                learned.add_metric([pool_object.name, learner], count)
        yield learned
        rss = GaugeMetricFamily("poolpilot_max_resident_bytes", "Largest resident memory so far")
        rss.add_metric([], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)
        yield rss

    @staticmethod
    def _pool_families(rows: dict[str, list[EndpointRow]]) -> Iterator[Metric]:
        prefix = "llm_d_epp_"
        ready = GaugeMetricFamily(prefix + "ready_endpoints", "Endpoints that may be chosen", labels=["name"])
        queue = GaugeMetricFamily(prefix + "average_queue_size", "Mean of the engines' queues", labels=["name"])
        running = GaugeMetricFamily(prefix + "average_running_requests", "Mean of running sequences", labels=["name"])
        kv = GaugeMetricFamily(prefix + "average_kv_cache_utilization", "Mean KV cache use", labels=["name"])
        each = GaugeMetricFamily(prefix + "per_endpoint_queue_size", "Queue of each engine", labels=["name", "model_server_endpoint"])
        for pool, endpoints in rows.items():
            wanted = [row for row in endpoints if not row.draining]
            ready.add_metric([pool], len(wanted))
            for family, values in (
                (queue, [row.waiting for row in wanted]),
                (running, [row.running for row in wanted]),
                (kv, [row.kv_usage for row in wanted]),
            ):
                known = [value for value in values if value is not None]
                if known:
                    family.add_metric([pool], math.fsum(known) / len(known))
            for row in wanted:
                if row.waiting is not None:
                    each.add_metric([pool, row.endpoint], row.waiting)
        yield from (ready, queue, running, kv, each)
