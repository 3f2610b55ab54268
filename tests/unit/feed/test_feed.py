"""Telemetry → pool: what came too late is dropped, silence is said once."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from exchange_desk import Chosen
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.requests.request import InferenceRequest
from poolpilot_picker.sources.errors import ErrorKind
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.samples import EngineSample, ServedModels

if TYPE_CHECKING:
    import pytest

OLD = EndpointSpec(host="10.0.0.1", port=8000, uid="pod-a")
NEW = EndpointSpec(host="10.0.0.1", port=8000, uid="pod-b")
SAMPLE = EngineSample(taken_ms=90.0, running=3.0, waiting=2.0, kv_usage=0.5)


def a_pool(*specs: EndpointSpec) -> tuple[Pool, PoolFeed]:
    """A pool and its feed, at 100 ms."""
    pool = Pool("pool", Chosen(), random.Random(1))
    pool.apply_endpoints(specs)
    return pool, PoolFeed(pool, lambda: 100.0)


def test_a_sample_reaches_its_endpoint() -> None:
    pool, feed = a_pool(OLD)
    feed.on_sample(OLD, SAMPLE)
    assert (pool.table.running[0], pool.table.waiting[0], pool.table.kv_usage[0]) == (3.0, 2.0, 0.5)
    assert pool.table.sample_ms[0] == 90.0


def test_what_is_told_of_a_pod_that_was_replaced_is_dropped() -> None:
    """The same address, another pod: it starts cold."""
    pool, feed = a_pool(OLD)
    pool.apply_endpoints([NEW])
    feed.on_sample(OLD, SAMPLE)
    feed.on_served_models(OLD, ServedModels(base=("m",)))
    feed.on_restart(OLD)
    endpoint = pool.table.wanted()[0]
    assert not pool.table.sample_ms[endpoint.slot] > 0
    assert pool.adapters.served(endpoint.slot) is None
    assert feed.in_flight(OLD) == 0.0


def test_in_flight() -> None:
    pool, feed = a_pool(OLD)
    pool.place(InferenceRequest(request_id="r", sequences=4), 100.0)
    assert feed.in_flight(OLD) == 1.0


def test_served_models_reach_their_endpoint() -> None:
    pool, feed = a_pool(OLD)
    served = ServedModels(base=("m",))
    feed.on_served_models(OLD, served)
    assert pool.adapters.served(0) == served
    feed.on_served_models(OLD, None)
    assert pool.adapters.served(0) is None


def test_a_restart_forgets_the_sample() -> None:
    pool, feed = a_pool(OLD)
    feed.on_sample(OLD, SAMPLE)
    feed.on_restart(OLD)
    assert not pool.table.load_ms[0] > 0


def test_silence_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, feed = a_pool(OLD)
    for _ in range(3):
        feed.on_unreachable(OLD, ErrorKind.TIMEOUT, 50.0)
    feed.on_sample(OLD, SAMPLE)
    feed.on_sample(OLD, SAMPLE)
    feed.on_unreachable(OLD, ErrorKind.REFUSED, 50.0)
    assert [record.message for record in caplog.records] == ["no telemetry", "telemetry is back", "no telemetry"]


def test_silence_of_endpoints_that_are_gone_is_forgotten() -> None:
    """Pods come and go for months."""
    pool, feed = a_pool(OLD)
    for number in range(100):
        spec = EndpointSpec(host="10.0.0.1", port=8000, uid=f"pod-{number}")
        pool.apply_endpoints([spec])
        feed.on_unreachable(spec, ErrorKind.TIMEOUT, 50.0)
    assert len(feed._silent) <= 2


def test_a_load_report_changes_what_it_names_and_nothing_else() -> None:
    pool, feed = a_pool(OLD)
    feed.on_sample(OLD, SAMPLE)
    feed.on_load_report("10.0.0.1:8000", b"TEXT named_metrics.kv_cache_usage_perc=0.25")
    assert pool.table.kv_usage[0] == 0.25
    assert (pool.table.running[0], pool.table.waiting[0], pool.table.sample_ms[0]) == (3.0, 2.0, 90.0)


def test_a_load_report_of_an_unknown_pod_or_of_nonsense_says_nothing() -> None:
    pool, feed = a_pool(OLD)
    feed.on_sample(OLD, SAMPLE)
    feed.on_load_report("10.0.0.9:8000", "TEXT named_metrics.kv_cache_usage_perc=0.25")
    feed.on_load_report("10.0.0.1:8000", "kv=0.25")
    assert pool.table.kv_usage[0] == 0.5
