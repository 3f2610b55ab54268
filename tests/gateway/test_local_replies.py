"""Answers that Envoy gave itself, before or behind the picker: bookings are released, no pod is credited or blamed."""

from __future__ import annotations

import pytest

from gateway_client import Http1
from gateway_site import Lane, chat


async def test_429_of_a_rate_limiter_behind_the_picker(lane: Lane) -> None:
    """One token in the bucket: the first request passes, the others are placed and then refused by Envoy."""
    answers = [await lane.request("limited-behind", chat(100), to=[lane.pods[0].address]) for _ in range(4)]
    assert [done.response.status for done in answers[1:]] == [429, 429, 429]
    for done in answers[1:]:
        assert done.hits == []
        assert done.messages == [["request_headers", "request_body", "response_headers", "end"]]
    assert lane.picker.outcomes()["local_reply"] == 3


async def test_403_behind_the_picker(lane: Lane) -> None:
    done = await lane.request("limited-behind", chat(100), path="/forbidden/v1/chat/completions")
    assert done.response.status in (403, 429) and done.hits == []
    assert lane.picker.outcomes() == {"local_reply": 1}


async def test_a_reply_of_a_filter_before_the_picker_opens_no_accounting(lane: Lane) -> None:
    """ResponseHeaders may be the first and only message of a stream."""
    for _ in range(3):
        done = await lane.request("limited-before", chat(100), path="/forbidden/v1/chat/completions")
        assert done.response.status in (403, 429) and done.hits == []
    assert lane.picker.outcomes() == {}
    seen = [exchange.seen for exchange in lane.picker.exchanges]
    assert all(messages == ["response_headers", "end"] for messages in seen), seen


@pytest.mark.parametrize(
    ("path", "status"), [("/direct", 418), ("/moved", 301), ("/nowhere", 404)], ids=["direct", "redirect", "no-route"]
)
async def test_routes_without_a_pod(lane: Lane, path: str, status: int) -> None:
    done = await lane.request("routes", chat(100), path=path)
    assert done.response.status == status and done.hits == []
    assert set(lane.picker.outcomes()) <= {"local_reply"}


async def test_an_upgrade_that_is_not_allowed(lane: Lane) -> None:
    tid, sent = lane.headers()
    async with await Http1.connect(lane.port("no-upgrades")) as connection:
        connection.send_head("GET", "/ws", {**sent, "connection": "Upgrade", "upgrade": "websocket"})
        assert (await connection.read_response()).status == 403
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {} and lane.pods.hits(tid) == []


@pytest.mark.parametrize("mode", ["partial", "buffered", "duplex"])
async def test_the_pick_is_not_usable(lane: Lane, mode: str) -> None:
    """Envoy does not know the address (its endpoint file is behind): 503, and the pod is not to blame."""
    [unknown] = lane.dead_addresses(1)
    await lane.renew([unknown, *lane.pods.addresses], in_eds=lane.pods.addresses)
    done = await lane.request(mode, chat(100), to=[unknown])
    assert done.response.status == 503 and done.hits == []
    assert lane.picker.outcomes() == {"local_reply": 1}
