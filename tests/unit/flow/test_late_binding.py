"""What goes at once, what waits for room and who gets it when there is some."""

from __future__ import annotations

import pytest

from exchange_desk import spec_of
from flow_stage import ADDRESSES, Client, Stage, refusal
from poolpilot_picker.errors import NoEndpoints
from poolpilot_picker.flow.control import AT_ONCE
from poolpilot_picker.flow.holding import QueueOutcome, Ticket
from poolpilot_picker.flow.pool import Placement
from poolpilot_picker.flow.queue import BandSettings, QueueSettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain


def test_what_has_room_goes_at_once_and_the_rest_waits_for_who_is_free_first():
    stage = Stage()
    first, second, third, fourth = (stage.go() for _ in range(4))
    assert first.placement and second.placement
    assert first.placement.destination.split(",")[0] == ADDRESSES[0]
    assert second.placement.destination.split(",")[0] == ADDRESSES[1]
    assert third.placement is None and fourth.placement is None
    stage.advance()
    assert third.placement is None
    stage.finish(second)
    stage.advance()
    assert third.placement is not None and fourth.placement is None
    assert third.placement.destination.split(",")[0] == ADDRESSES[1]
    assert third.placement.request.queued_ms == 10.0
    assert third.placement.request.queued_for == "no endpoint has room: requests"


def test_the_end_of_a_request_wakes_the_queue_once():
    stage = Stage()
    placed = [stage.go(), stage.go()]
    stage.finish(placed[0])
    assert stage.kicks == 0, "nobody waits"
    placed[0] = stage.go()
    stage.go()
    kicked = stage.kicks
    stage.advance()
    stage.finish(placed[0])
    stage.finish(placed[1])
    assert stage.kicks == kicked + 1


def test_prefill_work_booked_ahead_holds_requests_back_until_time_has_passed():
    stage = Stage(predicts=True, room=RoomSettings(start_within_ms=100.0, short_reserve=0.0))
    placed = []
    while (client := stage.go(tokens=3_000)).placement is not None:
        placed.append(client)
    assert 2 <= len(placed) < 50
    stage.advance()
    assert client.placement is None
    wake = stage.flow.next_ms
    free_at = stage.pool.table.free_at_ms
    assert wake == min(free_at) - 100.0
    stage.advance(wake - stage.now)
    assert client.placement is not None


def test_an_idle_endpoint_takes_what_is_too_large_for_every_bound():
    stage = Stage(room=RoomSettings(max_tokens=10, start_within_ms=1.0))
    huge = [stage.go(tokens=200_000) for _ in range(3)]
    assert [client.placement is not None for client in huge] == [True, True, False]
    stage.finish(huge[0])
    stage.advance()
    assert huge[2].placement is not None


def test_the_kv_cache_at_its_predicted_peak_bounds_an_endpoint():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(start_within_ms=1e9, short_reserve=0.0))
    [endpoint] = stage.pool.table
    stage.pool.table.set_kv_capacity(endpoint, 10_000.0)
    assert stage.go(tokens=6_000).placement
    waits, ticket = stage.submit(tokens=6_000)
    assert isinstance(ticket, Ticket) and ticket.why == "no endpoint has room: KV cache"
    assert waits.placement is None


def test_short_work_has_a_reserve():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(max_requests=4, short_reserve=0.5, start_within_ms=1e9))
    assert [stage.go(tokens=3_000).placement is not None for _ in range(3)] == [True, True, False]
    short = stage.go(tokens=100)
    stage.advance()
    assert short.placement is not None, "the reserve is for it, whoever came before"


def test_the_subset_hint_and_the_models_that_are_served_bind_as_ever():
    stage = Stage()
    assert stage.go().placement
    _, ticket = stage.submit(subset=(ADDRESSES[0],))
    assert isinstance(ticket, Ticket)
    stage.advance()
    stage.go(subset=(ADDRESSES[1],))
    stage.advance()
    assert stage.pool.table.requests.tolist() == [1.0, 1.0]
    assert isinstance(refusal(Stage(), subset=("10.9.9.9:1",)), NoEndpoints)


def test_what_is_no_inference_call_never_waits():
    stage = Stage()
    stage.go(), stage.go()
    other = InferenceRequest(request_id="x")
    assert isinstance(stage.flow.submit(other, Client(), stage.now), Placement)


def test_a_fault_in_choosing_is_told_and_costs_nobody_else_the_turn():
    stage = Stage()
    placed = [stage.go(), stage.go()]
    first, second = stage.go(), stage.go()
    stage.policy.error = RuntimeError("a fault")
    stage.finish(placed[0])
    stage.advance()
    assert first.failed and second.failed
    assert len(stage.flow.queue) == 0


def test_a_waiter_that_fails_costs_nobody_else_the_turn(caplog: pytest.LogCaptureFixture):
    stage = Stage()
    placed = [stage.go(), stage.go()]
    first, second = stage.go(), stage.go()
    first.placement = placed[0].placement  # its own assertion fails when it is told
    stage.finish(placed[0])
    stage.finish(placed[1])
    stage.advance()
    assert second.placement is not None
    assert "failed when it was told" in caplog.text


def test_room_is_kept_for_the_first_that_finds_none():
    stage = Stage(room=RoomSettings(max_tokens=20_000, start_within_ms=1e9, short_reserve=0.0))
    running = [stage.go("a", tokens=19_000) for _ in range(2)]
    large = stage.go("b", tokens=18_000)
    small = [stage.go("a", tokens=3_000) for _ in range(3)]
    stage.finish(running[0])
    held = stage.go("c", tokens=19_000)
    assert held.placement is None
    stage.advance()
    assert large.placement is not None, "it was the first"
    assert [one.placement for one in small] == [None] * 3
    stage.finish(running[1])
    stage.advance()
    assert held.placement is None or small[0].placement is None, "one of the two is behind the other"


def test_small_requests_do_not_take_every_bit_that_a_large_one_waits_for():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(max_tokens=20_000, start_within_ms=1e9, short_reserve=0.0))
    running = [stage.go("a", tokens=4_000) for _ in range(5)]
    large = stage.go("b", tokens=15_000)
    small = [stage.go("a", tokens=4_000) for _ in range(20)]
    for client in running[:4]:
        stage.finish(client, output=300.0)
        stage.advance()
    assert large.placement is not None, "four of five have ended: its room was kept"
    assert not any(one.placement for one in small)


def test_alone_short_work_passes_until_the_large_one_is_overdue():
    stage = Stage(
        ADDRESSES[:1],
        room=RoomSettings(max_tokens=20_000, start_within_ms=1e9, short_reserve=0.0),
        queue=QueueSettings(default_band=BandSettings(ageing_ms=1_000.0)),
    )
    running = stage.go("a", tokens=10_000)
    large, short = stage.go("b", tokens=19_000), stage.go("a", tokens=500)
    stage.advance()
    assert large.placement is None and short.placement is not None
    later = stage.go("a", tokens=400)
    stage.now += 1_000.0
    stage.advance()
    assert later.placement is None, "it is overdue: nobody passes"
    stage.finish(running)
    stage.finish(short)
    stage.advance()
    assert large.placement is not None


def test_a_head_without_room_holds_up_only_what_needs_the_same():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(max_requests=4, short_reserve=0.5, start_within_ms=1e9))
    for _ in range(2):
        assert stage.go(tokens=3_000).placement
    long, short = stage.go(tokens=3_000), stage.go(tokens=100)
    stage.advance()
    assert long.placement is None and short.placement is not None


def test_a_crowd_is_dispatched_in_turns_that_leave_others_theirs():
    stage = Stage((), room=RoomSettings(start_within_ms=1e9))
    crowd = [stage.go() for _ in range(AT_ONCE + 10)]
    stage.pool.apply_endpoints([spec_of(address) for address in ADDRESSES])
    stage.kicks = 0
    stage.advance()
    assert sum(one.placement is not None for one in crowd) == AT_ONCE
    assert stage.kicks == 1
    stage.advance()
    assert all(one.placement is not None for one in crowd)
    assert stage.kicks == 1 and len(stage.flow.queue) == 0


def busy(stage: Stage, slot: int, ahead_ms: float) -> None:
    """An endpoint has prefill work of so many ms ahead."""
    if not stage.pool.table.requests[slot]:
        stage.go(subset=(ADDRESSES[slot],))
    table = stage.pool.table
    table.free_at_ms[slot] = stage.now + ahead_ms
    stage.flow.room.ahead.placed(table, slot, 100.0, ahead_ms, stage.now)


@pytest.mark.parametrize("tokens", [100, 5_000])
@pytest.mark.parametrize(("weighs_waits", "slot"), [(True, 0), (False, 1)])
def test_a_policy_that_weighs_waits_chooses_freely_while_there_is_room_somewhere(weighs_waits, slot, tokens):
    stage = Stage(room=RoomSettings(start_within_ms=250.0))
    stage.policy.weighs_waits = weighs_waits
    busy(stage, 0, 900.0)
    client = stage.go(tokens=tokens)
    assert client.placement is not None
    assert client.placement.booking.endpoint.slot == slot
    busy(stage, 1, 900.0)
    assert stage.go(tokens=tokens).placement is None, "there is no room anywhere"


@pytest.mark.parametrize("settings", [{"max_requests": 1}, {"max_tokens": 150}, {}])
def test_bounds_that_an_engine_has_or_somebody_has_set_hold_for_every_policy(settings):
    stage = Stage(room=RoomSettings(start_within_ms=250.0, short_reserve=0.0, **settings))
    stage.policy.weighs_waits = True
    if not settings:
        stage.pool.table.max_sequences[:] = 1.0
    slots = []
    while (client := stage.go()).placement is not None:
        slots.append(client.placement.booking.endpoint.slot)
    assert slots == [0, 1]


def test_what_may_be_shed_goes_only_where_there_is_room():
    stage = Stage(room=RoomSettings(start_within_ms=250.0))
    stage.policy.weighs_waits = True
    busy(stage, 0, 900.0)
    assert stage.go(priority=0).placement is not None
    shed = stage.go(priority=-1)
    assert shed.placement is not None and shed.placement.booking.endpoint.slot == 1
    # Of prefill work it has the square of its share: 0.45² × 250 ms.
    busy(stage, 1, 55.0)
    waits = stage.go(priority=-1)
    assert waits.placement is None
    stage.advance(10.0)
    assert waits.placement is not None


def test_a_warm_cache_is_not_given_up_for_room_elsewhere():
    """What a flow layer must not do: spread prefixes over endpoints that have room just when all are needed."""
    stage = Stage(predicts=True, room=RoomSettings(start_within_ms=100.0, short_reserve=0.0))
    prefix = PrefixChain(hashes=list(range(100)), ends=[100.0 * n for n in range(1, 101)])
    first = stage.go(tokens=10_000, prefix=prefix)
    assert first.placement is not None
    warm = first.placement.booking.endpoint.slot
    busy(stage, warm, 150.0)
    second = stage.go(tokens=10_050, prefix=prefix)
    assert second.placement is not None and second.placement.booking.endpoint.slot == warm


def test_the_last_endpoint_without_long_prompts_is_left_to_short_requests_while_many_of_those_come():
    stage = Stage(room=RoomSettings(start_within_ms=250.0))
    for _ in range(50):
        stage.finish(stage.go(tokens=100), after=20.0)
    busy(stage, 0, 1_100.0)
    long = stage.go(tokens=30_000)
    assert long.placement is None
    stage.advance(1.0)
    assert long.placement is None, "the other endpoint is idle"
    short = stage.go(tokens=100)
    stage.advance(1.0)
    assert short.placement is not None and short.placement.booking.endpoint.slot == 1
    # Where no short requests come any more it is everybody's.
    stage.now += 40_000.0
    busy(stage, 0, 1_100.0)
    stage.finish(short)
    stage.advance()
    assert long.placement is not None


def test_prefills_that_share_a_step_are_not_counted_as_if_each_had_one():
    stage = Stage(ADDRESSES[:1], predicts=True, room=RoomSettings(start_within_ms=1e9))
    for _ in range(10):
        stage.go(tokens=200)
    table = stage.pool.table
    ahead = float(stage.flow.room.ahead.at(table, stage.now)[0])
    work = 10 * 200 * float(table.token_ms[0])
    assert work < ahead < 0.7 * (float(table.free_at_ms[0]) - stage.now)


def test_what_an_engine_says_of_its_queue_counts_though_all_was_predicted_to_be_done():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(start_within_ms=100.0))
    table = stage.pool.table
    stage.go()
    table.load_ms[0], table.queued[0], table.free_at_ms[0] = stage.now, 20.0, stage.now + 5_000.0
    assert float(stage.flow.room.ahead.at(table, stage.now)[0]) > 100.0
    assert stage.go().placement is None


def test_who_waits_in_an_engine_with_a_full_cache_is_sent_no_more_before_it_has_begun():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(max_requests=9, start_within_ms=1e9))
    stage.go()
    table = stage.pool.table
    table.queued[0], table.kv_usage[0] = 1.0, 0.95
    waits = stage.go()
    assert waits.placement is None
    table.queued[0] = 0.0
    stage.advance(10.0)
    assert waits.placement is not None


def test_sheddable_requests_use_a_part_of_an_endpoint_while_there_are_others():
    stage = Stage(
        ADDRESSES[:1], room=RoomSettings(max_requests=4, sheddable_share=0.5, short_reserve=0.0, start_within_ms=1e9)
    )
    assert stage.go(priority=0).placement is not None
    low = [stage.go(priority=-1) for _ in range(3)]
    assert [one.placement is not None for one in low] == [True, False, False]
    assert stage.go(priority=0).placement is None, "the queue is not empty: it goes with the next look"
    stage.advance(1.0)
    assert [one.placement is not None for one in low] == [True, False, False]
    # Alone, they have all of it.
    stage.advance(31_000.0)
    assert [one.placement is not None for one in low] == [True, True, False]


def test_dropped_requests_never_wait():
    stage = Stage(ADDRESSES[:1], room=RoomSettings(max_requests=2, start_within_ms=1e9), drop_sheddable=True)
    assert stage.go(priority=0).placement is not None
    refused = refusal(stage, priority=-1)
    assert refused.status == 429
    assert stage.go(priority=0).placement is not None


def test_room_that_was_kept_is_everybodys_when_nobody_waits_any_more():
    stage = Stage(room=RoomSettings(max_tokens=20_000, start_within_ms=1e9, short_reserve=0.0))
    running = [stage.go("a", tokens=15_000) for _ in range(2)]
    tickets = [stage.submit("b", tokens=9_000)[1], stage.submit("a", tokens=9_000)[1]]
    stage.advance()
    for ticket in tickets:
        assert isinstance(ticket, Ticket)
        stage.flow.withdraw(ticket, QueueOutcome.EVICTED_CONTEXT_CANCELLED, stage.now)
    for client in running:
        stage.finish(client)
    placed = [stage.go("c", tokens=18_000) for _ in range(2)]
    assert all(one.placement is not None for one in placed)


def test_fallbacks_without_room_are_not_named():
    stage = Stage()
    stage.go()
    assert "," not in stage.submit()[1].destination  # type: ignore[union-attr]
