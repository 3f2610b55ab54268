"""What a decision may cost, counted so that the machine's speed does not matter: calls, and bytes that are kept."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from prometheus_client import CollectorRegistry

from core_pools import BLOCK, START, feed_all, make_pool, request
from poolpilot_picker import compiled
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.instruments.flow_metrics import FlowMetrics
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.state.samples import ServedModels

MOST_CALLS = 83
"""Of Python functions and of built-in ones, to place a request for an adapter with a chain of 128 blocks, and to finish
one. Measured: 73 and 80 (of 300 endpoints many have not loaded the adapter yet); with the reference 425 to 460."""
MOST_FLOW_CALLS = 74
"""What flow control adds to them while nothing waits. Measured: 67."""


def busy_pool(endpoints, monkeypatch):
    monkeypatch.setattr(compiled, "in_force", compiled.load())
    pool = make_pool(endpoints)
    for endpoint in pool.table:
        pool.apply_served_models(endpoint, ServedModels(base=("base",), adapters={"a": "base", "b": "base"}))
    feed_all(pool, START)
    return pool


class Nobody:
    """Waits for nothing."""


def asked(number, tokens=8_200):
    parts = (("head", 96 * BLOCK), (number, 32 * BLOCK))
    return request(tokens, model="ab"[number % 2], prefix=parts, request_id=str(number))


def calls_of(pool, requests, gap_ms=1):
    """Mean number of calls to place one request and to finish another."""
    calls = 0
    place = pool.place if pool.flow is None else lambda one, now: pool.flow.submit(one, Nobody(), now)

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    open_ = [place(asked(number), START) for number in range(20)]
    for number, one in enumerate(requests):
        now = START + gap_ms * number
        sys.setprofile(count)
        open_.append(place(one, now))
        pool.finish(open_.pop(0), Outcome.SERVED, now)
        sys.setprofile(None)
    return calls / len(requests)


@pytest.mark.parametrize("endpoints", [4, 300])
def test_a_decision_takes_few_calls_however_many_endpoints_there_are(endpoints, monkeypatch):
    pool = busy_pool(endpoints, monkeypatch)
    assert 50 < calls_of(pool, [asked(number) for number in range(100, 150)]) <= MOST_CALLS


@pytest.mark.parametrize(("tokens", "most"), [(2_000, MOST_FLOW_CALLS), (8_200, MOST_FLOW_CALLS + 12)])
def test_flow_control_adds_few_calls_while_nothing_waits(tokens, most, monkeypatch):
    """A few more for prompts of half a second and more, which are kept from getting in the way of short ones."""
    calls = []
    for flow in (False, True):
        pool = busy_pool(24, monkeypatch)
        if flow:
            metrics = FlowMetrics(PickerMetrics(CollectorRegistry()), "pool", lambda: START)
            pool.flow = FlowControl(pool, FlowSettings(), metrics)
        calls.append(calls_of(pool, [asked(number, tokens) for number in range(100, 150)], gap_ms=100))
        assert pool.flow is None or not pool.flow.queue
    assert 20 < calls[1] - calls[0] <= most


def test_nothing_is_kept_of_a_finished_request_once_caches_are_full(monkeypatch):
    pool = busy_pool(4, monkeypatch)
    for slot in range(4):
        pool.prefixes.set_capacity(slot, 300.0 * BLOCK)

    def serve(numbers):
        for number in numbers:
            pool.finish(pool.place(asked(number), START + number), Outcome.SERVED, START + number)

    serve(range(1_500))
    tracemalloc.start()
    serve(range(1_500, 1_600))
    before = tracemalloc.get_traced_memory()[0]
    index = pool.prefixes.memory_bytes
    serve(range(1_600, 2_600))
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 20_000
    assert pool.prefixes.memory_bytes <= 1.1 * index
