"""Limits against cases worked out by hand and by brute force, and against the simulator: nothing beats them."""

import itertools
import random

import pytest

from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.engine.model.step_time import mixed_step_ms
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.limits import Reuse, _late, _smallest_deadline, _srpt, alone_ms, limits
from poolpilot_lab.sim.policies import make_router
from poolpilot_lab.sim.world import EXACT, World
from poolpilot_lab.workload.calls import Call
from poolpilot_lab.workload.generators import conversations, shared_prompts
from poolpilot_lab.workload.streams import short_long

QWEN = PROFILES["qwen3-32b-h100-tp2"]


def test_alone_is_what_an_idle_engine_takes():
    engine = World(fleet=(QWEN,), variation=EXACT, tables=False).engines(1)[0]
    expected = sum(mixed_step_ms(QWEN, 0, 0, [chunk]) for chunk in ((2048, 640), (2048, 2688), (904, 4736)))
    assert alone_ms(engine, 5_000, 640) == pytest.approx(expected)


def test_shortest_remaining_first_by_hand():
    # 10 from 0; 1 at 2 preempts and ends at 3; 20 at 4 waits until 11.
    assert _srpt([0.0, 2.0, 4.0], [10.0, 1.0, 20.0]) == [11.0, 1.0, 27.0]


def fewest_late(releases, works, deadline):
    for count in range(len(works) + 1):
        for dropped in itertools.combinations(range(len(works)), count):
            now, fits = 0.0, True
            for number, (release, work) in enumerate(zip(releases, works, strict=True)):
                if number in dropped:
                    continue
                now = max(now, release) + work
                fits &= now <= release + deadline + 1e-9
            if fits:
                return count
    raise AssertionError


def test_the_fewest_late_jobs_are_those_of_brute_force():
    rng = random.Random(4)
    for _ in range(300):
        releases = sorted(rng.uniform(0, 20) for _ in range(8))
        works = [rng.choice((0.5, 2.0, rng.uniform(0.1, 8.0))) for _ in range(8)]
        deadline = rng.uniform(1.0, 10.0)
        fewest = fewest_late(releases, works, deadline)
        assert not _late(releases, works, deadline, fewest)
        assert fewest == 0 or _late(releases, works, deadline, fewest - 1)


def test_the_smallest_deadline_lets_one_in_a_hundred_be_late():
    works = [1.0] * 99 + [50.0]
    releases = [10.0 * number for number in range(100)]
    assert _smallest_deadline(releases, works, 0.99) == pytest.approx(1.0, abs=0.2)
    assert _smallest_deadline(releases, works, 1.0) == pytest.approx(50.0, rel=0.02)


def test_reuse_counts_full_blocks_seen_before_and_leaves_a_token():
    reuse = Reuse(64)
    assert reuse.found(Call(0.0, 200, 1, [1, 2, 3])) == 0
    assert reuse.found(Call(1.0, 200, 1, [1, 2, 9])) == 128
    assert reuse.found(Call(2.0, 192, 1, [1, 2, 3])) == 128


@pytest.mark.parametrize("policy", ["oracle", "central-queue", "poolpilot", "lmetric", "random"])
@pytest.mark.parametrize(
    ("make", "fleet"),
    [(shared_prompts, (QWEN,) * 4), (conversations, (QWEN,) * 4), (short_long, (QWEN,) * 2)],
    ids=["shared", "conversations", "mix"],
)
def test_no_policy_beats_a_limit(policy, make, fleet):
    world = World(fleet=fleet, variation=EXACT, block_tokens=64)
    traffic = make(3.0, 250, 2, block_tokens=64)
    record = Simulation(world, traffic, make_router(policy, world, 2), 2).run()
    bound = limits(record, world, 2)
    ttft = sorted(trip.ttft_ms for trip in record.measured)
    assert len(bound.l1_ms) == len(record.measured)
    for trip, alone in zip(record.measured, bound.l1_ms, strict=True):
        assert trip.ttft_ms >= alone - 1e-6
    assert sum(ttft) / len(ttft) >= bound.mean_ms - 1e-6
    assert ttft[-(len(ttft) // 100) - 1] >= bound.p99_ms - 1e-6
    prompt = sum(trip.call.prompt_tokens for trip in record.measured)
    assert sum(trip.cached_tokens for trip in record.measured) / prompt <= bound.reuse + 1e-9
