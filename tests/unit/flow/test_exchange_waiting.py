"""An exchange whose request waits: what it says when, in each body mode, and that its place is free when it ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from exchange_desk import NONE, PARTIAL, Desk, chat, joined, message_of, picked, refused
from poolpilot_picker.extproc.exchange import ExchangeSettings
from poolpilot_picker.extproc.held_bodies import HeldBodies
from poolpilot_picker.extproc.replies import BodyReply, HeadersReply, PatienceReply, Reply, TrailersReply
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.flow_settings import FlowSettings
from poolpilot_picker.flow.queue import QueueSettings
from poolpilot_picker.flow.room import RoomSettings
from poolpilot_picker.flow.tenants import TenantLimits
from poolpilot_picker.requests import ModelTargets, PoolRules
from poolpilot_picker.requests.headers import DROPPED_REASON, RETRY_AFTER

ADDRESS = "10.0.0.1:8000"


class Waiting:
    """A desk whose one endpoint takes one request at a time, and holds one already."""

    def __init__(self, mode: int | None = PARTIAL, settings: ExchangeSettings | None = None, **queue: Any) -> None:
        response = NONE if mode is not None else None
        self.desk = desk = Desk(mode, response, settings=settings, addresses=(ADDRESS,))
        bounds = FlowSettings(room=RoomSettings(max_requests=1), queue=QueueSettings(**queue))
        self.flow = desk.pool.flow = FlowControl(desk.pool, bounds)
        self.said: list[Reply] = []
        self.renew()
        desk.headers()
        desk.body(chat())
        self.before = desk.exchange
        assert self.before.placement is not None
        self.renew()

    def renew(self) -> None:
        """Another exchange, on a stream that can be spoken on."""
        self.desk.renew().outlet = self

    def say(self, replies: list[Reply]) -> None:
        self.said += replies

    def free(self) -> None:
        """The one that is in flight ends."""
        self.before.closed(now=self.desk.now)
        self.flow.advance(self.desk.now)


def test_a_partial_body_asks_for_patience_and_is_answered_when_it_is_placed():
    stage = Waiting(ttl_ms=4_000.0, no_endpoint_ttl_ms=4_000.0)
    stage.desk.headers()
    [patience] = stage.desk.body(chat())
    assert isinstance(patience, PatienceReply)
    assert patience.milliseconds == 10_000
    assert stage.said == []
    stage.desk.now += 100.0
    stage.free()
    [reply] = stage.said
    assert isinstance(reply, BodyReply) and picked(reply) == ADDRESS
    assert stage.desk.exchange.placement is not None
    stage.desk.answer()
    stage.desk.close()
    stage.desk.settled()


def test_full_duplex_says_nothing_until_then_and_passes_what_came_meanwhile():
    stage = Waiting(None)
    stage.desk.headers()
    body = chat()
    assert stage.desk.body(body[:20], end=False) == []
    assert stage.desk.body(body[20:], end=False) == []
    assert stage.desk.trailers() == []
    stage.free()
    head, *rest = stage.said
    assert isinstance(head, HeadersReply) and picked(head) == ADDRESS
    assert rest[-1] == TrailersReply(request=True)
    assert joined(rest[:-1], request=True) == (body, False)


def test_full_duplex_ends_its_body_where_the_client_did():
    stage = Waiting(None)
    stage.desk.headers()
    body = chat()
    assert stage.desk.body(body) == []
    stage.free()
    assert joined(stage.said[1:], request=True) == (body, True)


def test_a_body_that_is_placed_on_its_beginning_is_held_with_its_rest():
    stage = Waiting(None, ExchangeSettings(max_body_bytes=200))
    stage.desk.headers()
    body = chat("x" * 250)
    assert stage.desk.body(body[:210], end=False) == []
    assert len(stage.flow.queue) == 1
    assert stage.desk.body(body[210:]) == []
    stage.free()
    assert joined(stage.said[1:], request=True) == (body, True)


def test_a_body_that_grows_while_it_waits_is_turned_away_in_time():
    stage = Waiting(None, ExchangeSettings(max_body_bytes=200))
    stage.desk.headers()
    stage.desk.body(chat("x" * 250)[:210], end=False)
    assert refused(stage.desk.body(b"y" * 300, end=False)).status == 429
    assert len(stage.flow.queue) == 0
    stage.free()
    assert stage.said == []


def test_what_waits_grows_no_further_than_its_pool_may_hold():
    bodies = HeldBodies(1_000)
    stage = Waiting(None, ExchangeSettings(max_body_bytes=200, bodies=bodies))
    stage.desk.headers()
    body = chat("x" * 250)
    stage.desk.body(body[:210], end=False)
    assert stage.desk.body(body[210:220], end=False) == [], "there is room"
    bodies.hold(1_000)
    assert stage.desk.body(b"", end=False) == [], "nothing more is to be held"
    assert refused(stage.desk.body(body[220:], end=False)).status == 429
    assert len(stage.flow.queue) == 0
    assert bodies.bytes == 1_000, "what the others hold"
    stage.free()
    assert stage.said == []


def test_trailers_in_place_of_a_body_wait_as_well():
    stage = Waiting(PARTIAL)
    stage.desk.headers()
    stage.desk.body(chat())
    assert stage.desk.trailers() == []
    stage.free()
    assert [type(reply) for reply in stage.said] == [BodyReply, TrailersReply]


def test_whose_time_is_over_is_told_so_with_all_that_a_client_can_use():
    stage = Waiting(ttl_ms=4_000.0)
    stage.desk.headers()
    stage.desk.body(chat())
    stage.desk.now += 4_000.0
    stage.flow.advance(stage.desk.now)
    reply = refused(stage.said)
    fields = dict(reply.set_headers)
    assert (reply.status, fields[DROPPED_REASON]) == (429, "rejected-ttl-expired")
    assert 1 <= int(fields[RETRY_AFTER]) <= 60
    text = "inference error: ResourceExhausted - request timed out in queue: it waited 4.0 s"
    assert message_of(reply).startswith(text)
    stage.free()
    assert len(stage.said) == 1
    stage.desk.close()
    stage.desk.settled()


def test_the_clients_own_patience_counts():
    stage = Waiting()
    stage.desk.headers(x_llm_d_inference_ttl="1.5s")
    stage.desk.body(chat())
    stage.desk.now += 1_500.0
    stage.flow.advance(stage.desk.now)
    assert refused(stage.said).status == 429


@pytest.mark.parametrize("how", ["close", "answer"])
def test_a_client_that_goes_away_frees_the_place_at_once(how: str):
    stage = Waiting(max_requests=1)
    stage.desk.headers()
    stage.desk.body(chat())
    assert len(stage.flow.queue) == 1
    if how == "close":
        stage.desk.close()
    else:  # the data plane answers itself, a time-out of its own
        stage.desk.answer("504", attributes={"response.code_details": "timeout"})
        assert len(stage.flow.queue) == 0
        stage.desk.close()
    assert len(stage.flow.queue) == 0
    stage.free()
    assert stage.said == []
    reasons = stage.desk.by_label("poolpilot_requests_refused_total", "reason")
    assert reasons == {"rejected-context-cancelled": 1}
    stage.desk.settled()


def test_a_picker_that_shuts_down_answers_who_waits():
    stage = Waiting()
    stage.desk.headers()
    stage.desk.body(chat())
    reply = refused(stage.desk.exchange.give_up(stage.desk.now) or [])
    assert reply.status == 503
    assert dict(reply.set_headers)[DROPPED_REASON] == "rejected-shutting-down"
    assert len(stage.flow.queue) == 0
    stage.desk.close()
    stage.free()
    assert stage.said == []


def test_without_somebody_to_speak_through_nothing_waits():
    stage = Waiting()
    stage.desk.exchange.outlet = None
    stage.desk.headers()
    [reply] = stage.desk.body(chat())
    assert picked(reply) == ADDRESS


def test_a_request_without_a_body_never_waits():
    stage = Waiting()
    [reply] = stage.desk.headers("/v1/models", end=True, method="GET")
    assert picked(reply) == ADDRESS


def test_a_fault_in_choosing_costs_the_request_that_waited_nothing_but_the_choice():
    stage = Waiting()
    stage.desk.headers()
    stage.desk.body(chat())
    stage.desk.policy.error = RuntimeError("a fault")
    stage.free()
    [reply] = stage.said
    assert picked(reply) == ADDRESS
    assert stage.desk.events() == {"placing-failed": 1}


def test_a_receipt_tells_how_long_and_for_what_a_request_has_waited():
    stage = Waiting()
    stage.desk.headers(x_poolpilot_receipt="1")
    stage.desk.body(chat())
    stage.desk.now += 250.0
    stage.free()
    [receipt] = stage.desk.pool.receipts.newest(1)
    assert receipt.queued_ms == 250.0
    assert receipt.queued_for == "no endpoint has room: requests"


@pytest.mark.parametrize("mode", [PARTIAL, None])
def test_a_limit_on_the_output_is_put_into_the_body(mode: int | None):
    """With the model of a rule beside it, and when the request has waited."""
    rules = PoolRules(priorities={}, exact={"m": ModelTargets("canary", [("target", 1)])})
    stage = Waiting(mode, ExchangeSettings(rules=rules))
    stage.flow.tenants.replace(TenantLimits(max_tokens=50, clamp=True), {})
    stage.desk.headers(content_length=str(len(chat(max_tokens=99))))
    stage.desk.body(chat(max_tokens=99))
    stage.free()
    wanted = chat(model="target", max_tokens=50)
    [first, *rest] = stage.said
    sent = first.body if isinstance(first, BodyReply) else joined(rest, request=True)[0]
    assert sent == wanted
    assert ("content-length", str(len(wanted))) in first.mutation.set_headers  # type: ignore[union-attr]


def test_a_limit_alone_lets_the_answer_pass_unread():
    desk = Desk(None)
    desk.pool.flow = FlowControl(desk.pool, FlowSettings(default_tenant=TenantLimits(max_tokens=50, clamp=True)))
    desk.headers()
    desk.exchange.outlet = Waiting()
    [_, *rest] = desk.body(chat())
    assert msgspec.json.decode(joined(rest, request=True)[0])["max_tokens"] == 50
    desk.answer()
    assert desk.exchange.passing


@pytest.mark.parametrize("mode", [PARTIAL, None])
def test_bodies_that_wait_count_until_they_go_and_beyond_the_budget_nobody_begins_to_wait(mode: int | None):
    # In full duplex a body is held before it is known that it must wait.
    bodies = HeldBodies(2 * len(chat()) + (mode is None))
    stage = Waiting(mode, ExchangeSettings(bodies=bodies))
    stage.flow.bodies = bodies
    first, second = stage.desk.exchange, None
    for size in (1, 2):
        stage.desk.headers()
        stage.desk.body(chat())
        assert bodies.bytes == size * len(chat())
        second = stage.desk.exchange
        stage.renew()
    stage.desk.headers()
    no = refused(stage.desk.body(chat()))
    assert (no.status, dict(no.set_headers)[DROPPED_REASON]) == (429, "rejected-saturated")
    assert bodies.bytes == 2 * len(chat())
    assert second is not None
    second.closed(now=stage.desk.now)
    assert bodies.bytes == len(chat())
    stage.free()
    assert bodies.bytes == 0
    first.closed(now=stage.desk.now)
    stage.desk.settled()
