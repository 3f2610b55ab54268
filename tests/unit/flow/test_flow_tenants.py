"""What tenants may have, what a request is charged, and the retry budget."""

from __future__ import annotations

import pytest

from flow_stage import ADDRESSES, Stage, refusal
from poolpilot_picker.errors import BadRequest
from poolpilot_picker.flow.holding import Ticket
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.queue import QueueSettings
from poolpilot_picker.flow.retries import RetrySettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.tenants import TenantLimits
from poolpilot_picker.requests.request import RequestKind


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
    assert refusal(stage, unlimited=True).message == "max_tokens is unlimited; this tenant may ask for at most 50"
    assert stage.go(max_tokens=50).placement


def test_who_waits_when_the_budget_is_spent_goes_on_waiting():
    """A crowd that came while there were tokens overdraws them by one request, not by all."""
    limits = {"spender": TenantLimits(tokens=1_000.0, window_ms=10_000.0)}
    stage = Stage(ADDRESSES[:1], tenants=limits)
    running = stage.go("spender", tokens=100, max_tokens=10)
    crowd = [stage.go("spender", tokens=1_500, max_tokens=10) for _ in range(3)]
    stage.finish(running, output=0.0, after=0.0)
    stage.advance()
    assert [one.placement is not None for one in crowd] == [True, False, False]
    stage.finish(crowd[0], output=0.0, after=0.0)
    other = stage.go("other")
    stage.advance()
    assert other.placement, "and holds up nobody else"
    stage.finish(other, after=0.0)
    stage.advance()
    left = 1_000.0 - 100.0 - 1_500.0
    assert stage.flow.next_ms == pytest.approx(stage.now + (1.0 - left) * 10.0)
    stage.advance(stage.flow.next_ms - stage.now)
    assert [one.placement is not None for one in crowd] == [True, True, False]


def test_a_ceiling_that_lowers():
    stage = Stage(default_tenant=TenantLimits(max_tokens=50, clamp=True), room=RoomSettings())

    def asked(**fields: object) -> tuple[int | None, int | None]:
        client = stage.go(**fields)  # type: ignore[arg-type]
        assert client.placement is not None
        return client.placement.request.max_tokens, client.placement.request.ceiling

    assert asked(max_tokens=51) == (50, 50)
    assert asked(max_tokens=50) == (50, None)
    assert asked() == (50, 50), "a chat without a limit gets it"
    refused = refusal(stage, max_tokens=51, complete=False)
    assert refused.status == 400, "what cannot be rewritten is refused"
    assert asked(complete=False) == (None, None)
    assert asked(kind=RequestKind.COMPLETIONS) == (None, None), "its default is small"
    assert asked(kind=RequestKind.COMPLETIONS, unlimited=True) == (50, 50)
    assert stage.value("poolpilot_flow_control_clamped_total", inference_pool="pool") == 3.0


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


def test_fallbacks_are_named_while_the_budget_lasts():
    stage = Stage(room=RoomSettings(), retries=RetrySettings(share=0.5, burst=2.0))
    assert "," in stage.submit()[1].destination  # type: ignore[union-attr]
    stage.flow.retried(3)
    assert stage.flow.budget.left == 0.0
    placed = [stage.submit()[1] for _ in range(4)]
    assert [one.destination.count(",") for one in placed] == [0, 0, 1, 1]  # type: ignore[union-attr]
    assert [one.once for one in placed] == [True, True, False, False]  # type: ignore[union-attr]


def test_what_was_retried_beyond_the_budget_is_owed_up_to_a_bound():
    stage = Stage(room=RoomSettings(), retries=RetrySettings(share=0.5, burst=2.0))
    for _ in range(20):
        stage.flow.retried(3)
    assert stage.flow.budget.left == -20.0
    placed = [stage.submit()[1].once for _ in range(44)]  # type: ignore[union-attr]
    assert placed == [True] * 42 + [False] * 2


def test_retries_of_clients_take_from_the_budget():
    stage = Stage(room=RoomSettings(), retries=RetrySettings(share=0.5, burst=2.0))
    for _ in range(3):
        stage.submit(client_retries=1)
    assert stage.flow.budget.left < 1.0
    assert stage.submit()[1].once  # type: ignore[union-attr]
    name = "poolpilot_flow_control_client_retries_total"
    assert stage.value(name, inference_pool="pool", sign="retry-count") == 3.0
