"""Flow control on a pool: what goes at once, what waits and for what, what is turned away, and what it all costs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exchange_desk import spec_of
from poolpilot_picker.config.flow_plugins import HoldbackParameters, ProbabilisticParameters, ReflectiveParameters
from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import policy_config
from poolpilot_picker.errors import BadRequest, NoEndpoints, RequestRefused, TooManyRequests
from poolpilot_picker.flow.admission import LatencySloAdmitter, ProbabilisticAdmitter
from poolpilot_picker.flow.control import AT_ONCE, FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.holding import QueueOutcome, Ticket
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import Placement, Pool, PoolSettings
from poolpilot_picker.flow.queue import BandSettings, QueueSettings
from poolpilot_picker.flow.retries import RetrySettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.saturation import ConcurrencyDetector, Gate, UtilizationDetector
from poolpilot_picker.flow.tenants import TenantLimits
from poolpilot_picker.instruments.flow_metrics import FlowMetrics
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.routing.plugins.limits import ConcurrencyDetectorParameters, UtilizationDetectorParameters
from poolpilot_picker.routing.registry import build_profile, default_registry
from poolpilot_picker.state.samples import EngineSample

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000")


class FirstSlot:
    """Prefers low slots."""

    error: Exception | None = None

    def decide(self, view: DecisionView) -> list[int]:
        if self.error is not None:
            raise self.error
        slots: list[int] = view.mask.nonzero()[0].tolist()
        return slots

    def placed(self, view: DecisionView, slot: int) -> None:
        pass


class Client:
    """Waits for one request."""

    def __init__(self) -> None:
        self.placement: Placement | None = None
        self.refused: RequestRefused | None = None
        self.failed = False

    def dispatched(self, placement: Placement, now: float) -> None:
        assert self.placement is None and self.refused is None
        self.placement = placement

    def turned_away(self, refused: RequestRefused, now: float) -> None:
        assert self.placement is None and self.refused is None
        self.refused = refused

    def unplaceable(self, now: float) -> None:
        self.failed = True


class Stage:
    """A pool with two endpoints that take one request each, unless told otherwise."""

    def __init__(self, addresses: tuple[str, ...] = ADDRESSES, *, predicts: bool = False, **settings: Any) -> None:
        self.now = 1_000.0
        self.policy = FirstSlot()
        policy = build_profile(load(policy_config("predicted-finish"), default_registry())) if predicts else self.policy
        self.pool = Pool("pool", policy, random.Random(1), PoolSettings(receipt_share=0.0))
        self.pool.apply_endpoints([spec_of(address) for address in addresses])
        self.metrics = PickerMetrics(CollectorRegistry())
        settings = {"room": RoomSettings(max_requests=1, short_reserve=0.0)} | settings
        watching = FlowMetrics(self.metrics, "pool", lambda: self.now)
        self.flow = FlowControl(self.pool, FlowSettings(**settings), watching)
        self.pool.flow = self.flow
        self.kicks = 0
        self.flow.kick = self._kicked

    def _kicked(self) -> None:
        self.kicks += 1

    def submit(self, tenant: str = "", *, tokens: int = 100, **fields: Any) -> tuple[Client, Placement | Ticket]:
        request = InferenceRequest(
            request_id="r",
            kind=RequestKind.CHAT,
            model="m",
            target_model="m",
            tenant=tenant,
            prompt_tokens=tokens,
            body_bytes=4 * tokens,
            **fields,
        )
        client = Client()
        found = self.flow.submit(request, client, self.now)
        if isinstance(found, Placement):
            client.placement = found
        return client, found

    def go(self, tenant: str = "", **fields: Any) -> Client:
        return self.submit(tenant, **fields)[0]

    def finish(self, client: Client, *, after: float = 10.0, output: float | None = None) -> None:
        self.now += after
        assert client.placement is not None
        client.placement.output_tokens = output
        assert self.pool.finish(client.placement, Outcome.SERVED, self.now)

    def advance(self, by: float = 0.0) -> None:
        self.now += by
        self.flow.advance(self.now)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def refusal(stage: Stage, tenant: str = "", **fields: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        stage.go(tenant, **fields)
    return caught.value


# ---- late binding


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


# ---- time


def test_who_has_waited_enough_is_answered_429_with_a_time_to_come_again():
    stage = Stage(queue=QueueSettings(ttl_ms=2_000.0))
    stage.go(), stage.go()
    waits = stage.go()
    stage.advance()
    assert stage.flow.next_ms == 3_000.0
    stage.advance(2_000.0)
    refused = waits.refused
    assert isinstance(refused, TooManyRequests)
    assert refused.dropped_reason == "rejected-ttl-expired"
    assert refused.message == "request timed out in queue: it waited 2.0 s for no endpoint has room: requests"
    assert refused.retry_after_s is not None and 1.0 <= refused.retry_after_s <= 60.0
    outcome = {"outcome": "EvictedTTL", "priority": "0", "inference_pool": "pool"}
    assert stage.value("llm_d_epp_flow_control_requests_total", **outcome) == 1.0


def test_an_empty_pool_holds_requests_until_endpoints_come():
    stage = Stage((), queue=QueueSettings(ttl_ms=2_000.0, no_endpoint_ttl_ms=9_000.0))
    waits, lost = stage.go(), stage.go()
    stage.advance(8_000.0)
    assert waits.refused is None
    stage.pool.apply_endpoints([spec_of(ADDRESSES[0])])
    stage.advance()
    assert waits.placement is not None
    stage.finish(waits)
    stage.pool.apply_endpoints([])
    stage.advance()
    stage.advance(8_999.0)
    assert lost.refused is None
    stage.advance(1.0)
    assert isinstance(lost.refused, NoEndpoints)


def test_an_empty_pool_answers_503_at_the_end_of_patience():
    stage = Stage((), queue=QueueSettings(ttl_ms=2_000.0, no_endpoint_ttl_ms=5_000.0))
    waits = stage.go()
    stage.advance(5_000.0)
    assert isinstance(waits.refused, NoEndpoints)
    assert waits.refused.dropped_reason == "rejected-no-endpoints"
    assert waits.refused.message.startswith("request timed out in queue and no endpoints are available")


def test_the_data_plane_waits_longer_than_the_queue():
    stage = Stage(queue=QueueSettings(ttl_ms=60_000.0, most_ttl_ms=8_000.0), gateway_ms=10_000.0)
    stage.go(), stage.go()
    _, ticket = stage.submit()
    assert isinstance(ticket, Ticket)
    assert ticket.expires_ms - ticket.arrived_ms == 8_000.0
    assert stage.flow.patience_ms(ticket) == 10_000.0
    short = stage.submit(queue_ttl_ms=500.0)[1]
    assert isinstance(short, Ticket) and short.expires_ms - short.arrived_ms == 500.0


def test_who_goes_away_frees_its_place_at_once():
    stage = Stage(queue=QueueSettings(max_requests=1))
    stage.go(), stage.go()
    _, ticket = stage.submit()
    assert refusal(stage).message == "the queue is full"
    assert isinstance(ticket, Ticket)
    stage.flow.withdraw(ticket, QueueOutcome.EVICTED_CONTEXT_CANCELLED, stage.now)
    assert stage.go().refused is None
    waiting = {"fairness_id": "default-flow", "priority": "0", "inference_pool": "pool"}
    waiting |= {"model_name": "m", "target_model_name": "m"}
    assert stage.value("llm_d_epp_flow_control_queue_size", **waiting) == 1.0
    assert stage.value("llm_d_epp_flow_control_queue_bytes", **waiting) == 400.0


def test_a_full_queue_of_an_empty_pool_answers_503():
    stage = Stage((), queue=QueueSettings(max_requests=1))
    stage.go()
    refused = refusal(stage)
    assert isinstance(refused, NoEndpoints) and refused.retry_after_s


def test_a_request_of_higher_value_takes_a_place():
    stage = Stage(queue=QueueSettings(max_requests=1))
    stage.go(), stage.go()
    low = stage.go(priority=-1)
    high = stage.go(priority=3)
    assert low.refused is not None and low.refused.dropped_reason == "evicted-priority"
    assert low.refused.status == 429 and high.refused is None


# ---- tenants


def test_a_token_budget_refuses_and_says_when_to_come_again():
    limits = {"spender": TenantLimits(tokens=1_000.0, window_ms=10_000.0)}
    stage = Stage(tenants=limits, room=RoomSettings())
    client = stage.go("spender", tokens=900, max_tokens=100)
    stage.finish(client, after=0.0, output=600.0)
    refused = refusal(stage, "spender")
    assert refused.dropped_reason == "rejected-tenant-limit" and refused.status == 429
    assert refused.retry_after_s == pytest.approx(5.01)
    assert stage.go("other").placement, "a limit never leaks into another tenant"
    stage.now += 5_100.0
    assert stage.go("spender").placement


def test_active_sequences_hold_the_tenant_and_nobody_else():
    stage = Stage(default_tenant=TenantLimits(active_sequences=2), room=RoomSettings())
    first = stage.go("a", sequences=2)
    held, ticket = stage.submit("a")
    assert isinstance(ticket, Ticket) and ticket.why == "a limit of its tenant: active sequences"
    other = stage.go("b")
    stage.advance()
    assert other.placement and held.placement is None
    stage.finish(first)
    stage.advance()
    assert held.placement
    assert stage.go("c", sequences=9).placement, "who has nothing in flight may always begin"


def test_a_share_of_the_queue():
    stage = Stage(default_tenant=TenantLimits(queue_share=0.5), queue=QueueSettings(max_requests=4))
    stage.go(), stage.go()
    stage.go("a"), stage.go("a")
    assert refusal(stage, "a").dropped_reason == "rejected-tenant-limit"
    assert stage.go("b").refused is None


def test_a_ceiling_of_max_tokens():
    stage = Stage(default_tenant=TenantLimits(max_tokens=50))
    refused = refusal(stage, max_tokens=51)
    assert isinstance(refused, BadRequest) and refused.param == "max_tokens"
    assert refused.message == "max_tokens is 51; this tenant may ask for at most 50"
    assert stage.go(max_tokens=50).placement


def test_a_bully_waits_behind_what_it_was_served():
    stage = Stage(ADDRESSES[:1])
    running = stage.go("bully", tokens=30_000)
    queued = [stage.go("bully", tokens=30_000) for _ in range(3)]
    chats = [stage.go("chat", tokens=300) for _ in range(5)]
    for expected in (queued[0], *chats, queued[1]):
        stage.finish(running)
        stage.advance()
        assert expected.placement is not None
        running = expected


def test_what_a_request_really_took_corrects_its_charge():
    stage = Stage(room=RoomSettings())
    client = stage.go("a", tokens=1_000, max_tokens=500)
    assert client.placement is not None and client.placement.charge is not None
    charge = client.placement.charge
    prices = charge.prices
    assert charge.flow.counter == pytest.approx(charge.cost)
    stage.finish(client, output=40.0)
    assert charge.flow.counter == pytest.approx(prices.cost(1_000.0, 1_000.0, 40.0, 1.0))
    assert charge.account.sequences == 0
    stage.pool.finish(client.placement, Outcome.SERVED, stage.now)
    stage.flow.finished(client.placement, stage.now)
    assert charge.account.sequences == 0, "an end counts once"


def test_an_aborted_request_pays_for_the_time_it_generated():
    stage = Stage(room=RoomSettings())
    soon, late = stage.go("soon", max_tokens=4_000), stage.go("late", max_tokens=4_000)
    assert soon.placement and late.placement and soon.placement.charge and late.placement.charge
    stage.finish(soon, after=100.0)
    stage.finish(late, after=30_000.0)
    assert soon.placement.charge.flow.counter < 0.1 * late.placement.charge.flow.counter


# ---- saturation and shedding


def sampled(stage: Stage, *, waiting: float, kv: float) -> None:
    for endpoint in list(stage.pool.table):
        sample = EngineSample(taken_ms=stage.now, running=3.0, waiting=waiting, kv_usage=kv)
        stage.pool.apply_sample(endpoint, sample, stage.now)


def test_the_utilization_detector_has_llm_ds_formula():
    stage = Stage()
    detector = UtilizationDetector(UtilizationDetectorParameters())
    assert detector(stage.pool, stage.now) == 0.0, "not heard from, and nothing of ours there"
    stage.go()
    assert detector(stage.pool, stage.now) == 0.5, "not heard from counts as full where we have placed something"
    sampled(stage, waiting=2.0, kv=0.2)
    assert detector(stage.pool, stage.now) == pytest.approx(0.4)
    sampled(stage, waiting=2.0, kv=0.6)
    assert detector(stage.pool, stage.now) == pytest.approx(0.75)
    assert detector(Stage(()).pool, 0.0) == 1.0


@pytest.mark.parametrize(("mode", "expected"), [("requests", 0.5), ("tokens", 0.35), ("hybrid", 0.75)])
def test_the_concurrency_detector_has_llm_ds_formula(mode: Any, expected: float):
    stage = Stage(room=RoomSettings())
    stage.pool.table.requests[:] = [3.0, 1.0]
    stage.pool.table.uncached_tokens[:] = [10.0, 60.0]
    parameters = ConcurrencyDetectorParameters(max_concurrency=4.0, max_token_concurrency=100.0, concurrency_mode=mode)
    if mode == "hybrid":
        expected = (0.75 + 0.6) / 2
    assert ConcurrencyDetector(parameters)(stage.pool, stage.now) == pytest.approx(expected)


def test_a_saturated_pool_dispatches_nothing_below_its_ceiling():
    detector = ConcurrencyDetector(ConcurrencyDetectorParameters(max_concurrency=2.0))
    stage = Stage(detector=detector, ceiling=HoldbackParameters(min_ceiling=0.5), room=RoomSettings())
    stage.flow.queue.band(5)
    first = stage.go(priority=5)
    second = stage.go(priority=5)
    low, ticket = stage.submit(priority=0)
    assert first.placement and second.placement
    assert isinstance(ticket, Ticket) and ticket.why == "the pool is saturated"
    high = stage.go(priority=5)
    stage.advance()
    assert high.placement is not None and low.placement is None
    stage.finish(first)
    stage.finish(second)
    stage.advance()
    assert low.placement is not None


def test_soft_reflective_ceilings_let_some_through():
    gate = Gate(lambda pool, now: 0.0, ReflectiveParameters())
    assert gate.open(0, [1, 0], 0.49) and not gate.open(0, [1, 0], 0.75)
    passed = [gate.open(0, [1, 0], 0.75) for _ in range(9)]
    assert sum(passed) == 3, "one of round(0.75 / 0.25)"
    assert gate.open(1, [1, 0], 0.99) and not gate.open(1, [1, 0], 1.0)
    assert not any(gate.open(0, [1, 0], 1.0) for _ in range(50))


def test_sheddable_requests_are_shed_with_the_admitters_probability():
    draws = iter((0.20, 0.29))
    admitter = ProbabilisticAdmitter(ProbabilisticParameters(), lambda: next(draws))
    stage = Stage(admitters=(admitter,), room=RoomSettings())
    sampled(stage, waiting=1.23, kv=0.0)  # (1.23 / 5)^5 × 300 = 0.270
    refused = refusal(stage, priority=-1)
    assert refused.message == "system saturated, sheddable request dropped"
    assert refused.dropped_reason == "rejected-saturated"
    assert stage.go(priority=-1).placement
    assert stage.go(priority=0).placement, "nothing is drawn for what is not sheddable"


def test_the_slo_admitter_sheds_what_cannot_be_in_time():
    stage = Stage(predicts=True, admitters=(LatencySloAdmitter(),), room=RoomSettings(start_within_ms=1e9))
    assert stage.go(priority=-1, slo_ttft_ms=1e-6).placement, "an idle endpoint admits"
    for _ in range(4):
        stage.go(tokens=20_000)
    assert refusal(stage, priority=-1, slo_ttft_ms=50.0).status == 429
    assert stage.go(priority=-1, slo_ttft_ms=1e9).placement
    assert stage.go(priority=-1).placement
    assert stage.go(priority=0, slo_ttft_ms=50.0).placement


def test_sheddable_requests_may_be_dropped_instead_of_held():
    detector = ConcurrencyDetector(ConcurrencyDetectorParameters(max_concurrency=1.0))
    stage = Stage(detector=detector, drop_sheddable=True)
    stage.go(), stage.go()
    assert refusal(stage, priority=-1).dropped_reason == "rejected-saturated"
    assert stage.go().refused is None


# ---- retries


def test_fallbacks_are_named_while_the_budget_lasts():
    stage = Stage(room=RoomSettings(), retries=RetrySettings(share=0.5, burst=2.0))
    assert "," in stage.submit()[1].destination  # type: ignore[union-attr]
    stage.flow.retried(3)
    stage.flow.retried(9)
    assert stage.flow.budget.left == 0.0
    found = [stage.submit()[1].destination.count(",") for _ in range(4)]  # type: ignore[union-attr]
    assert found == [0, 0, 1, 1]


def test_fallbacks_without_room_are_not_named():
    stage = Stage()
    stage.go()
    assert "," not in stage.submit()[1].destination  # type: ignore[union-attr]


# ---- what is shown


def test_the_queue_is_seen_also_while_the_pool_is_empty():
    stage = Stage(())
    stage.go()
    stage.now += 3_000.0
    page = generate_latest(stage.metrics.registry).decode()
    assert 'poolpilot_flow_control_oldest_wait_seconds{inference_pool="pool"} 3.0' in page
    assert 'llm_d_epp_flow_control_pool_saturation{inference_pool="pool",stage="effective"} 1.0' in page
    assert 'llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="pool",priority="0"} 0.0002' in page


def test_the_predicted_wait_is_the_queue_over_the_pace():
    stage = Stage(ADDRESSES[:1])
    clients = [stage.go(max_tokens=1) for _ in range(21)]
    for client in clients[:11]:
        stage.finish(client, after=200.0)
        stage.advance()
    assert len(stage.flow.queue) == 9
    assert stage.flow.predicted_wait_ms(stage.now) == pytest.approx(9 * 200.0, rel=0.25)
    assert stage.flow.retry_after_s(stage.now) == pytest.approx(1.8, rel=0.25)


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


@pytest.mark.parametrize(("ahead_ms", "slot"), [(900.0, 0), (1_100.0, 1)])
def test_a_policy_may_prefer_an_endpoint_with_some_more_work_ahead(ahead_ms: float, slot: int):
    stage = Stage(room=RoomSettings(start_within_ms=250.0))
    stage.go(subset=ADDRESSES[:1])
    stage.pool.table.free_at_ms[0] = stage.now + ahead_ms
    client = stage.go()
    assert client.placement is not None
    assert client.placement.booking.endpoint.slot == slot


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
