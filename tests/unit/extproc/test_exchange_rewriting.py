"""Rules of a pool on an exchange: the model in the request, its name in the answer, the priority."""

from __future__ import annotations

import pytest

from exchange_desk import (
    BUFFERED,
    DUPLEX,
    NONE,
    PARTIAL,
    STREAMED,
    Desk,
    chat,
    joined,
    plain,
    set_headers,
)
from poolpilot_picker.extproc.exchange import ExchangeSettings
from poolpilot_picker.extproc.held_bodies import HeldBodies
from poolpilot_picker.extproc.replies import BodyMode, BodyReply, HeadersReply, ModeOverride, StreamedReply
from poolpilot_picker.requests import ModelTargets, PoolRules

RULES = PoolRules(
    priorities={"urgent": 9},
    exact={"m": ModelTargets("canary", [("target", 1)])},
)
EVENT = b'data: {"model":"target","choices":[]}\n\n'
BACK = b'data: {"model":"m","choices":[]}\n\n'


def desk(*modes: int, rules: PoolRules = RULES) -> Desk:
    return Desk(*modes, settings=ExchangeSettings(rules=rules))


def placed(one: Desk) -> None:
    """A request for model m, placed."""
    one.headers()
    one.body(chat())
    assert one.exchange.placement is not None
    assert one.exchange.placement.request.target_model == "target"


def test_the_request_in_every_mode_that_waits_for_its_body() -> None:
    for mode in (BUFFERED, PARTIAL):
        one = desk(mode, NONE)
        one.headers()
        [reply] = one.body(chat())
        assert isinstance(reply, BodyReply)
        assert reply.body == chat(model="target")
        assert set_headers(reply.mutation)["content-length"] == str(len(chat(model="target")))
    one = desk(DUPLEX, DUPLEX)
    one.headers()
    [_, *chunks] = one.body(chat())
    assert joined(chunks, request=True) == (chat(model="target"), True)
    assert one.by_label("llm_d_epp_model_rewrite_decisions_total", "target_model") == {"target": 1}
    assert one.by_label("llm_d_epp_model_rewrite_decisions_total", "model_rewrite_name") == {"canary": 1}


def test_a_model_without_a_rule_stays() -> None:
    one = desk(BUFFERED, NONE)
    one.headers()
    [reply] = one.body(chat(model="other"))
    assert isinstance(reply, BodyReply)
    assert reply.body is None
    assert plain(one.answer())


def test_what_cannot_be_rewritten_goes_on_as_it_is_and_is_counted() -> None:
    one = desk(PARTIAL, NONE)
    body = chat("word " * 30_000)
    one.headers(content_length=str(len(body)))
    [reply] = one.body(body[:65_536], end=False)
    assert isinstance(reply, BodyReply)
    assert reply.body is None
    assert one.exchange.placement is not None
    assert one.exchange.placement.request.target_model == "m", "what the engine will be asked for"
    assert one.events() == {"model-not-rewritten": 1}
    assert plain(one.answer())


def test_the_answer_in_full_duplex() -> None:
    one = desk(DUPLEX, DUPLEX)
    placed(one)
    one.answer(content_type="text/event-stream")
    assert not one.exchange.passing
    replies = [*one.answer_body(EVENT[:12]), *one.answer_body(EVENT[12:]), *one.answer_body(b"", end=True)]
    assert joined(replies, request=False) == (BACK, True)
    one.close()
    one.settled()


def test_the_answer_where_its_body_is_not_sent() -> None:
    """The data plane is asked for the body, and told that its length may be another."""
    one = desk(PARTIAL, NONE)
    placed(one)
    [head] = one.answer(content_length="100")
    assert isinstance(head, HeadersReply)
    assert head.mode_override == ModeOverride(request=BodyMode.BUFFERED_PARTIAL, response=BodyMode.STREAMED)
    assert head.mutation.remove_headers == ("content-length",)
    [reply] = one.answer_body(b'{"id":1}')
    assert reply == BodyReply(request=False)
    [reply] = one.answer_body(b'{"model":"target"}', end=True)
    assert isinstance(reply, BodyReply)
    assert reply.body == b'{"model":"m"}' and not reply.mutation.set_headers


def test_the_answer_in_mode_streamed_by_chunk() -> None:
    one = desk(BUFFERED, STREAMED)
    placed(one)
    [head] = one.answer()
    assert isinstance(head, HeadersReply)
    assert head.mode_override is None and head.mutation.remove_headers == ()
    bodies = [one.answer_body(EVENT[:13]), one.answer_body(EVENT[13:], end=True)]
    assert [reply.body for [reply] in bodies if isinstance(reply, BodyReply)] == [b"data: {", BACK[7:]]


def test_the_answer_in_mode_buffered() -> None:
    one = desk(BUFFERED, BUFFERED)
    placed(one)
    assert plain(one.answer(content_length="18"))
    # Before trailers the whole body comes without the end of the stream.
    [reply] = one.answer_body(b'{"model":"target"}', end=False)
    assert isinstance(reply, BodyReply)
    assert reply.body == b'{"model":"m"}'
    assert set_headers(reply.mutation) == {"content-length": "13"}


def test_trailers_after_a_part_that_was_held_back() -> None:
    one = desk(DUPLEX, DUPLEX)
    placed(one)
    one.answer()
    assert joined(one.answer_body(b'{"mod'), request=False) == (b"{", False)
    [kept, trailers] = one.answer_trailers()
    assert kept == StreamedReply(request=False, chunk=b'"mod', end_of_stream=False)
    assert plain([trailers])


@pytest.mark.parametrize("fields", [{"content_encoding": "gzip"}, {"content_type": "audio/mpeg"}])
def test_an_answer_that_is_no_text_passes(fields: dict[str, str]) -> None:
    one = desk(PARTIAL, NONE)
    placed(one)
    assert plain(one.answer(**fields))


@pytest.mark.parametrize(("model", "asked"), [("m", "identity"), ("other", None)])
def test_an_answer_that_must_be_read_is_asked_for_uncompressed(model: str, asked: str | None) -> None:
    one = desk(DUPLEX, DUPLEX)
    one.headers(accept_encoding="gzip, br")
    [headers, *_] = one.body(chat(model=model))
    assert isinstance(headers, HeadersReply)
    assert set_headers(headers.mutation).get("accept-encoding") == asked
    one = desk(BUFFERED, NONE)
    one.headers(accept_encoding="gzip, br")
    [reply] = one.body(chat(model=model))
    assert isinstance(reply, BodyReply)
    assert set_headers(reply.mutation).get("accept-encoding") == asked


def test_an_answer_that_says_it_is_not_compressed_is_read() -> None:
    one = desk(DUPLEX, DUPLEX)
    placed(one)
    one.answer(content_encoding="identity")
    assert joined(one.answer_body(EVENT, end=True), request=False) == (BACK, True)


def test_where_the_body_cannot_be_had_it_is_counted() -> None:
    one = desk(DUPLEX, NONE)
    placed(one)
    assert plain(one.answer())
    assert one.events() == {"model-not-renamed": 1}


def test_a_request_without_a_model() -> None:
    one = desk(BUFFERED, NONE, rules=PoolRules(generic=ModelTargets("all", [("target", 1)])))
    one.headers()
    [reply] = one.body(b'{"messages":[{"role":"user","content":"a"}]}')
    assert isinstance(reply, BodyReply)
    assert reply.body == b'{"model":"target","messages":[{"role":"user","content":"a"}]}'
    assert plain(one.answer()), "the client has named none that could be put back"


@pytest.mark.parametrize("name", ["x_llm_d_inference_objective", "x_gateway_inference_objective"])
def test_the_priority_of_an_objective(name: str) -> None:
    one = desk(BUFFERED, NONE)
    for objective, priority in (("urgent", 9), ("unknown", 0)):
        one.renew()
        one.headers(**{name: objective})
        one.body(chat())
        assert one.exchange.placement is not None
        assert one.exchange.placement.request.priority == priority
        one.close()
    assert one.by_label("llm_d_epp_request_total", "priority") == {"9": 1, "0": 1}


def test_a_pool_that_holds_too_much_places_on_what_has_arrived() -> None:
    """The rest of the body passes through; what was held is held no more, however the exchange ends."""
    bodies = HeldBodies(64)
    one = Desk(DUPLEX, DUPLEX, settings=ExchangeSettings(bodies=bodies))
    one.headers()
    assert one.body(chat()[:40], end=False) == []
    waiting = one.exchange
    one.renew()
    one.headers()
    replies = one.body(chat()[:40], end=False)
    assert joined(replies[1:], request=True) == (chat()[:40], False)
    assert bodies.bytes == 40, "of the other"
    assert joined(one.body(chat()[40:]), request=True) == (chat()[40:], True)
    waiting.closed(now=one.now)
    assert bodies.bytes == 0
    one.renew()
    one.headers()
    assert one.body(chat()[:8], end=False) == []
    assert one.exchange.give_up(one.now), "refused"
    one.close()
    assert bodies.bytes == 0
