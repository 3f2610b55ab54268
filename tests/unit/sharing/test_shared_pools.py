"""Several workers, one pool: what one books, the next decision of another sees; what is told reaches all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from core_pools import chosen, feed, make_pool, request, spec
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.routing.pipeline import Profile
from poolpilot_picker.routing.plugins.pickers import LeastRequestPicker
from poolpilot_picker.routing.plugins.stickiness import SessionAffinityFilter, SessionParameters
from poolpilot_picker.sharing.memory import MOST_ENDPOINTS
from poolpilot_picker.state.samples import EngineSample, ServedModels
from worker_pools import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.usefixtures("both_cores")


@pytest.fixture
def two() -> Iterator[Workers]:
    """Two workers, four endpoints that have been heard from."""
    crew = Workers(2, 4)
    for worker in crew.workers:
        for endpoint in worker.pool.table:
            worker.pool.apply_sample(endpoint, EngineSample(taken_ms=crew.now, running=0, waiting=0), crew.now)
    yield crew
    crew.close()


def test_bookings_of_one_are_seen_by_the_next_decision_of_another(two: Workers) -> None:
    one, other = two.workers
    placements = [one.pool.place(request(), two.now) for _ in range(3)]
    placements.append(other.pool.place(request(), two.now))
    assert len(set(map(chosen, placements))) == 4, "each on an endpoint of its own"
    assert one.in_flight() == other.in_flight() == [1.0] * 4
    assert one.pool.table.account.requests.sum() == 3
    for placement in placements[:3]:
        one.pool.finish(placement, Outcome.SERVED, two.now)
    assert sum(other.in_flight()) == 1


def test_no_herd(two: Workers) -> None:
    """Forty requests that arrive together, at both in turn: spread as evenly as by a single picker, unlike apart."""

    def spread(pools: list[object]) -> list[int]:
        places = [chosen(pools[n % len(pools)].place(request(), two.now)) for n in range(40)]  # type: ignore[attr-defined]
        return sorted(places.count(f"10.0.0.{index + 1}:8000") for index in range(4))

    assert spread([worker.pool for worker in two.workers]) == [10, 10, 10, 10]
    alone = make_pool(4)
    for endpoint in alone.table:
        feed(alone, endpoint, two.now)
    assert spread([alone]) == [10, 10, 10, 10]


def test_the_queue_of_an_endpoint_is_everybodys(two: Workers) -> None:
    """A long prefill placed by one delays what the other predicts there, and what it books there starts behind it."""
    one, other = two.workers
    first = one.pool.place(request(30_000), two.now)
    slot = first.booking.endpoint.slot
    other.peers.hear()
    assert other.pool.table.free_at_ms[slot] == first.booking.first_ms > two.now
    subset = request(1_000, subset=[first.booking.endpoint.address])
    second = other.pool.place(subset, two.now)
    assert second.booking.first_ms == pytest.approx(first.booking.first_ms + second.booking.prefill_ms)
    assert second.predicted.wait_ms > first.booking.prefill_ms
    one.peers.hear()
    assert one.pool.table.free_at_ms[slot] == second.booking.first_ms


def test_the_death_of_one_takes_its_bookings_with_it(two: Workers) -> None:
    one, other = two.workers
    for _ in range(8):
        one.pool.place(request(), two.now)
    kept = other.pool.place(request(), two.now)
    assert sum(other.in_flight()) == 9
    two.die(one)
    assert sum(other.in_flight()) == 1
    again = two.join()
    assert sum(again.in_flight()) == 1
    again.pool.place(request(), two.now)
    assert sum(other.in_flight()) == 2
    other.pool.finish(kept, Outcome.SERVED, two.now)
    assert sum(again.in_flight()) == 1


def test_gauges_that_count_the_others_requests_tell_of_nobody_else(two: Workers) -> None:
    """Running sequences that another worker placed, or had until a moment ago, are not foreign."""
    one, other = two.workers
    endpoint = other.pool.table.at(0)
    only = request(subset=[endpoint.address])
    placements = [one.pool.place(only, two.now) for _ in range(5)]
    mine = other.pool.place(only, two.now)
    two.now += 1_000
    other.pool.apply_sample(endpoint, EngineSample(taken_ms=two.now, running=8, waiting=0), two.now)
    assert other.pool.table.foreign[0] == 2
    for placement in placements:
        one.pool.finish(placement, Outcome.SERVED, two.now)
    two.now += 100
    other.pool.apply_sample(endpoint, EngineSample(taken_ms=two.now, running=6, waiting=0), two.now)
    assert other.pool.table.foreign[0] == 0, "released within the gauge's lag"
    two.now += 1_000
    other.pool.apply_sample(endpoint, EngineSample(taken_ms=two.now, running=6, waiting=0), two.now)
    assert other.pool.table.foreign[0] == 5
    other.pool.finish(mine, Outcome.SERVED, two.now)


def test_prefixes_adapters_and_failures_reach_all(two: Workers) -> None:
    one, other = two.workers
    long = request(4_000, prefix=[("system", 3_840)])
    first = one.pool.place(long, two.now)
    slot = first.booking.endpoint.slot
    one.pool.finish(first, Outcome.FAILED, two.now)
    two.talk()
    assert other.pool.prefixes.match(long.prefix)[slot] == 3_840
    assert other.pool.learning_counts()["failing_endpoints"] == 1
    adapted = one.pool.place(request(model="lora", adapter="lora"), two.now)
    two.talk()
    assert "lora" in other.pool.adapters.resident(adapted.booking.endpoint.slot)
    moved = one.pool.place(long, two.now)
    to = next(e for e in one.pool.table if e is not moved.booking.endpoint and e.slot != slot)
    one.pool.served(moved, to.address, two.now)
    two.talk()
    assert other.pool.prefixes.match(long.prefix)[to.slot] == 3_840
    assert other.peers.faults == 0


@pytest.mark.parametrize("outcome", [Outcome.SERVED, Outcome.ABORTED])
def test_learners_of_both_see_all_placements(two: Workers, outcome: Outcome) -> None:
    """And what is withdrawn from one is withdrawn from all: the same is expected of the engines everywhere."""
    one, other = two.workers
    for index in range(4):
        for worker in (one, other):
            mark = worker.pool.table.at(index)
            worker.pool._learners._of[mark].speed.restart_window(two.now)
    placed = [(worker, worker.pool.place(request(2_000), two.now)) for _ in range(3) for worker in (one, other)]
    worker, moved = placed[0]
    to = next(e for e in worker.pool.table if e is not moved.booking.endpoint)
    worker.pool.served(moved, to.address, two.now, attempts=2)
    two.talk()
    work = []
    for left, right in zip(one.pool.table, other.pool.table, strict=True):
        learner, twin = (each.pool._learners._of[end] for each, end in ((one, left), (other, right)))
        assert learner.speed._work_ms == pytest.approx(twin.speed._work_ms, rel=0.05)
        assert learner.speed._ttft_count == twin.speed._ttft_count
        assert learner.trust._predicted == pytest.approx(twin.trust._predicted)
        work.append(learner.speed._work_ms)
    assert sum(work) > 0
    for worker, placement in placed:
        worker.pool.finish(placement, outcome, two.now)
    two.talk()
    for left, right in zip(one.pool.table, other.pool.table, strict=True):
        learner, twin = (each.pool._learners._of[end] for each, end in ((one, left), (other, right)))
        assert learner.speed._ttft_count == twin.speed._ttft_count
        if outcome is Outcome.ABORTED:
            assert learner.speed._work_ms == pytest.approx(0.0, abs=0.05 * max(work))
            assert twin.speed._work_ms == pytest.approx(0.0, abs=0.05 * max(work))
            assert learner.speed._ttft_count == 0


def test_telemetry_of_the_reader_reaches_all(two: Workers) -> None:
    one, other = two.workers
    mark = one.pool.table.at(1)
    two.now += 500
    one.shared.on_sample(mark.spec, EngineSample(taken_ms=two.now, running=3, waiting=1, max_adapters=2))
    one.shared.on_served_models(mark.spec, ServedModels(base=("base",), adapters={"a": "base"}))
    other.peers.hear()
    assert other.pool.table.running[1] == 3 and other.pool.table.sample_ms[1] == two.now
    served = other.pool.adapters.served(1)
    assert served is not None and served.adapters == {"a": "base"}
    other.pool.prefixes.insert(request(prefix=[("x", 640)]).prefix, 1)
    one.shared.on_restart(mark.spec)
    other.peers.hear()
    assert other.pool.prefixes.tokens()[1] == 0 and np.isnan(other.pool.table.running[1])


def test_who_comes_later_is_told_what_is_told_only_once(two: Workers) -> None:
    one, other = two.workers
    mark = one.pool.table.at(1)
    one.shared.on_served_models(mark.spec, ServedModels(base=("base",)))
    two.die(other)
    late = two.join()
    late.peers.hear()
    assert late.pool.adapters.served(1) is None
    one.shared.answer()
    late.peers.hear()
    assert late.pool.adapters.served(1) == ServedModels(base=("base",))


def test_news_of_an_endpoint_that_is_gone_reach_nobody(two: Workers) -> None:
    one, other = two.workers
    gone = one.pool.table.at(3)
    placed = one.pool.place(request(prefix=[("x", 640)], subset=[gone.address]), two.now)
    one.pool.finish(placed, Outcome.SERVED, two.now)
    rest = [spec(index) for index in range(3)]
    for wanted in (rest, [*rest, spec(9)]):
        for worker in (one, other):
            worker.pool.apply_endpoints(wanted)
    other.peers.hear()
    assert other.pool.table.at(3).spec == spec(9) and other.pool.prefixes.tokens()[3] == 0
    assert other.peers.faults == 0


def test_a_worker_that_knows_an_endpoint_first_waits_for_nobody(two: Workers) -> None:
    one, other = two.workers
    one.pool.apply_endpoints([spec(index) for index in range(6)])
    new = one.pool.table.at(5)
    one.pool.place(request(prefix=[("x", 640)], subset=[new.address]), two.now)
    assert len(other.in_flight()) == 4 and other.peers.faults == 0
    other.pool.apply_endpoints([spec(index) for index in range(6)])
    assert other.in_flight() == [0, 0, 0, 0, 0, 1]


def test_placements_that_come_fast_are_told_together(two: Workers) -> None:
    one, other = two.workers
    head = int(two.memory.heads[one.chair, 0])
    for number in range(10):
        one.pool.place(request(prefix=[(number, 640)]), two.now)
    assert two.memory.heads[one.chair, 0] > head, "the first at once"
    assert sum(other.pool.prefixes.tokens()) == 0
    other.peers.hear()
    assert sum(other.pool.prefixes.tokens()) == 640
    two.now += 20
    one.peers.hear()
    other.peers.hear()
    assert sum(other.pool.prefixes.tokens()) == 6_400
    for number in range(100):
        one.pool.place(request(prefix=[((number, "more"), 640)]), two.now)
    other.peers.hear()
    assert sum(other.pool.prefixes.tokens()) >= 50 * 640, "many do not wait for the time"


def test_the_longest_prompts_are_told_too(two: Workers) -> None:
    one, other = two.workers
    for number in range(40):
        one.pool.place(request(65_536, prefix=[(number, 65_536)]), two.now)
        other.peers.hear()
    two.talk()
    assert other.peers.lost == one.peers.lost == 0
    assert sum(other.pool.prefixes.tokens()) == sum(one.pool.prefixes.tokens()) > 0


def test_news_that_cannot_be_applied_cost_no_request(two: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two.workers
    one.pool.place(request(prefix=[("x", 640)]), two.now)

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(other.pool, "placed_elsewhere", broken)
    other.pool.place(request(), two.now)
    assert other.peers.faults == 1


class Sticky(Profile):
    """Sessions are kept."""

    def __init__(self) -> None:
        affinity = SessionAffinityFilter(SessionParameters(strategy="session_id"))
        super().__init__(
            "sticky",
            filters=[("affinity", affinity)],
            picker=("least", LeastRequestPicker()),
            observers=[("affinity", affinity)],
        )


def test_a_session_is_bound_in_all_workers() -> None:
    crew = Workers(2, 4, Sticky)
    session = request(routing_key="s")
    places = set()
    for number in range(10):
        crew.now += 50
        places.add(chosen(crew.workers[number % 2].pool.place(session, crew.now)))
    assert len(places) == 1
    crew.close()


def test_a_policy_that_keeps_no_keys_is_not_told_any(two: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two.workers
    seen: list[bytes] = []
    monkeypatch.setattr(other.pool, "placed_elsewhere", lambda told, *_: seen.append(told))
    one.pool.place(request(routing_key="secret"), two.now)
    other.peers.hear()
    assert len(seen) == 1 and b"secret" not in seen[0]


def test_what_cannot_be_told_costs_no_request(two: Workers) -> None:
    """A name that is no Unicode text; what is told before and after it arrives."""
    one, other = two.workers
    one.pool.place(request(prefix=[("x", 640)]), two.now)
    odd = one.pool.place(request(prefix=[("y", 640)], model="\ud800", adapter="\ud800"), two.now)
    one.pool.place(request(prefix=[("z", 640)]), two.now)
    assert one.peers.faults == 1 and len(one.pool.ledger) == 3
    one.pool.finish(odd, Outcome.SERVED, two.now)
    two.talk()
    assert other.peers.faults == 0 and sum(other.pool.prefixes.tokens()) == 1_280


def test_a_first_token_after_the_end_is_nothing(two: Workers) -> None:
    """Also where the endpoint has left the table meanwhile."""
    one = two.workers[0]
    placed = one.pool.place(request(subset=[one.pool.table.at(3).address]), two.now)
    one.pool.first_token(placed, two.now + 1)
    one.pool.apply_endpoints([spec(0)])
    one.pool.finish(placed, Outcome.SERVED, two.now + 2)
    assert len(one.pool.table) == 1
    one.pool.first_token(placed, two.now + 3)


def test_a_full_book_leaves_endpoints_out(two: Workers) -> None:
    two.memory.holds[0, 4:MOST_ENDPOINTS] = 1
    two.workers[1].pool.apply_endpoints([spec(index) for index in range(6)])
    assert len(two.workers[1].pool.table.wanted()) == 4
