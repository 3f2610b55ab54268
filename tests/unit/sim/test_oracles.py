"""What the references know: wanted blocks, priorities of engines, and trials that leave the engines as they are."""

from __future__ import annotations

from poolpilot_lab.engine.model import PROFILES, Sequence
from poolpilot_lab.sim.fleet import Simulation
from poolpilot_lab.sim.outlook import Outlook
from poolpilot_lab.sim.policies import ORACLE, ROLLOUT, make_router, names
from poolpilot_lab.sim.rollout import Rollout, _Trial
from poolpilot_lab.sim.trip import Trip
from poolpilot_lab.sim.world import EXACT, World
from poolpilot_lab.workload.calls import Call
from poolpilot_lab.workload.streams import short_long

H100 = PROFILES["llama-3.1-8b-h100"]


def test_the_next_turn_is_wanted_until_it_comes_and_anything_else_when_it_came_twice() -> None:
    outlook = Outlook()
    second = Call(10.0, 20, 5, [1, 2, 3])
    first = Call(0.0, 10, 5, [1, 2], then=second)
    alone = Call(0.0, 10, 5, [7, 8])
    outlook.arrived(first)
    outlook.arrived(alone)
    assert [outlook.is_wanted(key) for key in (1, 2, 3, 7)] == [True, True, True, False]
    outlook.arrived(second)
    assert not outlook.is_wanted(1)
    outlook.arrived(Call(5.0, 10, 5, [7, 9]))
    assert [outlook.is_wanted(key) for key in (7, 8)] == [True, False]


def test_an_eviction_costs_what_is_wanted_and_held_nowhere_else() -> None:
    one, other = World(fleet=(H100,) * 2, block_tokens=64).engines(1)
    outlook = Outlook()
    for engine, keys in ((one, [1, 2, 3, 4]), (other, [1, 2])):
        engine.add(Sequence(64 * len(keys) + 1, 1, keys), 0.0)
        end = engine.plan(0.0)
        engine.settle(end)
    outlook.arrived(Call(0.0, 64, 1, [1, 2, 3, 4]))
    outlook.arrived(Call(0.0, 64, 1, [1, 2, 3, 4]))
    everything = one.blocks.total
    assert outlook.lost_blocks(one, everything, set(), [one, other]) == 2.0
    assert outlook.lost_blocks(one, everything, {3}, [one, other]) == 1.0
    assert outlook.lost_blocks(one, 1, set(), [one, other]) == 0.0, "there is room that holds nothing"


def test_the_rollout_is_not_worse_than_the_greedy_oracle_and_runs_only_when_asked_for() -> None:
    assert ROLLOUT not in names()
    world = World(fleet=(H100,) * 2, variation=EXACT)
    traffic = short_long(14.0, 50, 3)
    means = {}
    for name in (ORACLE, ROLLOUT):
        record = Simulation(world, traffic, make_router(name, world, 3), 3).run()
        assert all(trip.end_ms < float("inf") for trip in record.measured)
        means[name] = sum(trip.e2e_ms for trip in record.measured) / len(record.measured)
    assert means[ROLLOUT] <= 1.05 * means[ORACLE]


def test_a_trial_takes_in_once_what_is_on_its_way_and_leaves_the_engines_as_they_are() -> None:
    world = World(fleet=(H100,) * 2, variation=EXACT)
    engines, router = world.engines(3), Rollout(world, 3)
    router.start(engines, [0, 1], 0.0)
    underway = Trip(Call(0.0, 500, 400, []), 0, 0.0)
    there = underway.endpoint = router.route(underway, 0.0)
    underway.placed_ms = 0.0
    trial = _Trial(router, world)
    assert there is not None and trial.cost(Trip(Call(0.0, 2_000, 400, []), 1, 0.0), 1 - there, [], 0.0) > 0.0
    state = trial._look(there, 200.0, 100)
    assert (state.decoding, state.joining) == (1, 0)
    assert not any(engine.running or engine.waiting for engine in engines)
