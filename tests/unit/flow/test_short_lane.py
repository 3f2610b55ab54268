"""How many endpoints long prompts leave to short requests, which, and for how long."""

from __future__ import annotations

import heapq
import math
import random

import numpy as np
import pytest

from core_pools import chain
from exchange_desk import spec_of
from flow_stage import Stage, addresses, slot, waits
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.short_lane import LATE, PATIENCE_MS, ShortLane


def with_short_requests(stage, **fields):
    for _ in range(50):
        stage.finish(stage.go(tokens=100, **fields), after=20.0)
    return stage


def pool_of(count, **fields):
    return with_short_requests(Stage(addresses(count), predicts=True, room=RoomSettings()), **fields)


MOST_MS = 500.0
LONG = np.full(4, 30_000.0)
LONG_MS = np.full(4, 1_000.0)
BATCH = np.full(4, 100.0)
EVERYWHERE = np.ones(4, bool)


def lane_with_short_requests(share: float = 0.1, in_flight: int = 0) -> ShortLane:
    lane = ShortLane(share)
    for number in range(50):
        lane.came(1, 20.0 * number)
        lane.went(1)
    lane.came(in_flight, 1_000.0)
    lane.open_to(EVERYWHERE, 1_000.0)
    return lane


def left(lane, *, ahead=(0.0, 0.0, 0.0, 0.0), work=LONG_MS, sequences=(4.0, 3.0, 2.0, 1.0), now=1_000.0, overdue=False):
    load = np.asarray(sequences)
    found = lane.left(LONG, work, np.asarray(ahead), load, BATCH, EVERYWHERE, MOST_MS, now, overdue=overdue)
    return None if found is None else found.nonzero()[0].tolist()


@pytest.mark.parametrize(
    ("in_flight", "busy", "kept"),
    [
        (0, 2, [2]),
        (0, 3, [3]),
        # What would fill two endpoints as far as they are to be filled has two.
        (70, 1, [1, 2]),
        (70, 2, [2, 3]),
        # Long prompts have one endpoint always.
        (400, 0, [0, 1, 2]),
        (400, 1, [1, 2, 3]),
    ],
)
def test_as_many_endpoints_are_left_as_short_requests_fill(in_flight, busy, kept):
    ahead = [900.0] * busy + [0.0] * (4 - busy)
    assert left(lane_with_short_requests(in_flight=in_flight), ahead=ahead) == kept


def test_those_are_left_where_most_requests_are():
    lane = lane_with_short_requests()
    assert left(lane, sequences=(1.0, 9.0, 2.0, 3.0)) == [1]
    assert left(lane, sequences=(1.0, 9.0, 2.0, 3.0), ahead=(0.0, 900.0, 0.0, 0.0)) == [3]


def test_who_is_overdue_leaves_the_least_share_only():
    lane = lane_with_short_requests(in_flight=400)
    lane._taken_ms = 1_000.0
    assert left(lane, overdue=True) == [0]
    assert left(lane, ahead=(900.0, 900.0, 900.0, 0.0), overdue=True) == [3]
    lane._taken_ms -= PATIENCE_MS + 1.0
    assert left(lane, overdue=True) is None, "none went for so long"


def test_nothing_is_left_where_few_short_requests_come_or_the_prompt_is_soon_done():
    ahead = [900.0, 900.0, 900.0, 0.0]
    assert left(ShortLane(0.1), ahead=ahead) is None
    assert left(lane_with_short_requests(), ahead=ahead, now=60_000.0) is None
    assert left(lane_with_short_requests(0.0), ahead=ahead) is None
    assert left(lane_with_short_requests(), ahead=ahead, work=np.full(4, MOST_MS - 1.0)) is None


def test_a_long_prompt_goes_behind_another_one_rather_than_where_it_would_choose():
    stage = pool_of(3)
    for one, ahead_ms in zip(addresses(3)[1:], (200.0, 900.0), strict=True):
        client = stage.go(subset=(one,), tokens=30_000)
        assert client.placement is not None
        busy = client.placement.booking.endpoint.slot
        stage.pool.table.free_at_ms[busy] = stage.now + ahead_ms
        stage.flow.room.ahead._ends[busy] = stage.now + ahead_ms
    assert slot(stage.go(tokens=30_000)) == 1
    assert slot(stage.go(tokens=100)) == 0


def test_a_long_prompt_counts_until_it_is_surely_done():
    stage = pool_of(3)
    took = [stage.go(tokens=30_000) for _ in range(2)]
    assert len({slot(one) for one in took}) == 2
    needed = took[1].placement.booking.prefill_ms
    stage.now += (LATE - 0.1) * needed
    third = stage.go(tokens=30_000)
    assert slot(third) in {slot(one) for one in took}
    stage.now += (LATE + 0.1) * needed
    assert slot(stage.go(tokens=30_000)) == 3 - sum(map(slot, took))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_endpoints_come_back_to_short_requests_when_long_prompts_had_them_all(count):
    stage = Stage(addresses(count), predicts=True, room=RoomSettings())
    waiting = [stage.go("batch", tokens=30_000) for _ in range(20 * count)]
    free, running, chats, waited = [stage.now] * count, {}, [], []
    for _ in range(600):  # 30 s
        for client in [one for one in waiting if one.placement]:
            waiting.remove(client)
            free[slot(client)] = max(free[slot(client)], stage.now) + client.placement.booking.prefill_ms
            running[client] = free[slot(client)]
        for client in [one for one, end in running.items() if end <= stage.now]:
            stage.pool.finish(client.placement, Outcome.SERVED, stage.now)
            del running[client]
        stage.now += 50.0
        chats.append((stage.now, stage.go("chat", tokens=100)))
        stage.advance()
        for came, client in [one for one in chats if one[1].placement]:
            chats.remove((came, client))
            waited.append(stage.now - came)
            running[client] = max(free[slot(client)], stage.now) + 20.0
    waited += [stage.now - came for came, _ in chats]
    assert sorted(waited)[len(waited) // 2] < 500.0


def test_long_prompts_wait_when_the_set_of_endpoints_shrinks():
    stage = pool_of(4)
    gone = stage.go(tokens=30_000, subset=addresses(4)[3:])
    for one in addresses(4)[1:3]:
        stage.go(tokens=100_000, subset=(one,))
    waiting = [stage.go(tokens=30_000) for _ in range(3)]
    stage.pool.apply_endpoints(map(spec_of, addresses(3)))
    stage.pool.finish(gone.placement, Outcome.UNREACHABLE, stage.now)
    stage.advance(20.0)
    assert not any(one.failed for one in waiting)
    assert stage.go(tokens=30_000).placement is None


def test_a_long_prompt_goes_to_where_nearly_all_of_it_is_cached():
    stage = pool_of(3)
    first = stage.go(tokens=100_000, prefix=chain(("talk", 100_000)), subset=addresses(3)[:1])
    stage.finish(first, after=30_000.0)
    with_short_requests(stage, subset=addresses(3)[1:])
    for one in addresses(3)[1:]:
        stage.go(tokens=30_000, subset=(one,))
    stage.now += 1_900.0
    turn = stage.go(tokens=110_000, prefix=chain(("talk", 100_000), ("turn", 10_000)))
    waits(stage, turn)
    assert turn.placement.booking.prefill_ms < 5_000.0


def test_few_short_requests_cost_long_prompts_little():
    """Two short requests in three seconds; long prompts take 0.6 of the pool's prefill, then 20 s of answering."""
    rng, count = random.Random(2), 8
    stage = Stage(addresses(count), predicts=True, room=RoomSettings())
    table = stage.pool.table
    table.max_sequences[:], table.kv_tokens[:] = 16.0, 2e6
    alone = float(30_000 * (table.token_ms[0] + table.token2_ms[0] * 30_000))
    ends, free, open_, ttft, number = [], [0.0] * count, [], [], 0
    next_long = next_short = stage.now
    while stage.now < 121_000.0:
        stage.now = max(stage.now, min(next_long, next_short, ends[0][0] if ends else math.inf, stage.flow.next_ms))
        if stage.now >= next_long:
            open_.append((stage.now, True, stage.go("l", tokens=30_000, max_tokens=500)))
            next_long += rng.expovariate(1.0) * alone / count / 0.6
        if stage.now >= next_short:
            open_.append((stage.now, False, stage.go("s", tokens=100)))
            next_short += rng.expovariate(1.0) * 1_500.0
        while ends and ends[0][0] <= stage.now:
            stage.pool.finish(heapq.heappop(ends)[2].placement, Outcome.SERVED, stage.now)
        stage.advance()
        for one in [one for one in open_ if one[2].placement]:
            came, long, client = one
            open_.remove(one)
            where, number = slot(client), number + 1
            free[where] = max(free[where], stage.now) + client.placement.booking.prefill_ms
            heapq.heappush(ends, (free[where] + rng.expovariate(1.0) * (20_000.0 if long else 500.0), number, client))
            if long:
                ttft.append(free[where] - came)
    assert sorted(ttft)[int(0.9 * len(ttft))] < 2.5 * alone and len(open_) < 5


def test_an_endpoint_is_not_kept_for_a_long_prompt_that_may_not_have_it():
    stage = pool_of(3)
    full, kept, busy = addresses(3)
    stage.pool.table.max_sequences[:] = 16.0
    stage.go(tokens=100_000, subset=(busy,))
    for _ in range(15):
        stage.go(tokens=50, subset=(full,))
    burst = [stage.go(tokens=2_000, subset=(kept,)) for _ in range(5)]
    stage.go(tokens=30_000)
    stage.advance()
    stage.advance(400.0)
    for one in burst:
        stage.pool.finish(one.placement, Outcome.SERVED, stage.now)
    stage.go(tokens=50, subset=(full,))
    assert waits(stage, stage.go(tokens=100)) < 100.0, "it has nothing to do"


def test_a_short_request_passes_long_prompts_of_many_tenants():
    stage = pool_of(3)
    for one in addresses(3)[1:]:
        stage.go(tokens=100_000, subset=(one,))
    for number in range(8):
        stage.go(f"t{number}", tokens=30_000)
    assert waits(stage, stage.go("chat", tokens=100)) < 100.0


def test_what_only_some_endpoints_can_hold_does_not_leave_half_of_them():
    stage = pool_of(8)
    stage.pool.table.kv_tokens[:6] = 50_000.0
    assert {slot(stage.go(tokens=100_000)) for _ in range(2)} == {6, 7}


def test_long_prompts_that_were_given_up_keep_no_endpoint_busy():
    stage = pool_of(2)
    one = addresses(2)[0]
    stage.pool.table.max_sequences[:] = 16.0
    for _ in range(5):
        client = stage.go(tokens=100_000, subset=(one,))
        stage.now += 200.0
        stage.pool.finish(client.placement, Outcome.ABORTED, stage.now)
    stage.finish(stage.go(tokens=30_000, subset=(one,)), after=5_000.0)
    for _ in range(16):
        stage.go(tokens=50, subset=(one,))
    waiting = stage.go(tokens=30_000)
    start = stage.now
    while waiting.placement is None and waiting.refused is None:
        stage.advance(20.0)
        chat = stage.go(tokens=100)
        stage.advance(1.0)
        if chat.placement:
            stage.finish(chat, after=5.0)
    assert stage.now - start < 5_000.0, waiting.refused


def test_a_new_endpoint_in_an_old_slot_is_not_busy():
    stage = pool_of(3)
    gone = stage.go(tokens=100_000, subset=addresses(3)[2:])
    stage.pool.finish(gone.placement, Outcome.UNREACHABLE, stage.now)
    stage.pool.apply_endpoints(map(spec_of, addresses(2)))
    stage.pool.apply_endpoints(map(spec_of, (*addresses(2), "10.0.0.9:8000")))
    assert not stage.flow.room._lane.busy(stage.now)


def test_an_overdue_long_prompt_is_bounded():
    stage = pool_of(2)
    stage.go("a", tokens=250_000, subset=addresses(2)[1:])
    waiting, start = stage.go("a", tokens=30_000), stage.now
    while waiting.placement is None and waiting.refused is None:
        stage.advance(500.0)
        chat = stage.go("b", tokens=100)
        stage.advance()
        if chat.placement:
            stage.finish(chat, after=20.0)
    assert waiting.placement is not None and stage.now - start < 30_000.0, waiting.refused


def test_time_alone_wakes_a_long_prompt_that_may_go_elsewhere_now():
    stage = pool_of(2)
    one, other = addresses(2)
    for _ in range(8):
        stage.go(tokens=50, subset=(one,))
    stage.go(tokens=30_000, subset=(one,))
    for _ in range(5):
        stage.finish(stage.go(tokens=100, subset=(other,)), after=20.0)
    stage.pool.table.max_sequences[:] = 9.0
    waiting = stage.go(tokens=30_000)
    stage.advance()
    while waiting.placement is None and waiting.refused is None:
        stage.now = stage.flow.next_ms
        stage.advance()
    assert waiting.placement is not None, "with advance() each 20 ms it goes after 3.3 s"


def test_a_receipt_tells_of_the_endpoints_that_are_left():
    stage = pool_of(2)
    stage.go(tokens=100_000, subset=addresses(2)[1:])
    _, ticket = stage.submit(tokens=30_000)
    assert "left to short requests" in ticket.why
