"""What autoscalers read of a pool: right while it idles, is full, holds requests back, and has no endpoints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from core_pools import START, feed_all, make_pool, request, spec
from poolpilot_picker.admin.pool_signals import PoolSignals, families, pool_signals
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.room import RoomSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_picker.errors import RequestRefused
    from poolpilot_picker.flow.pool import Placement, Pool


class Waiting:
    """A client that only waits."""

    placed = 0

    def dispatched(self, placement: Placement, now: float) -> None:
        self.placed += 1

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        raise AssertionError(refused)

    def unplaceable(self, now: float) -> None:
        raise AssertionError("choosing failed")


def holding(pool: Pool, room: RoomSettings | None = None) -> FlowControl:
    """Its flow control, as it is when nothing else is configured."""
    flow = FlowControl(pool, FlowSettings(room=room or RoomSettings()))
    pool.flow = flow
    return flow


def read(found: Iterable[tuple[str, PoolSignals]]) -> dict[str, float]:
    """The page as a scraper reads it: name and labels → value."""
    registry = CollectorRegistry()

    class Page:
        def collect(self) -> object:
            return families(found)

    registry.register(Page())  # type: ignore[arg-type]
    return {
        " ".join([sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_an_idle_pool() -> None:
    pool = make_pool(2)
    feed_all(pool, START)
    assert pool_signals(pool, START) == PoolSignals(0.0, 0, 0.0, 0.0)


def test_what_waits_in_engines_is_added_up_while_it_is_fresh() -> None:
    pool = make_pool(2)
    feed_all(pool, START, running=3.0, waiting=4.0)
    assert pool_signals(pool, START).engine_queue == 8.0
    late = START + pool.settings.stale_after_ms + 1.0
    assert pool_signals(pool, late).engine_queue == 0.0, "nobody knows what waits there now"


def test_an_endpoint_that_drains_does_not_count() -> None:
    pool = make_pool(2)
    feed_all(pool, START, waiting=4.0)
    pool.place(request(), START)
    pool.place(request(), START)
    pool.apply_endpoints([spec(0)])
    assert len(list(pool.table)) == 2
    assert pool_signals(pool, START).engine_queue == 4.0


def test_nobody_waits_for_an_endpoint_that_drains() -> None:
    pool = make_pool(2)
    feed_all(pool, START)
    idle = pool.place(request(1), START).booking.endpoint
    [other] = [endpoint for endpoint in pool.table if endpoint is not idle]
    pool.apply_endpoints([other.spec])
    for _ in range(2):
        pool.place(request(20_000), START)
    assert idle.draining
    assert pool_signals(pool, START).predicted_wait_s > 0.5


def test_the_wait_is_that_of_the_endpoint_which_begins_first() -> None:
    pool = make_pool(2)
    feed_all(pool, START)
    first = pool.place(request(20_000), START)
    assert pool_signals(pool, START).predicted_wait_s == 0.0, "the other one is idle"
    second = pool.place(request(20_000), START)
    assert first.booking.endpoint is not second.booking.endpoint
    both = pool_signals(pool, START).predicted_wait_s
    assert 0.1 < both < 60.0
    assert pool_signals(pool, START + 50.0).predicted_wait_s == pytest.approx(both - 0.05, abs=0.01)
    pool.place(request(20_000), START)
    pool.place(request(20_000), START)
    assert pool_signals(pool, START).predicted_wait_s > 1.5 * both


def test_saturation_follows_what_is_full() -> None:
    pool = make_pool(2)
    most = float(pool.table.max_sequences[0])
    feed_all(pool, START, running=most / 2)
    assert pool_signals(pool, START).saturation == pytest.approx(0.5)
    feed_all(pool, START, running=most, waiting=9.0)
    assert pool_signals(pool, START).saturation == 1.0


def test_without_endpoints_everything_is_a_number() -> None:
    assert pool_signals(make_pool(0), START) == PoolSignals(0.0, 0, 0.0, 1.0)
    pool = make_pool(0)
    flow = holding(pool)
    assert pool_signals(pool, START) == PoolSignals(0.0, 0, 0.0, 1.0)
    client = Waiting()
    for _ in range(3):
        flow.submit(request(), client, START)
    found = pool_signals(pool, START + 2_000.0)
    assert found == PoolSignals(0.0, 3, 2.0, 1.0), "they have waited so long, and still do"
    # What the signal has started takes what was held.
    pool.apply_endpoints([spec(0)])
    flow.advance(START + 3_000.0)
    assert client.placed == 3
    found = pool_signals(pool, START + 3_000.0)
    assert found.held == 0 and found.saturation < 1.0


def test_a_queue_is_told_with_its_wait() -> None:
    pool = make_pool(1)
    feed_all(pool, START)
    flow, client = holding(pool, RoomSettings(start_within_ms=250.0)), Waiting()
    now = START
    tickets = [one for one in (flow.submit(request(8_000), client, now) for _ in range(40)) if isinstance(one, Ticket)]
    assert tickets
    found = pool_signals(pool, now)
    assert found.held == len(tickets)
    assert found.saturation == 1.0
    assert math.isfinite(found.predicted_wait_s) and found.predicted_wait_s > 0.0


def test_the_page_names_pools_whole_and_in_parts() -> None:
    page = read(
        [("serving/llama", PoolSignals(7.0, 2, 1.5, 0.25)), ("default", PoolSignals(0.0, 0, 0.0, 1.0))],
    )
    llama = "pool=serving/llama pool_name=llama pool_namespace=serving"
    alone = "pool=default pool_name=default pool_namespace="
    assert page == {
        f"poolpilot_pool_queue_size at=engines {llama}": 7.0,
        f"poolpilot_pool_queue_size at=picker {llama}": 2.0,
        f"poolpilot_pool_predicted_wait_seconds {llama}": 1.5,
        f"poolpilot_pool_saturation {llama}": 0.25,
        f"poolpilot_pool_queue_size at=engines {alone}": 0.0,
        f"poolpilot_pool_queue_size at=picker {alone}": 0.0,
        f"poolpilot_pool_predicted_wait_seconds {alone}": 0.0,
        f"poolpilot_pool_saturation {alone}": 1.0,
    }


def test_a_request_that_ends_makes_room() -> None:
    pool = make_pool(1)
    feed_all(pool, START)
    placed = pool.place(request(20_000), START)
    assert pool_signals(pool, START).saturation > 0.0
    pool.finish(placed, Outcome.SERVED, START + 60_000.0)
    feed_all(pool, START + 60_000.0)
    assert pool_signals(pool, START + 60_000.0) == PoolSignals(0.0, 0, 0.0, 0.0)
