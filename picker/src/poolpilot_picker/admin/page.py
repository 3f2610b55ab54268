"""The metrics page: what was counted per event, and what the pools hold now, taken when the page is read.

A page of many models or endpoints takes longer to write than a request may wait: what the pools hold is copied in small
steps, and the text is made of the copies in a thread.
"""

from __future__ import annotations

import math
import resource
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from poolpilot_picker.admin.pool_signals import PoolSignals, families, pool_signals
from poolpilot_picker.admin.views import EndpointRow, endpoint_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from poolpilot_picker.flow.pool import Pool

PER_ENDPOINT: Final[tuple[tuple[str, str, Callable[[EndpointRow], float | None]], ...]] = (
    ("poolpilot_endpoint_inflight", "Requests of this picker at the endpoint", lambda row: row.in_flight),
    ("poolpilot_endpoint_foreign", "Sequences at the endpoint that others placed, estimated", lambda row: row.foreign),
    ("poolpilot_endpoint_running", "Sequences the engine ran at the last sample", lambda row: row.running),
    ("poolpilot_endpoint_waiting", "Sequences the engine queued at the last sample", lambda row: row.waiting),
    ("poolpilot_endpoint_kv_usage", "Share of the KV cache in use at the last sample", lambda row: row.kv_usage),
    (
        "poolpilot_endpoint_prefill_queue_seconds",
        "Predicted prefill work ahead of a new request",
        lambda row: row.prefill_queue_ms / 1000.0,
    ),
    (
        "poolpilot_endpoint_prefix_tokens",
        "Prefix tokens thought to be in the engine's cache",
        lambda row: row.indexed_tokens,
    ),
    (
        "poolpilot_endpoint_telemetry_age_seconds",
        "Age of the last sample",
        lambda row: None if row.telemetry_age_ms is None else row.telemetry_age_ms / 1000.0,
    ),
    (
        "poolpilot_endpoint_prefill_slowdown",
        "Learned: prefill takes this times the profile's time",
        lambda row: row.prefill_speed,
    ),
    (
        "poolpilot_endpoint_decode_slowdown",
        "Learned: a decode step takes this times the profile's time",
        lambda row: row.decode_speed,
    ),
    ("poolpilot_endpoint_cache_trust", "Observed over predicted cache hits", lambda row: row.cache_trust),
    (
        "poolpilot_endpoint_failure_penalty_seconds",
        "Cost added for recent failures",
        lambda row: row.failure_penalty_ms / 1000.0,
    ),
    (
        "poolpilot_endpoint_ejected",
        "1 while it is left out because it failed or was too slow, or is on trial after that",
        lambda row: 1.0 if row.ejected else 0.0,
    ),
)


class PoolSnapshot(NamedTuple):
    """What a pool held at one moment."""

    name: str
    rows: list[EndpointRow]
    learned: dict[str, int]
    """Observations by learner."""
    signals: PoolSignals
    ejections: dict[str, int]
    """So far, by reason."""
    others: float
    """Share of the pool's sequences that others placed."""
    home_trust: float
    """Share of expected cache hits that came true, as far as it counts (`state.homes`)."""


async def snapshot(pool: Pool, now: float) -> PoolSnapshot:
    """Copies what the page says of a pool."""
    rows = await endpoint_rows(pool, now)
    signals, ejections, homes = pool_signals(pool, now), dict(pool.ejector.counts), pool.homes
    return PoolSnapshot(pool.name, rows, pool.learning_counts(), signals, ejections, homes.others, homes.trust)


class ProcessFacts(NamedTuple):
    """Counts of the process that the rooms keep as plain numbers."""

    version: str
    streams_open: int
    streams_ended: Mapping[str, int]
    """By gRPC code."""
    config_reloads: int
    config_refusals: int
    plugin_failures: Mapping[str, int]
    telemetry_errors: Mapping[str, int]
    telemetry_remarks: Mapping[str, int]
    telemetry_polls: int
    telemetry_busy_s: float
    telemetry_overdue_ms: float
    engine_restarts: int
    discovery_failures: int
    held_bytes: tuple[int, int]
    """Of request bodies: held, and how many may be."""
    tls_loads: tuple[int, int] | None
    """(accepted, refused); None without TLS."""


class Page(NamedTuple):
    """Everything on the page; may be read in any thread."""

    events: Sequence[tuple[str, CollectorRegistry]]
    """What was counted per event, by pool; the name is empty where one registry has all there is."""
    pools: Sequence[PoolSnapshot]
    process: ProcessFacts
    serving: Mapping[str, bool]
    """Whether requests may be sent to a pool, where there are several."""

    def collect(self) -> Iterator[Metric]:
        """All families, as prometheus_client's encoders ask for them."""
        yield from _merged(self.events)
        yield from _endpoints(self.pools)
        yield from _averages(self.pools)
        yield from families((one.name, one.signals) for one in self.pools)
        yield from _serving(self.serving)
        yield from _process(self.process)


def _merged(events: Sequence[tuple[str, CollectorRegistry]]) -> Iterator[Metric]:
    """Each family once, with the samples of all pools, which get the label `pool` where they have none."""
    if len(events) == 1 and not events[0][0]:
        yield from events[0][1].collect()
        return
    families: dict[str, Metric] = {}
    for pool, registry in events:
        for family in registry.collect():
            samples = [
                one if "pool" in one.labels else one._replace(labels={"pool": pool, **one.labels})
                for one in family.samples
            ]
            known = families.setdefault(family.name, family)
            if known is family:
                family.samples = samples
            else:
                known.samples += samples
    yield from families.values()


def _endpoints(snapshots: Sequence[PoolSnapshot]) -> Iterator[Metric]:
    labels = ["name", "model_server_endpoint"]
    for name, text, value_of in PER_ENDPOINT:
        family = GaugeMetricFamily(name, text, labels=labels)
        for pool in snapshots:
            for row in pool.rows:
                value = value_of(row)
                # A gauge that is not known is absent: zero would read as idle.
                if value is not None:
                    family.add_metric([pool.name, row.endpoint], value)
        yield family
    learned = CounterMetricFamily("poolpilot_learned", "Observations taken by each learner", labels=["name", "learner"])
    ejections = CounterMetricFamily(
        "poolpilot_ejections", "Endpoints that were left out for a while", labels=["name", "reason"]
    )
    others = GaugeMetricFamily(
        "poolpilot_others_share",
        "Share of the pool's sequences that others placed: further pickers, direct clients",
        labels=["name"],
    )
    trust = GaugeMetricFamily(
        "poolpilot_home_trust",
        "What hits are hoped for where other pickers probably left prefixes counts this much",
        labels=["name"],
    )
    for pool in snapshots:
        others.add_metric([pool.name], pool.others)
        trust.add_metric([pool.name], pool.home_trust)
        for learner, count in pool.learned.items():
            learned.add_metric([pool.name, learner], count)
        for reason, count in pool.ejections.items():
            ejections.add_metric([pool.name, reason], count)
    yield from (learned, ejections, others, trust)


def _averages(snapshots: Sequence[PoolSnapshot]) -> Iterator[Metric]:
    prefix = "llm_d_epp_"
    ready = GaugeMetricFamily(prefix + "ready_endpoints", "Endpoints that may be chosen", labels=["name"])
    queue = GaugeMetricFamily(prefix + "average_queue_size", "Mean of the engines' queues", labels=["name"])
    running = GaugeMetricFamily(prefix + "average_running_requests", "Mean of running sequences", labels=["name"])
    kv = GaugeMetricFamily(prefix + "average_kv_cache_utilization", "Mean KV cache use", labels=["name"])
    each = GaugeMetricFamily(
        prefix + "per_endpoint_queue_size", "Queue of each engine", labels=["name", "model_server_endpoint"]
    )
    for pool, endpoints, *_ in snapshots:
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


def _serving(pools: Mapping[str, bool]) -> Iterator[Metric]:
    if not pools:
        return
    family = GaugeMetricFamily(
        "poolpilot_pool_serving", "1 where the pool is served; /pools says why not", labels=["name"]
    )
    for pool, serving in pools.items():
        family.add_metric([pool], float(serving))
    yield family


def _process(facts: ProcessFacts) -> Iterator[Metric]:
    info = GaugeMetricFamily("llm_d_epp_info", "Which build this is", labels=["commit", "build_ref"])
    info.add_metric(["", facts.version], 1.0)
    yield info
    yield GaugeMetricFamily("llm_d_epp_extproc_streams_inflight", "Open ext_proc streams", value=facts.streams_open)
    yield _counters(
        "llm_d_epp_extproc_streams", "ext_proc streams that have ended, by gRPC code", "code", facts.streams_ended
    )
    yield _counter("poolpilot_telemetry_polls", "Reads of engine telemetry", facts.telemetry_polls)
    yield _counter(
        "poolpilot_telemetry_busy_seconds", "Time of the event loop taken by telemetry", facts.telemetry_busy_s
    )
    yield GaugeMetricFamily(
        "poolpilot_telemetry_overdue_seconds",
        "How long the read of an endpoint that waits longest is due; above the interval: read less often than wanted",
        value=facts.telemetry_overdue_ms / 1000.0,
    )
    yield _counter("poolpilot_engine_restarts", "Engine restarts seen", facts.engine_restarts)
    yield _counter("poolpilot_discovery_failures", "Endpoint lists refused", facts.discovery_failures)
    yield _counters(
        "poolpilot_config_loads",
        "Configuration files offered",
        "result",
        {"accepted": facts.config_reloads, "refused": facts.config_refusals},
    )
    for name, text, value in (
        ("poolpilot_held_body_bytes", "Request bodies that arrive in full duplex or wait", facts.held_bytes[0]),
        ("poolpilot_held_body_limit_bytes", "How many of them there may be", facts.held_bytes[1]),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    if facts.tls_loads is not None:
        loads = dict(zip(("accepted", "refused"), facts.tls_loads, strict=True))
        yield _counters("poolpilot_tls_loads", "Certificates of the data port that came while it ran", "result", loads)
    yield _counters("poolpilot_plugin_failures", "Calls of a plugin that failed", "plugin", facts.plugin_failures)
    yield _counters("poolpilot_telemetry_errors", "Failed reads of telemetry", "kind", facts.telemetry_errors)
    yield _counters(
        "poolpilot_telemetry_remarks", "Oddities of telemetry that was read", "kind", facts.telemetry_remarks
    )
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    yield GaugeMetricFamily("poolpilot_max_resident_bytes", "Largest resident memory so far", value=rss)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
