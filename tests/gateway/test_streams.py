"""Streamed answers arrive whole, however the picker watches them; and whoever hangs up, nothing stays booked."""

from __future__ import annotations

import asyncio

import pytest

from gateway_client import Http1
from gateway_pods import sse_events
from gateway_site import Lane, chat

MODES = ["partial", "buffered", "duplex"]
CHUNKS = 2_000
WHOLE = b"".join(sse_events(CHUNKS))


@pytest.mark.parametrize(
    ("mode", "observe", "gap_ms"),
    [
        *((mode, observe, 0) for mode in MODES for observe in (False, True)),
        ("partial", True, 1),
        ("duplex", False, 1),
    ],
)
async def test_two_thousand_chunks_arrive_intact(lane: Lane, mode: str, observe: bool, gap_ms: int) -> None:
    """Response body NONE (unwatched), NONE overridden to STREAMED (watched), FULL_DUPLEX_STREAMED (duplex)."""
    await lane.renew(lane.pods.addresses, observe=observe)
    done = await lane.request(mode, chat(1024, stream=True), script=f"*=sse.{CHUNKS}.{gap_ms}")
    assert done.response.status == 200 and done.response.complete
    assert done.response.body == WHOLE
    assert gap_ms == 0 or done.response.chunks > CHUNKS / 2, "chunks are not held back and glued together"
    [messages] = done.messages
    chunks = messages.count("response_body")
    if observe:
        assert chunks > 0
        assert gap_ms == 0 or chunks > CHUNKS / 2, "nor on their way to the picker"
    elif mode != "duplex":
        assert messages == ["request_headers", "request_body", "response_headers", "end"]
    assert lane.picker.outcomes() == {"served": 1}
    if observe:
        lane.learned = {"lengths": 1, "token_scale": 1}


@pytest.mark.parametrize("observe", [False, True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("mode", MODES)
async def test_many_streams_at_once(lane: Lane, mode: str, observe: bool) -> None:
    count, chunks = 40, 50
    await lane.renew(lane.pods.addresses, observe=observe)

    async def one() -> None:
        done = await lane.request(mode, chat(512, stream=True), script=f"*=sse.{chunks}.5")
        assert done.response.body == b"".join(sse_events(chunks))

    await asyncio.gather(*(one() for _ in range(count)))
    assert lane.picker.outcomes() == {"served": count}
    if observe:
        lane.learned = {"lengths": count, "token_scale": count}


@pytest.mark.parametrize("observe", [False, True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("mode", MODES)
async def test_http2_streams(lane: Lane, mode: str, observe: bool) -> None:
    await lane.renew(lane.pods.addresses, observe=observe)
    done = await lane.request(mode, chat(1024, stream=True), script="*=sse.500.0", protocol="http2")
    assert done.response.complete and done.response.body == b"".join(sse_events(500))
    if observe:
        lane.learned = {"lengths": 1, "token_scale": 1}


@pytest.mark.parametrize("observe", [False, True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_in_one_piece(lane: Lane, mode: str, observe: bool) -> None:
    """Not streamed: the pod's bytes and its content-length."""
    await lane.renew(lane.pods.addresses, observe=observe)
    done = await lane.request(mode, chat(1024))
    assert done.response.status == 200 and done.response.complete
    assert done.response.json()["length"] == 1024


@pytest.mark.parametrize("mode", MODES)
async def test_http1_trailers_reach_the_client(lane: Lane, mode: str) -> None:
    tid, sent = lane.headers(script="*=trailers")
    async with await Http1.connect(lane.port(mode)) as connection:
        response = await connection.request(headers={**sent, "te": "trailers"}, body=chat())
    assert (response.body, response.complete, response.trailers) == (b"hello", True, {"x-checksum": "42"})
    await lane.picker.until_idle()
    assert "response_trailers" in lane.picker.messages(tid)[0]


# ── clients that hang up ─────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
async def test_abort_while_uploading(lane: Lane, mode: str) -> None:
    """Before the pick: nothing was booked."""
    tid, connection = await lane.open(mode, chat(1000), promised=50_000)
    await lane.picker.until(lambda: bool(lane.picker.messages(tid)), "the picker sees the headers")
    connection.abort()
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {} and lane.pods.hits(tid) == []


@pytest.mark.parametrize("mode", MODES)
async def test_abort_while_waiting_for_the_answer(lane: Lane, mode: str) -> None:
    pod = lane.pods[1]
    tid, connection = await lane.open(mode, chat(1000), to=[pod.address], script="*=hang")
    await lane.picker.until(lambda: lane.picker.in_flight() == {pod.address: 1}, "the request is booked")
    await lane.picker.until(lambda: bool(pod.hits[tid]), "the request is at the pod")
    connection.abort()
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"aborted": 1}


@pytest.mark.parametrize("observe", [False, True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("mode", MODES)
async def test_abort_in_mid_stream(lane: Lane, mode: str, observe: bool) -> None:
    """A pod answered, so it is no failure; but the length of what was cut off is not the length of the answer."""
    await lane.renew(lane.pods.addresses, observe=observe)
    pod = lane.pods[2]
    tid, connection = await lane.open(mode, chat(1000, stream=True), to=[pod.address], script="*=sse.3000.2")
    response = await connection.read_head()
    assert response.status == 200
    async for _ in connection.body_chunks(response):
        break
    assert lane.picker.in_flight() == {pod.address: 1}
    connection.abort()
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1}
    await lane.picker.until(lambda: pod.hits[tid][0].broken, "the pod notices too")


@pytest.mark.parametrize("mode", MODES)
async def test_abort_after_the_answer(lane: Lane, mode: str) -> None:
    async with await Http1.connect(lane.port(mode)) as connection:
        _, sent = lane.headers()
        assert (await connection.request(headers=sent, body=chat())).complete
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1}


@pytest.mark.parametrize("mode", MODES)
async def test_a_crowd_that_hangs_up_at_any_moment(lane: Lane, mode: str) -> None:
    """120 clients, each gone after its own delay, over pods that stream, hang, fail and reset."""
    scripts = ["*=sse.200.2", "*=hang", "*=slow.0.05", "*=status.500", "*=reset", "*=half"]

    async def one(number: int) -> None:
        _, connection = await lane.open(mode, chat(2_000, stream=True), script=scripts[number % len(scripts)])
        async with connection:
            reading = asyncio.ensure_future(connection.read_response())
            await asyncio.wait([reading], timeout=0.002 * number)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    await asyncio.gather(*(one(number) for number in range(120)))
    await lane.picker.until_idle()
    lane.failing = lane.picker.failing()
