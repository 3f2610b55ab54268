"""The discrete-event core: exact times by hand, equal runs for equal seeds, and what happens to endpoints."""

import itertools
import math

import pytest

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.engine.model.step_time import mixed_step_ms
from poolpilot_lab.sim.fleet import START_MS, Simulation
from poolpilot_lab.sim.policies import make_router, names
from poolpilot_lab.sim.trip import Fate
from poolpilot_lab.sim.world import EXACT, HIDDEN, Change, World
from poolpilot_lab.workload.calls import Blocks, Call, Traffic
from poolpilot_lab.workload.generators import chat, shared_prompts
from poolpilot_lab.workload.streams import short_long

H100 = PROFILES["llama-3.1-8b-h100"]
QWEN = PROFILES["qwen3-32b-h100-tp2"]


def play(traffic, policy="poolpilot", seed=1, warm=0.0, **world):
    world.setdefault("fleet", (H100,) * 4)
    made = World(**world)
    router = make_router(policy, made, seed)
    simulation = Simulation(made, traffic, router, seed, warm)
    return simulation.run(), router, simulation


def times(record):
    return [(trip.endpoint, trip.first_ms, trip.end_ms) for trip in record.trips]


def test_one_request_takes_exactly_what_the_step_formula_says():
    call = Call(5.0, 100, 3, max_tokens=None)
    traffic = Traffic([call, Call(9_000.0, 10, 1)], 64, "by hand")
    record, _, _ = play(traffic, variation=EXACT, tables=False, dispatch_ms=2.0, notice_ms=1.0)
    trip = record.trips[0]
    prefill = mixed_step_ms(H100, 0, 0, [(100, 0)])
    first, second = mixed_step_ms(H100, 1, 101), mixed_step_ms(H100, 1, 102)
    assert trip.arrived_ms == START_MS + 5.0
    assert trip.ttft_ms == pytest.approx(2.0 + prefill + 1.0)
    assert trip.e2e_ms == pytest.approx(2.0 + prefill + first + second + 1.0)
    assert trip.tpot_ms == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("policy", names())
def test_every_policy_answers_everything_and_equal_seeds_give_equal_runs(policy):
    runs = []
    for _ in range(2):
        record, router, _ = play(short_long(10.0, 120, 3), policy, seed=3, variation=HIDDEN)
        assert all(trip.fate is Fate.SERVED for trip in record.trips)
        runs.append(times(record))
        if policy == "poolpilot":
            assert len(router.pools[0].ledger) == 0
    assert runs[0] == runs[1]


def test_another_seed_gives_another_world():
    one, _, _ = play(short_long(10.0, 50, 3), "round-robin", seed=3)
    two, _, _ = play(short_long(10.0, 50, 3), "round-robin", seed=4)
    assert times(one) != times(two)


def test_a_follow_up_comes_its_think_time_after_the_answer():
    then = Call(700.0, 50, 5)
    record, _, _ = play(Traffic([Call(0.0, 50, 5, then=then), Call(5_000.0, 10, 1)], 64, "by hand"), variation=EXACT)
    first, second = (trip for trip in record.trips if trip.call.output_tokens == 5)
    assert second.arrived_ms == pytest.approx(first.end_ms + 700.0)


def test_chat_finds_its_own_history_in_the_cache_where_it_stays():
    record, _, _ = play(chat(4.0, 150, 1, applications=1), "session-sticky", fleet=(H100,) * 2, variation=EXACT)
    later = [trip for trip in record.trips if trip.call.prompt_tokens > 1_500]
    assert later
    for trip in later:
        assert trip.cached_tokens >= 1_024
        assert {other.endpoint for other in record.trips if other.call.session == trip.call.session} == {trip.endpoint}


@pytest.mark.parametrize("policy", ["poolpilot", "random"])
def test_a_dead_endpoint_loses_only_what_had_begun_and_the_rest_is_answered_elsewhere(policy):
    changes = (Change(0.5, "kill", 1, factor=3_000.0),)
    record, router, _ = play(short_long(20.0, 300, 5), policy, changes=changes, variation=EXACT)
    lost = [trip for trip in record.trips if trip.fate is not Fate.SERVED]
    middle = START_MS + 0.5 * (record.end_ms - START_MS)
    for trip in lost:
        assert trip.endpoint == 1
        assert trip.fate is Fate.LOST
        assert trip.sequence is not None and trip.sequence.generated > 0
    # Until discovery says so, a blind policy sends on to the dead one; what fails there is tried again.
    assert any(trip.tried for trip in record.trips) == (policy == "random")
    after = [trip for trip in record.trips if trip.arrived_ms > middle + 3_100.0]
    assert after and all(trip.endpoint != 1 and trip.fate is Fate.SERVED for trip in after)
    assert len(router.pools[0].ledger) == 0


def test_a_drained_endpoint_ends_its_work_and_gets_no_more():
    record, _, _ = play(short_long(20.0, 300, 6), "least-request", changes=(Change(0.4, "drain", 0),))
    at = START_MS + 0.4 * (record.end_ms - START_MS)
    assert all(trip.fate is Fate.SERVED for trip in record.trips)
    assert any(trip.endpoint == 0 for trip in record.trips if trip.arrived_ms < at)
    assert not any(trip.endpoint == 0 for trip in record.trips if trip.arrived_ms > at)


def test_an_endpoint_that_joins_later_gets_work_only_then():
    record, _, _ = play(short_long(20.0, 300, 6), "round-robin", changes=(Change(0.5, "start", 3),))
    at = START_MS + 0.5 * (record.end_ms - START_MS)
    assert not any(trip.endpoint == 3 for trip in record.trips if trip.arrived_ms < at)
    assert any(trip.endpoint == 3 for trip in record.trips if trip.arrived_ms > at)


def test_a_slowed_endpoint_takes_longer_from_the_next_step_on():
    # One request alone, its decode well under way when the endpoint is slowed to half its speed.
    traffic = Traffic([Call(0.0, 64, 400), Call(4_000.0, 8, 1)], 64, "by hand")
    plain, _, _ = play(traffic, fleet=(H100,), variation=EXACT)
    slowed, _, _ = play(traffic, fleet=(H100,), variation=EXACT, changes=(Change(0.25, "slow", 0, 2.0),))
    before = plain.trips[0].e2e_ms
    assert slowed.trips[0].e2e_ms == pytest.approx(1_000.0 + 2.0 * (before - 1_000.0), rel=0.01)


def test_a_failing_endpoint_costs_its_requests_and_counts_as_infinitely_late():
    record, _, _ = play(short_long(20.0, 200, 7), "round-robin", changes=(Change(0.2, "fail", 2, 20.0),))
    failed = [trip for trip in record.trips if trip.fate is Fate.FAILED]
    assert failed
    assert {trip.endpoint for trip in failed} == {2}
    assert all(math.isinf(trip.ttft_ms) and math.isinf(trip.e2e_ms) for trip in failed)


def test_several_pickers_share_nothing_but_the_endpoints():
    record, router, _ = play(shared_prompts(8.0, 160, 2, groups=4), fleet=(QWEN,) * 4, pickers=3)
    assert {trip.picker for trip in record.trips} == {0, 1, 2}
    assert all(trip.fate is Fate.SERVED for trip in record.trips)
    assert len({id(pool.ledger) for pool in router.pools}) == 3
    assert all(len(pool.ledger) == 0 for pool in router.pools)


def test_telemetry_is_as_late_as_the_world_says():
    world = World(fleet=(H100,) * 2, telemetry_delay_ms=50.0)
    router = make_router("poolpilot", world, 1)
    seen = []
    keep = router.sampled

    def sampled(picker, endpoint, sample, now):
        seen.append((endpoint, sample.taken_ms, now, sample.ttft is not None))
        keep(picker, endpoint, sample, now)

    router.sampled = sampled
    Simulation(world, short_long(10.0, 200, 1), router, 1).run()
    assert {round(now - taken, 6) for _, taken, now, _ in seen} == {50.0}
    busy = [taken for endpoint, taken, _, _ in seen if endpoint == 0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(busy)]
    assert min(gaps) >= 180.0 - 1e-6
    full = [taken for endpoint, taken, _, everything in seen if endpoint == 0 and everything]
    assert all(later - earlier >= 4_500.0 for earlier, later in itertools.pairwise(full))


def test_the_estimate_of_a_prompt_is_not_its_length():
    record, _, _ = play(short_long(10.0, 60, 8))
    errors = [trip.placement.request.prompt_tokens / trip.call.prompt_tokens for trip in record.trips]
    assert max(errors) / min(errors) > 1.1


def test_blocks_are_shared_as_far_as_texts_are():
    blocks = Blocks(64)
    head = blocks.fresh(200)
    assert len(head) == 3
    one, two = blocks.prompt(head, 400), blocks.prompt(head, 400)
    assert one[:3] == two[:3] == head
    assert len(one) == 6 and not set(one[3:]) & set(two[3:])
    assert blocks.prompt(head, 130) == head[:2]
