"""The scheduler's order and bookkeeping: each rule of vLLM V1 that matters to a router, one test."""

import pytest

from engine_runs import PROFILE, ROUND, drain, engine, keys, step
from poolpilot_lab.engine.model import Sequence, State, Variation, step_time
from poolpilot_lab.engine.model.settings import SequenceTooLongError


def test_one_sequence_computes_its_prompt_then_one_token_a_step() -> None:
    e = engine()
    s = Sequence(prompt_tokens=5, output_tokens=3)
    e.add(s, 100.0)
    assert e.busy_until is None
    end, outcome = step(e, 100.0)
    assert end == 115.0
    assert outcome.tokens == [(s, 1)]
    assert outcome.first_tokens == [s]
    assert (s.first_token, s.generated, s.computed) == (115.0, 1, 5)
    assert drain(e, end) == (135.0, [s])
    assert (s.state, s.finished, s.last_token, s.generated, s.computed) == (State.FINISHED, 135.0, 135.0, 3, 7)
    assert e.blocks.used == 0


def test_the_duration_is_the_mixed_formula_of_what_is_in_the_step() -> None:
    e = engine(profile=PROFILE, max_num_batched_tokens=2048, block_size=16)
    first = Sequence(600, 50)
    e.add(first, 0.0)
    now, _ = step(e, 0.0)
    assert now == pytest.approx(step_time.mixed_step_ms(PROFILE, 0, 0, [(600, 0)]))
    e.add(Sequence(3000, 50), now)
    end = e.plan(now)
    assert end is not None
    # 601 context tokens decode; the budget leaves 2,047 for the new prompt.
    assert end - now == pytest.approx(step_time.mixed_step_ms(PROFILE, 1, 601, [(2047, 0)]))
    e.settle(end)
    after = e.plan(end)
    assert after is not None
    assert after - end == pytest.approx(step_time.mixed_step_ms(PROFILE, 1, 602, [(953, 2047)]))


def test_running_sequences_come_before_waiting_ones() -> None:
    e = engine(max_num_batched_tokens=10)
    long, short = Sequence(25, 2), Sequence(3, 2)
    e.add(long, 0.0)
    e.add(short, 0.0)
    now, outcome = step(e, 0.0)
    assert (long.computed, short.state, outcome.tokens) == (10, State.WAITING, [])
    now, _ = step(e, now)
    now, outcome = step(e, now)
    # The last chunk of the long prompt takes 5 tokens, the rest of the budget admits the short one.
    assert (long.computed, short.computed) == (25, 3)
    assert outcome.first_tokens == [long, short]
    assert long.admitted == 0.0
    assert short.admitted == 40.0


def test_admission_is_first_come_first_served_within_the_budget() -> None:
    e = engine(max_num_batched_tokens=10)
    first, second, third = Sequence(6, 1), Sequence(6, 1), Sequence(2, 1)
    for s in (first, second, third):
        e.add(s, 0.0)
    step(e, 0.0)
    assert (first.state, second.computed, third.state) == (State.FINISHED, 4, State.WAITING)


def test_no_more_than_max_num_seqs_run() -> None:
    e = engine(max_num_seqs=2)
    sequences = [Sequence(4, 2) for _ in range(3)]
    for s in sequences:
        e.add(s, 0.0)
    now, _ = step(e, 0.0)
    gauges = e.telemetry.gauges
    assert (gauges.running, gauges.waiting_capacity, gauges.waiting_deferred) == (2, 1, 0)
    now, _ = step(e, now)
    assert sequences[2].state is State.WAITING
    step(e, now)
    assert sequences[2].admitted == now


def test_a_cached_prefix_is_not_computed_again() -> None:
    e = engine()
    e.add(Sequence(12, 1, keys(1, 3)), 0.0)
    now, _ = drain(e, 0.0)
    again = Sequence(14, 1, keys(1, 3))
    e.add(again, now)
    end, _ = step(e, now)
    assert (again.cached_tokens, end - now) == (12, 12.0)
    assert (e.telemetry.prefix_queries, e.telemetry.prefix_hits) == (26, 12)
    assert (e.telemetry.prompt_tokens_computed, e.telemetry.prompt_tokens_cached) == (14, 12)


def test_at_least_one_token_of_a_cached_prompt_is_computed() -> None:
    e = engine()
    e.add(Sequence(12, 1, keys(1, 3)), 0.0)
    now, _ = drain(e, 0.0)
    again = Sequence(12, 1, keys(1, 3))
    e.add(again, now)
    end, _ = step(e, now)
    assert (again.cached_tokens, end - now) == (8, 14.0)


def test_only_full_blocks_are_shared() -> None:
    e = engine()
    e.add(Sequence(7, 1, keys(1, 1)), 0.0)
    now, _ = drain(e, 0.0)
    again = Sequence(7, 1, keys(1, 1))
    e.add(again, now)
    step(e, now)
    assert again.cached_tokens == 4


def test_prompts_of_one_step_share_what_the_first_of_them_computes() -> None:
    e = engine()
    first, second = Sequence(9, 1, keys(1, 2)), Sequence(9, 1, keys(1, 2))
    e.add(first, 0.0)
    e.add(second, 0.0)
    end, _ = step(e, 0.0)
    assert (second.cached_tokens, end) == (8, 20.0)


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    e = engine()
    e.add(Sequence(6, 7, keys(1, 3)), 0.0)
    now, _ = drain(e, 0.0)
    # 6 prompt tokens and 6 of the 7 generated ones are in the cache: three full blocks.
    turn = Sequence(20, 1, [*keys(1, 3), 999])
    e.add(turn, now)
    step(e, now)
    assert turn.cached_tokens == 12


def test_without_prefix_caching_nothing_is_found() -> None:
    e = engine(enable_prefix_caching=False)
    for _ in range(2):
        s = Sequence(12, 1, keys(1, 3))
        e.add(s, 0.0)
        drain(e, 0.0)
        assert s.cached_tokens == 0
    assert e.blocks.cached == 0


def test_a_prompt_waits_until_it_fits_as_a_whole() -> None:
    e = engine(blocks=10, max_num_batched_tokens=8)
    first, second, third = Sequence(16, 8), Sequence(22, 1), Sequence(1, 1)
    for s in (first, second, third):
        e.add(s, 0.0)
    now, _ = step(e, 0.0)
    now, _ = step(e, now)
    now, _ = step(e, now)
    # Four blocks and one for the output are taken; six are needed, five are free. The third waits behind.
    assert (first.generated, second.state, third.state) == (2, State.WAITING, State.WAITING)
    assert e.telemetry.gauges.waiting_capacity == 2
    _, finished = drain(e, now)
    assert finished == [first, second, third] or finished == [first, third, second]
    assert second.admitted == first.finished


def test_the_youngest_is_preempted_and_computes_everything_again() -> None:
    e = engine(blocks=4)
    old, young = Sequence(7, 8), Sequence(7, 8)
    e.add(old, 0.0)
    e.add(young, 0.0)
    now, _ = step(e, 0.0)
    now, _ = step(e, now)
    assert (old.computed, young.computed, e.blocks.free) == (8, 8, 0)
    end = e.plan(now)
    assert end is not None
    assert (young.state, young.computed, young.generated, young.table) == (State.PREEMPTED, 0, 2, [])
    outcome = e.settle(end)
    assert outcome.preempted == [young]
    assert outcome.tokens == [(old, 1)]
    assert (e.telemetry.preemptions, young.preemptions) == (1, 1)
    now, finished = drain(e, end)
    assert finished == [old, young]
    assert young.generated == 8
    assert young.first_token == old.first_token, "the first token is not generated again"
    assert e.telemetry.prefix_queries == 14, "a preempted sequence does not count twice"


def test_a_step_that_preempted_admits_nobody() -> None:
    e = engine(blocks=4, max_num_seqs=3)
    old, young = Sequence(7, 8), Sequence(7, 8)
    e.add(old, 0.0)
    e.add(young, 0.0)
    now, _ = step(e, 0.0)
    now, _ = step(e, now)
    tiny = Sequence(1, 1)
    e.add(tiny, now)
    now, outcome = step(e, now)
    assert outcome.preempted == [young]
    assert tiny.state is State.WAITING
    assert list(e.waiting) == [young, tiny], "the preempted one is first in line"


def test_a_preempted_sequence_finds_its_own_prefix() -> None:
    e = engine(blocks=5)
    old, young = Sequence(7, 8, keys(1, 1)), Sequence(7, 8, keys(2, 1))
    e.add(old, 0.0)
    e.add(young, 0.0)
    now = 0.0
    while young.preemptions == 0:
        now, _ = step(e, now)
    assert e.blocks.match(keys(2, 1), 1) == 1
    while young.state is not State.RUNNING:
        now, _ = step(e, now)
    assert young.table[0] == keys(2, 1)[0]


def test_a_sequence_that_can_never_fit_is_refused() -> None:
    e = engine(blocks=4)
    with pytest.raises(SequenceTooLongError, match="17 prompt and 1 output tokens exceed the 16 tokens"):
        e.add(Sequence(17, 1), 0.0)
    with pytest.raises(SequenceTooLongError, match="exceed the 10 tokens"):
        engine(max_model_len=10).add(Sequence(8, 3), 0.0)
    with pytest.raises(ValueError, match="no LoRA slots"):
        e.add(Sequence(1, 1, adapter="a"), 0.0)
    with pytest.raises(ValueError, match="output_tokens >= 1"):
        e.add(Sequence(1, 0), 0.0)
    assert e.in_flight == 0


def test_the_longest_sequence_that_fits_runs_alone_to_its_end() -> None:
    e = engine(blocks=4)
    s, other = Sequence(10, 6), Sequence(3, 1)
    e.add(s, 0.0)
    e.add(other, 0.0)
    _, finished = drain(e, 0.0)
    assert set(finished) == {s, other}


# -- adapters ----------------------------------------------------------------------------------------------------------


def test_loading_an_adapter_stalls_the_whole_batch() -> None:
    e = engine(max_loras=2, lora_load_ms=300.0)
    base = Sequence(2, 3)
    e.add(base, 0.0)
    now, _ = step(e, 0.0)
    e.add(Sequence(5, 2, adapter="a"), now)
    end, outcome = step(e, now)
    assert end - now == 10 + 5 + 300
    assert (base, 1) in outcome.tokens
    after, _ = step(e, end)
    assert after - end == 10, "resident from now on"
    assert (e.slots.loads, e.slots.resident) == (1, ("a",))


def test_an_adapter_without_a_slot_is_deferred_and_others_pass() -> None:
    e = engine(max_loras=2, lora_load_ms=0.0)
    a, b, c = (Sequence(2, 4, adapter=name) for name in "abc")
    base, again = Sequence(2, 4), Sequence(2, 4, adapter="a")
    for s in (a, b, c, base, again):
        e.add(s, 0.0)
    now, _ = step(e, 0.0)
    assert [s.state for s in (a, b, c, base, again)] == [State.RUNNING] * 2 + [State.WAITING] + [State.RUNNING] * 2
    gauges = e.telemetry.gauges
    assert (gauges.waiting_capacity, gauges.waiting_deferred, gauges.waiting) == (0, 1, 1)
    assert list(e.adapters_in_flight) == ["a", "b", "c"]
    now, _ = drain(e, now)
    assert c.admitted == b.finished
    assert not e.adapters_in_flight


def test_idle_adapters_stay_until_their_slot_is_needed() -> None:
    e = engine(max_loras=2, lora_load_ms=100.0)
    now = 0.0
    for name, load in (("a", True), ("b", True), ("a", False), ("c", True), ("a", False), ("b", True)):
        e.add(Sequence(1, 1, adapter=name), now)
        end, _ = step(e, now)
        assert end - now == (111.0 if load else 11.0), name
        now = end
    assert e.slots.resident == ("a", "b")
    assert e.slots.loads == 4


def test_an_adapter_can_be_loaded_ahead() -> None:
    e = engine(max_loras=1, lora_load_ms=100.0)
    e.load_adapter("a")
    e.add(Sequence(1, 2, adapter="a"), 0.0)
    now, _ = step(e, 0.0)
    assert (now, e.slots.loads) == (111.0, 1)
    e.load_adapter("b")
    assert e.slots.resident == ("a",), "the batch needs the slot"


# -- aborts ------------------------------------------------------------------------------------------------------------


def test_aborting_a_running_sequence_frees_its_blocks_at_once() -> None:
    e = engine(max_loras=1, lora_load_ms=0.0)
    gone, stays = Sequence(9, 50, adapter="a"), Sequence(2, 3)
    e.add(gone, 0.0)
    e.add(stays, 0.0)
    now, _ = step(e, 0.0)
    end = e.plan(now)
    assert end is not None
    assert e.abort(gone, now + 1)
    assert e.blocks.used == 1
    assert not e.adapters_in_flight
    assert e.busy_until == end
    assert e.settle(end).tokens == [(stays, 1)]
    assert (gone.state, gone.finished, gone.generated) == (State.ABORTED, now + 1, 1)
    assert not e.abort(gone, end)
    drain(e, end)
    assert e.telemetry.finished == {"stop": 1, "length": 0, "abort": 1, "error": 0, "repetition": 0}


def test_aborting_a_waiting_sequence_takes_it_out_of_the_queue() -> None:
    e = engine(max_num_seqs=1)
    first, second, third = (Sequence(2, 2) for _ in range(3))
    for s in (first, second, third):
        e.add(s, 0.0)
    now, _ = step(e, 0.0)
    assert e.abort(second, now)
    now, finished = drain(e, now)
    assert finished == [first, third]
    assert second.admitted == -1


def test_aborting_in_the_middle_of_prefill() -> None:
    e = engine(max_num_batched_tokens=8)
    s = Sequence(40, 5, keys(1, 10))
    e.add(s, 0.0)
    now, _ = step(e, 0.0)
    end = e.plan(now)
    assert end is not None
    e.abort(s, now)
    assert e.blocks.used == 0
    assert e.settle(end).tokens == []
    assert e.plan(end) is None
    assert e.blocks.match(keys(1, 10), 10) == 4, "what the accelerator was given is computed and cached"


# -- runs of pure decode steps -----------------------------------------------------------------------------------------


def workload(e, steps: int) -> list[tuple[float, ...]]:
    sequences = [Sequence(20 + 7 * i, 30 + 11 * i, keys(i % 2, 5)) for i in range(6)]
    for s in sequences:
        e.add(s, 0.0)
    drain(e, 0.0, steps)
    return [(s.first_token, s.last_token, s.finished, s.cached_tokens, s.preemptions) for s in sequences]


def test_runs_end_when_single_steps_end() -> None:
    single, runs = engine(profile=PROFILE), engine(profile=PROFILE)
    expected, actual = workload(single, 1), workload(runs, 64)
    for one, other in zip(expected, actual, strict=True):
        assert other == pytest.approx(one)
    a, b = single.telemetry, runs.telemetry
    assert b.inter_token.sum == pytest.approx(a.inter_token.sum)
    assert (b.inter_token.counts, b.generation_tokens, b.steps) == (a.inter_token.counts, a.generation_tokens, a.steps)
    assert b.busy_ms == pytest.approx(a.busy_ms)
    assert b.iteration_tokens.counts == a.iteration_tokens.counts


def test_runs_stop_where_blocks_run_out() -> None:
    single, runs = engine(blocks=45, profile=PROFILE), engine(blocks=45, profile=PROFILE)
    expected, actual = workload(single, 1), workload(runs, 64)
    assert single.telemetry.preemptions > 0
    assert runs.telemetry.preemptions == single.telemetry.preemptions
    for one, other in zip(expected, actual, strict=True):
        assert other == pytest.approx(one)


def test_an_arrival_ends_a_run_at_the_step_in_progress() -> None:
    e = engine()
    e.add(Sequence(5, 100), 0.0)
    now, _ = step(e, 0.0)
    assert e.plan(now, 64) == now + 640
    late = Sequence(5, 1)
    e.add(late, now + 33.0)
    assert e.interrupt(now + 33.0) == now + 40
    e.settle(now + 40)
    assert e.telemetry.iteration_tokens.count == e.telemetry.steps == 5
    step(e, now + 40)
    assert (late.admitted, late.first_token) == (now + 40, now + 55)


def test_an_arrival_behind_a_stuck_sequence_interrupts_nothing() -> None:
    e = engine(max_num_seqs=1)
    e.add(Sequence(5, 100), 0.0)
    e.add(Sequence(5, 1), 0.0)
    now, _ = step(e, 0.0)
    end = e.plan(now, 64)
    e.add(Sequence(5, 1), now + 33.0)
    assert e.interrupt(now + 33.0) == end


def test_settling_in_the_middle_of_a_run_shows_its_progress() -> None:
    e = engine(profile=PROFILE)
    s = Sequence(5, 100)
    e.add(s, 0.0)
    now, _ = step(e, 0.0)
    end = e.plan(now, 64)
    assert end is not None
    middle = e.settle(now + (end - now) / 2)
    assert 31 <= s.generated <= 33
    assert middle.tokens == [(s, s.generated - 1)]
    assert e.telemetry.generation_tokens == s.generated
    assert e.blocks.used == -(-(5 + s.generated - 1) // 4)
    rest = e.settle(end)
    assert s.generated == 65
    assert rest.tokens == [(s, 64 - middle.tokens[0][1])]


def test_an_abort_ends_a_run() -> None:
    e = engine()
    gone, stays = Sequence(5, 100), Sequence(5, 100)
    e.add(gone, 0.0)
    e.add(stays, 0.0)
    now, _ = step(e, 0.0)
    e.plan(now, 64)
    e.abort(gone, now + 25)
    assert gone.generated == 3
    assert e.busy_until == now + 30


def test_noise_and_stalls_lengthen_steps_from_a_seed() -> None:
    spans = []
    for _ in range(2):
        e = engine(variation=Variation(step_noise=0.2, stall_every_ms=50, stall_ms=30))
        e.add(Sequence(5, 50), 0.0)
        spans.append(drain(e, 0.0)[0])
    plain = engine()
    plain.add(Sequence(5, 50), 0.0)
    assert spans[0] == spans[1]
    assert spans[0] > drain(plain, 0.0)[0]


def test_a_slow_down_counts_from_the_next_step() -> None:
    e = engine()
    e.add(Sequence(5, 3), 0.0)
    end = e.plan(0.0)
    e.accelerator.slow = 3.0
    assert end == 15.0
    e.settle(15.0)
    assert e.plan(15.0) == 45.0


def test_round_profile_is_what_the_tests_say() -> None:
    assert step_time.mixed_step_ms(ROUND, 3, 1000, [(5, 0), (7, 100)]) == 22.0


def test_an_arrival_behind_one_that_finds_no_blocks_interrupts_nothing() -> None:
    e = engine(blocks=10)
    e.add(Sequence(5, 30), 0.0)
    e.add(Sequence(36, 1), 0.0)
    now, _ = step(e, 0.0)
    end = e.plan(now, 16)
    assert end == now + 160
    e.add(Sequence(1, 1), now + 33.0)
    assert e.interrupt(now + 33.0) == end


def test_a_run_is_as_long_as_the_blocks_allow_not_one_step() -> None:
    e = engine(blocks=8)
    for _ in range(2):
        e.add(Sequence(7, 20), 0.0)
    now, _ = step(e, 0.0)
    # Four of eight blocks are taken and each sequence fills one in four steps.
    assert e.plan(now, 16) == now + 80
