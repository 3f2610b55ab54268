"""What is served is a veto, what is resident an expectation: slots, least recently used, never evicting what runs."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.state.adapters import CACHED_MODELS, DEFAULT_SLOTS, AdapterResidency
from poolpilot_picker.state.samples import EngineSample, ServedModels


def make(slots=2, gpu_slots=2):
    adapters = AdapterResidency()
    adapters.resize(slots)
    for slot in range(slots):
        tell(adapters, slot, max_adapters=gpu_slots)
    return adapters


def tell(adapters, slot, **values):
    adapters.apply_sample(slot, EngineSample(taken_ms=0.0, **values))


def listing(*names):
    return ServedModels(base=("base",), adapters=dict.fromkeys(names, "base"))


def test_the_first_request_loads_the_next_ones_find_it():
    adapters = make()
    assert adapters.book(0, "a") is True
    assert adapters.book(0, "a") is False
    assert adapters.resident_mask("a").tolist() == [True, False]


def test_the_least_recently_used_adapter_goes_but_never_one_that_runs():
    adapters = make(gpu_slots=2)
    adapters.book(0, "a")
    for name in ("b", "c"):
        adapters.book(0, name)
        adapters.release(0, name)
    # a still runs: b had to go for c.
    assert adapters.resident(0) == ("a", "c")
    adapters.release(0, "a")
    adapters.book(0, "b")
    assert adapters.resident(0) == ("c", "b")


def test_more_adapters_in_flight_than_slots_are_all_expected_there():
    adapters = make(gpu_slots=1)
    for name in ("a", "b", "c"):
        assert adapters.book(0, name)
    assert adapters.busy_slots().tolist() == [3.0, 0.0]
    assert adapters.resident(0) == ("a", "b", "c")
    for name in ("a", "b", "c"):
        adapters.release(0, name)
    adapters.book(0, "d")
    assert adapters.resident(0) == ("d",)


def test_what_the_engine_runs_is_loaded_and_what_it_exports_is_the_truth():
    adapters = make(gpu_slots=2)
    adapters.book(0, "a")
    tell(adapters, 0, active_adapters=("x",), waiting_adapters=("y",))
    assert adapters.is_active_mask("x").tolist() == [True, False]
    assert adapters.is_waiting_mask("y").tolist() == [True, False]
    assert set(adapters.resident(0)) == {"a", "x"}
    tell(adapters, 0, resident_adapters=("b",))
    assert adapters.resident(0) == ("b",)
    assert adapters.resident_mask("a").tolist() == [False, False]
    # A sample that says nothing of activity leaves it as it was.
    assert adapters.active(0) == ("x",)


def test_a_restart_empties_the_gpu_but_not_the_account():
    adapters = make()
    adapters.set_served(0, listing("a"))
    adapters.book(0, "a")
    tell(adapters, 0, active_adapters=("a",))
    adapters.restarted(0)
    assert adapters.resident(0) == () and adapters.active(0) == ()
    assert adapters.inflight(0) == {"a": 1}
    assert adapters.is_adapter("a")
    adapters.release(0, "a")
    assert adapters.inflight(0) == {}


def test_served_models_are_a_veto_and_unknown_is_eligible():
    adapters = make(3)
    assert adapters.serving("a") is None
    adapters.set_served(0, listing("a"))
    adapters.set_served(1, listing())
    assert adapters.serving("a").tolist() == [True, False, True]
    assert adapters.serving("base") is None
    assert adapters.serving("nobody").tolist() == [False, False, True]
    adapters.set_served(1, listing("a", "b"))
    assert adapters.serving("a") is None
    adapters.set_served(1, None)
    assert adapters.serving("b").tolist() == [False, True, True]


def test_a_model_is_an_adapter_while_somebody_lists_or_runs_it():
    adapters = make(2)
    for slot in (0, 1):
        adapters.set_served(slot, listing("a"))
    adapters.set_served(0, None)
    assert adapters.is_adapter("a")
    adapters.set_served(1, listing())
    assert not adapters.is_adapter("a")
    tell(adapters, 1, active_adapters=("a",))
    assert adapters.is_adapter("a")
    tell(adapters, 1, active_adapters=())
    assert not adapters.is_adapter("a")
    assert not adapters.is_adapter("base")


def test_a_slot_that_changes_hands_starts_cold():
    adapters = make(2)
    adapters.set_served(0, listing("a"))
    tell(adapters, 0, active_adapters=("a",), waiting_adapters=("b",), max_adapters=7)
    adapters.clear(0)
    assert adapters.served(0) is None and not adapters.is_adapter("a")
    assert adapters.resident(0) == adapters.active(0) == adapters.waiting(0) == ()
    assert adapters.adapter_slots().tolist() == [DEFAULT_SLOTS, 2]
    assert adapters.told_mask().tolist() == [False, True]


def test_room_is_what_llm_d_means_by_it():
    adapters = AdapterResidency()
    adapters.resize(3)
    tell(adapters, 0, max_adapters=2, active_adapters=("a",), waiting_adapters=())
    tell(adapters, 1, max_adapters=2, active_adapters=("a",), waiting_adapters=("b",))
    assert adapters.room_mask().tolist() == [True, False, False]


def test_growing_keeps_what_is_known():
    adapters = make(1)
    adapters.set_served(0, listing("a"))
    adapters.book(0, "a")
    adapters.resize(3)
    assert adapters.resident_mask("a").tolist() == [True, False, False]
    assert adapters.busy_slots().tolist() == [1.0, 0.0, 0.0]
    assert adapters.adapter_slots().tolist() == [2, DEFAULT_SLOTS, DEFAULT_SLOTS]
    assert adapters.serving("b").tolist() == [False, True, True]


def test_clients_cannot_fill_the_memory_with_model_names():
    adapters = make(1)
    adapters.set_served(0, listing())
    for number in range(3 * CACHED_MODELS):
        adapters.serving(f"model-{number}")
    assert len(adapters._serving) <= CACHED_MODELS


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(("book", "release", "run")), st.sampled_from("abcde")), max_size=60),
)
def test_equals_a_naive_lru(limit, steps):
    adapters = make(1, limit)
    resident, running = OrderedDict(), []

    def use(name):
        cold = name not in resident
        resident.pop(name, None)
        resident[name] = None
        while len(resident) > limit:
            victim = next((held for held in resident if held not in running and held != name), None)
            if victim is None:
                break
            del resident[victim]
        return cold

    for step, name in steps:
        if step == "book":
            assert adapters.book(0, name) is use(name)
            running.append(name)
        elif step == "release" and name in running:
            adapters.release(0, name)
            running.remove(name)
        elif step == "run":
            tell(adapters, 0, active_adapters=(name,))
            if name not in resident:
                use(name)
        assert adapters.resident(0) == tuple(resident)
        assert adapters.inflight(0) == {held: running.count(held) for held in running}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
def test_a_page_that_repeats_a_name_counts_it_once(names):
    adapters = make(1, 4)
    tell(adapters, 0, active_adapters=names, resident_adapters=names)
    tell(adapters, 0, active_adapters=(), resident_adapters=())
    assert not adapters.is_active_mask("a").any()
    assert not adapters.resident_mask("a").any()


def test_adapters_beyond_the_gpu_slots_wait_in_their_order():
    adapters = make(1, gpu_slots=2)
    for name in ("a", "b", "b", "c", "d", "d"):
        adapters.book(0, name)
    # a gives its slot back once per answer, b every second one.
    until = {name: float(adapters.scarcity(name)[0][0]) for name in "abcdx"}
    assert until == {"a": 0.0, "b": 0.0, "c": 1 / 1.5, "d": 2 / 1.5, "x": 3 / 1.5}
    # Three requests wait for two slots.
    taken = {name: float(adapters.scarcity(name)[1][0]) for name in "abcdx"}
    assert taken == {"a": 1.5 / 2, "b": 1.5 / 3, "c": 1.5 / 2, "d": 1.5 / 3, "x": 1.5}
    assert adapters.not_deferred(0, 5.0) == 2.0 and adapters.not_deferred(0, 1.0) == 0.0
    adapters.release(0, "a")
    assert float(adapters.scarcity("c")[0][0]) == 0.0
    for name in ("b", "b", "c", "d", "d"):
        adapters.release(0, name)
    assert adapters.full == 0
    assert [column.tolist() for column in adapters.scarcity("a")] == [[0.0], [0.0]]


def test_more_gpu_slots_end_the_wait():
    adapters = make(1, gpu_slots=1)
    for name in ("a", "b"):
        adapters.book(0, name)
    assert adapters.full == 1 and float(adapters.scarcity("b")[0][0]) == 1.0
    tell(adapters, 0, max_adapters=3)
    assert adapters.full == 0 and float(adapters.scarcity("b")[0][0]) == 0.0


def test_what_others_run_holds_slots_and_what_they_wait_for_stands_behind_ours():
    adapters = make(gpu_slots=2)
    tell(adapters, 0, active_adapters=("x", "y"), waiting_adapters=("z",))
    assert adapters.scarcity("a")[0].tolist() == [0.0, 0.0], "alone, whatever else the engine tells has just ended"
    adapters.set_others(True)
    # Two run with two requests each, which give a slot back in two answers' time each; before ours goes z.
    assert adapters.scarcity("a")[0].tolist() == [(3 - 2 + 1) / (2 * 0.5), 0.0]
    assert adapters.scarcity("x")[0].tolist() == [0.0, 0.0], "it runs: who comes joins"
    waiting = 1 / 4
    assert adapters.scarcity("a")[1].tolist() == [waiting, waiting]
    assert adapters.scarcity("x")[1].tolist() == [waiting / 3, waiting]
    adapters.book(0, "a")
    # Of a the slots that x and y leave are none: it waits, before z and any other.
    until = (4 - 2 + 1) / (2 * 0.5)
    assert adapters.scarcity("b")[0].tolist() == [until, 0.0]
    assert adapters.scarcity("a")[0].tolist() == [until / 2, 0.0]
    tell(adapters, 0, active_adapters=("a",), waiting_adapters=())
    assert adapters.scarcity("b")[0].tolist() == [0.0, 0.0]
    tell(adapters, 0, active_adapters=("x", "y"), waiting_adapters=("z",))
    adapters.set_others(False)
    assert adapters.scarcity("b")[0].tolist() == [0.0, 0.0]


def test_a_restart_frees_what_others_held():
    adapters = make(gpu_slots=1)
    adapters.set_others(True)
    tell(adapters, 0, active_adapters=("x",), waiting_adapters=())
    assert adapters.full == 1
    adapters.restarted(0)
    assert adapters.full == 0 and adapters.scarcity("a")[0].tolist() == [0.0, 0.0]


def test_beside_others_an_idle_adapter_is_not_counted_on():
    adapters = make(gpu_slots=2)
    adapters.book(0, "a")
    adapters.book(1, "a")
    adapters.release(1, "a")
    assert adapters.resident_mask("a").tolist() == [True, True]
    adapters.set_others(True)
    assert adapters.resident_mask("a").tolist() == [True, False]
    tell(adapters, 1, active_adapters=("a",))
    assert adapters.resident_mask("a").tolist() == [True, True], "it runs there for somebody"
    tell(adapters, 1, active_adapters=())
    assert adapters.resident_mask("a").tolist() == [True, False]
    tell(adapters, 1, resident_adapters=("a", "b"))
    assert adapters.resident_mask("a").tolist() == [True, True], "the engine says so"
    assert adapters.resident_mask("b").tolist() == [False, True]


def test_what_runs_for_others_is_not_thought_to_go():
    for others, left in ((False, ("b", "c")), (True, ("a", "b", "c"))):
        adapters = make(gpu_slots=2)
        adapters.set_others(others)
        tell(adapters, 0, active_adapters=("a", "b"))
        adapters.used(0, "c")
        assert adapters.resident(0) == left


def test_what_of_ours_has_just_ended_is_not_others():
    adapters = make(gpu_slots=2)
    adapters.set_others(True)
    for name in ("a", "b", "c"):
        adapters.book(0, name)
    tell(adapters, 0, active_adapters=("a", "b"), waiting_adapters=("c",))
    for name in ("a", "b", "c"):
        adapters.release(0, name)
    assert adapters.full == 0 and adapters.scarcity("d")[0].tolist() == [0.0, 0.0]
    tell(adapters, 0, active_adapters=("a", "b"), waiting_adapters=())
    assert adapters.scarcity("d")[0].tolist() == [1.0, 0.0], "now the engine tells of somebody else's"
