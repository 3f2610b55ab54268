"""What pools in one process share: telemetry of an endpoint, room for labels, bytes of bodies that wait."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from core_pools import feed, make_pool, spec
from poolpilot_picker.admin.page import _merged
from poolpilot_picker.extproc.held_bodies import GUARANTEED_BYTES, HeldBodies
from poolpilot_picker.feed import PoolFeed
from poolpilot_picker.instruments.metrics import OWN_SETS, PickerMetrics, Room, SetCap
from poolpilot_picker.reading import FleetFeed
from poolpilot_picker.state.samples import EngineSample, ServedModels


def pool_feed(*indices: int) -> tuple[Any, PoolFeed]:
    pool = make_pool([spec(index) for index in indices])
    return pool, PoolFeed(pool, lambda: 5.0)


def wanted(pool: Any) -> list[Any]:
    return [endpoint.spec for endpoint in pool.table.wanted()]


def test_a_reading_reaches_every_pool_that_has_the_endpoint() -> None:
    (one, first), (two, second) = pool_feed(0, 1), pool_feed(1, 2)
    shared = FleetFeed()
    specs = shared.update([(first, wanted(one)), (second, wanted(two))])
    assert [each.host for each in specs] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "each is read once"
    shared.on_sample(spec(1), EngineSample(taken_ms=4.0, running=7.0, waiting=1.0))
    for pool in (one, two):
        endpoint = pool.table.find("10.0.0.2:8000")
        assert pool.table.running[endpoint.slot] == 7.0
    shared.on_sample(spec(9), EngineSample(taken_ms=4.0))


def test_a_pool_that_comes_later_is_told_what_was_said_once() -> None:
    (one, first), (two, second) = pool_feed(0), pool_feed(0)
    shared = FleetFeed()
    shared.update([(first, wanted(one))])
    shared.on_served_models(spec(0), ServedModels(base=("base",), adapters=("lora",)))
    shared.update([(first, wanted(one)), (second, wanted(two))])
    assert two.adapters.served(0) == one.adapters.served(0) is not None
    assert two.adapters.served(0).adapters == ("lora",)
    shared.update([])
    shared.update([(second, wanted(two))])


def test_what_is_in_flight_is_of_all_pools() -> None:
    (one, first), (two, second) = pool_feed(0), pool_feed(0)
    shared = FleetFeed()
    shared.update([(first, wanted(one)), (second, wanted(two))])
    feed(one, one.table.find("10.0.0.1:8000"), 1.0)
    one.table.requests[0], two.table.requests[0] = 2.0, 3.0
    assert shared.in_flight(spec(0)) == 5.0
    assert shared.in_flight(spec(7)) == 0.0


def test_a_pool_has_labels_of_its_own_whatever_others_take() -> None:
    room = Room(5)
    greedy, modest = SetCap(100, room), SetCap(100, room)
    other = ("other",)
    kept = [greedy((str(number),), other) for number in range(40)]
    assert sum(one != other for one in kept) == OWN_SETS + 5
    assert [modest((str(number),), other) for number in range(OWN_SETS + 1)].count(other) == 1
    greedy.free()
    assert room.left == 5
    assert greedy(("later",), other) == other, "a pool that is gone takes no more"
    assert modest(("more",), other) == ("more",)


def test_a_full_total_stops_only_who_holds_much() -> None:
    total = HeldBodies(10 * GUARANTEED_BYTES)
    large, small = HeldBodies(8 * GUARANTEED_BYTES, total), HeldBodies(8 * GUARANTEED_BYTES, total)
    large.hold(7 * GUARANTEED_BYTES)
    assert not large.full
    large.hold(GUARANTEED_BYTES)
    assert large.full, "its own limit"
    large.hold(-1)
    small.hold(3 * GUARANTEED_BYTES)
    assert large.full and small.full and total.full
    small.hold(-2 * GUARANTEED_BYTES - 1)
    assert not small.full, "what is guaranteed"
    large.hold(1 - 8 * GUARANTEED_BYTES)
    small.hold(1 - GUARANTEED_BYTES)
    assert total.bytes == large.bytes == small.bytes == 0


def test_families_of_all_pools_are_one() -> None:
    registries = []
    for name in ("ns/one", "ns/two"):
        metrics = PickerMetrics(CollectorRegistry())
        metrics.request("m", "m", "", 0).total.inc()
        metrics.ended(name, "served")
        registries.append((name, metrics.registry))

    class Page:
        def collect(self) -> Any:
            return _merged(registries)

    text = generate_latest(Page()).decode()  # type: ignore[arg-type]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    [one, two] = families["llm_d_epp_request"].samples
    assert (one.labels["pool"], two.labels["pool"], one.value, two.value) == ("ns/one", "ns/two", 1.0, 1.0)
    assert {sample.labels["pool"] for sample in families["poolpilot_exchanges"].samples} == {"ns/one", "ns/two"}
    assert text.count("# HELP llm_d_epp_request_total ") == 1
