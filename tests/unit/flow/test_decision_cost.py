"""What a decision may cost, counted so that the machine's speed does not matter: calls, and bytes that are kept."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from core_pools import BLOCK, START, feed_all, make_pool, request
from poolpilot_picker import compiled
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.state.samples import ServedModels

MOST_CALLS = 83
"""Of Python functions and of built-in ones, to place a request for an adapter with a chain of 128 blocks, and to finish
one. Measured: 74 to 78; with the reference 425 to 460."""


def busy_pool(endpoints, monkeypatch):
    monkeypatch.setattr(compiled, "in_force", compiled.load())
    pool = make_pool(endpoints)
    for endpoint in pool.table:
        pool.apply_served_models(endpoint, ServedModels(base=("base",), adapters={"a": "base", "b": "base"}))
    feed_all(pool, START)
    return pool


def asked(number):
    parts = (("head", 96 * BLOCK), (number, 32 * BLOCK))
    return request(8_200, model="ab"[number % 2], prefix=parts, request_id=str(number))


def calls_of(pool, requests):
    """Mean number of calls to place one request and to finish another."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    open_ = [pool.place(asked(number), START) for number in range(20)]
    for number, one in enumerate(requests):
        now = START + number
        sys.setprofile(count)
        open_.append(pool.place(one, now))
        pool.finish(open_.pop(0), Outcome.SERVED, now)
        sys.setprofile(None)
    return calls / len(requests)


@pytest.mark.parametrize("endpoints", [4, 300])
def test_a_decision_takes_few_calls_however_many_endpoints_there_are(endpoints, monkeypatch):
    pool = busy_pool(endpoints, monkeypatch)
    assert 50 < calls_of(pool, [asked(number) for number in range(100, 150)]) <= MOST_CALLS


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
