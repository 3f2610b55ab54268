"""Pods that fail: the booking follows the request to whoever served it, and blame goes to whoever failed."""

from __future__ import annotations

import pytest

from gateway_client import JSON, Http1
from gateway_site import Lane, chat

MODES = ["partial", "buffered", "duplex"]


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
@pytest.mark.parametrize("mode", MODES)
async def test_a_pods_4xx_is_its_answer_and_no_failure(lane: Lane, mode: str, status: int) -> None:
    done = await lane.request(mode, chat(100), to=[lane.pods[1].address], script=f"*=status.{status}")
    assert done.response.status == status and done.response.pod == lane.pods[1].address
    assert len(done.hits) == 1
    assert lane.picker.outcomes() == {"rejected": 1}


@pytest.mark.parametrize("mode", MODES)
async def test_a_pods_500_counts_against_it(lane: Lane, mode: str) -> None:
    pod = lane.pods[1].address
    done = await lane.request(mode, chat(100), to=[pod], script="*=status.500")
    assert done.response.status == 500 and done.response.pod == pod
    assert lane.picker.outcomes() == {"failed": 1}
    lane.failing = {pod}


@pytest.mark.parametrize("mode", MODES)
async def test_a_pods_503_is_retried_on_the_next_of_the_list(lane: Lane, mode: str) -> None:
    first, second = lane.pods[1], lane.pods[2]
    script = f"{first.port}=status.503"
    done = await lane.request(mode, chat(100), to=[first.address, second.address], script=script)
    assert done.response.status == 200 and done.response.pod == second.address
    assert [hit.address for hit in done.hits] == [first.address, second.address]
    assert lane.picker.outcomes() == {"served": 1}
    assert lane.picker.moved() == 1
    lane.failing = {first.address}


@pytest.mark.parametrize("mode", MODES)
async def test_the_booking_moves_while_the_second_pod_answers(lane: Lane, mode: str) -> None:
    """After a connect failure the request belongs to the pod that serves it, from its first byte on."""
    [dead] = lane.dead_addresses(1)
    alive = lane.pods[3]
    await lane.renew([dead, *lane.pods.addresses])
    _tid, connection = await lane.open(mode, chat(1000, stream=True), to=[dead, alive.address], script="*=sse.1000.5")
    async with connection:
        response = await connection.read_head()
        assert response.status == 200 and response.pod == alive.address
        assert lane.picker.in_flight() == {alive.address: 1}
    await lane.picker.until_idle()
    assert lane.picker.outcomes() == {"served": 1} and lane.picker.moved() == 1
    lane.failing = {dead}


@pytest.mark.parametrize("mode", MODES)
async def test_a_reset_before_the_answer_is_retried(lane: Lane, mode: str) -> None:
    first, second = lane.pods[0], lane.pods[2]
    body = chat(300_000)
    done = await lane.request(mode, body, to=[first.address, second.address], script=f"{first.port}=reset")
    assert done.response.status == 200 and done.response.pod == second.address
    assert next(hit.sha256 for hit in done.hits) == done.hits[1].sha256, "the retry carries the same body"
    lane.failing = {first.address}


async def test_a_body_above_the_limit_is_not_sent_again(lane: Lane) -> None:
    """Envoy holds only its beginning."""
    first, second = lane.pods[0], lane.pods[2]
    body = chat(400_000)
    wanted = [first.address, second.address]
    done = await lane.request("partial-small", body, to=wanted, script=f"{first.port}=reset")
    assert done.response.status == 503 and len(done.hits) == 1
    lane.failing = {first.address}


@pytest.mark.parametrize("mode", MODES)
async def test_nobody_left_to_retry(lane: Lane, mode: str) -> None:
    """The list is used up: in a pool that fails close no other pod is tried, and the last one is blamed."""
    done = await lane.request(mode, chat(100), to=[lane.pods[0].address], script="*=reset")
    assert done.response.status == 503 and done.response.pod == ""
    assert [hit.address for hit in done.hits] == [lane.pods[0].address]
    assert lane.picker.outcomes() == {"unreachable": 1}
    lane.failing = {lane.pods[0].address}


@pytest.mark.parametrize("mode", MODES)
async def test_every_pod_of_the_list_fails(lane: Lane, mode: str) -> None:
    tried = [pod.address for pod in lane.pods][:3]
    done = await lane.request(mode, chat(100), to=tried, script="*=reset")
    assert done.response.status == 503
    assert [hit.address for hit in done.hits] == tried
    lane.failing = set(tried)


async def test_an_address_unknown_to_envoy_is_skipped_and_not_blamed(lane: Lane) -> None:
    [unknown] = lane.dead_addresses(1)
    failing, serving = lane.pods[0], lane.pods[1]
    await lane.renew([unknown, *lane.pods.addresses], in_eds=lane.pods.addresses)
    wanted = [unknown, failing.address, serving.address]
    done = await lane.request("partial", chat(100), to=wanted, script=f"{failing.port}=reset")
    assert done.response.pod == serving.address and lane.attempts() == [2]
    assert lane.picker.outcomes() == {"served": 1} and lane.picker.moved() == 1


@pytest.mark.parametrize("mode", MODES)
async def test_original_dst_retries_the_same_address(lane: Lane, mode: str) -> None:
    [dead] = lane.dead_addresses(1)
    await lane.renew([dead, *lane.pods.addresses])
    done = await lane.request(f"{mode}-original-dst", chat(100), to=[dead])
    assert done.response.status == 503
    assert lane.picker.outcomes() == {"unreachable": 1} and lane.picker.moved() == 0
    assert lane.attempts() == [2]
    lane.failing = {dead}


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_cut_off_in_the_middle(lane: Lane, mode: str) -> None:
    """Headers said 200: nothing tells this end from a normal one, so it is not learned from either."""
    done = await lane.request(mode, chat(100, stream=True), to=[lane.pods[0].address], script="*=half")
    assert done.response.status == 200 and not done.response.complete
    assert lane.picker.outcomes() == {"served": 1}


async def test_a_cut_off_answer_that_was_watched_teaches_no_length(lane: Lane) -> None:
    await lane.renew(lane.pods.addresses, observe=True)
    done = await lane.request("partial", chat(1000, stream=True), to=[lane.pods[0].address], script="*=half")
    assert done.response.status == 200 and not done.response.complete


async def test_a_time_out_of_the_route_counts_against_the_pod(lane: Lane) -> None:
    pod = lane.pods[2]
    done = await lane.request("impatient", chat(100), to=[pod.address], script="*=hang")
    assert done.response.status == 504
    assert lane.picker.outcomes() == {"timed_out": 1}
    lane.failing = {pod.address}


async def test_a_time_out_in_mid_response(lane: Lane) -> None:
    done = await lane.request("impatient", chat(100, stream=True), script="*=sse.3000.5")
    assert done.response.status == 200 and not done.response.complete
    assert lane.picker.outcomes() == {"served": 1}


async def test_a_time_out_of_one_try_counts_against_the_pod(lane: Lane) -> None:
    pod = lane.pods[1]
    done = await lane.request("per-try", chat(100), to=[pod.address], script="*=hang")
    assert done.response.status == 504
    assert lane.picker.outcomes() == {"timed_out": 1}
    lane.failing = {pod.address}


async def test_the_winner_of_a_hedge_is_charged(lane: Lane) -> None:
    """Envoy asks a second pod while the first is slow; the booking goes to the one whose answer was taken."""
    slow, quick = lane.pods[0], lane.pods[1]
    tid, sent = lane.headers(to=[slow.address, quick.address], script=f"{slow.port}=hang;*=sse.100.5")
    async with await Http1.connect(lane.port("hedging")) as connection:
        connection.send_head("POST", "/v1/chat/completions", {**JSON, **sent, "content-length": str(len(chat(100)))})
        connection.writer.write(chat(100))
        response = await connection.read_head()
        assert response.pod == quick.address
        assert lane.picker.in_flight() == {quick.address: 1}
        body = b"".join([chunk async for chunk in connection.body_chunks(response)])
    assert response.complete and body.endswith(b"data: [DONE]\n\n")
    await lane.picker.until_idle()
    assert {hit.address for hit in lane.pods.hits(tid)} == {slow.address, quick.address}
    lane.failing = {slow.address}


async def test_a_hedge_that_the_first_pod_wins(lane: Lane) -> None:
    first, second = lane.pods[0], lane.pods[1]
    script = f"{first.port}=slow.0.5;{second.port}=hang"
    done = await lane.request("hedging", chat(100), to=[first.address, second.address], script=script)
    assert done.response.pod == first.address
    assert lane.picker.outcomes() == {"served": 1} and lane.picker.moved() == 0


async def test_a_mirrored_request_is_booked_once(lane: Lane) -> None:
    """The copy makes no stream at the picker; it carries the picked header to the same pod."""
    pod = lane.pods[2]
    done = await lane.request("mirroring", chat(100), to=[pod.address])
    assert done.response.status == 200 and len(done.messages) == 1
    await lane.picker.until(lambda: len(lane.pods.hits(done.tid)) == 2, "the copy has arrived")
    assert {hit.address for hit in lane.pods.hits(done.tid)} == {pod.address}
    assert lane.picker.outcomes() == {"served": 1}


async def test_an_internal_redirect_is_placed_twice(lane: Lane) -> None:
    """Envoy ends the first stream without response headers and begins a second one."""
    done = await lane.request("redirecting", chat(100), to=[lane.pods[1].address], script="*=redirect")
    assert [hit.path for hit in done.hits] == ["/v1/chat/completions", "/redirected"]
    assert len(done.messages) == 2
    assert done.messages[0] == ["request_headers", "request_body", "end"]
    assert lane.picker.outcomes()["aborted"] == 1


async def test_the_same_redirect_without_following_is_the_pods_answer(lane: Lane) -> None:
    done = await lane.request("partial", chat(100), script="*=redirect")
    assert done.response.status == 302 and lane.picker.outcomes() == {"rejected": 1}


async def test_a_pod_that_leaves_discovery_finishes_its_answer(lane: Lane) -> None:
    """It gets no new request, its booking stays until the end, then it is forgotten."""
    leaving, staying = lane.pods[0], lane.pods[1]
    _tid, connection = await lane.open("partial", chat(1000, stream=True), to=[leaving.address], script="*=sse.100.5")
    async with connection:
        response = await connection.read_head()
        lane.picker.set_endpoints([staying.address])
        assert lane.picker.in_flight() == {leaving.address: 1}
        for _ in range(3):
            assert (await lane.request_without_waiting("partial", chat(100))).response.pod == staying.address
        body = b"".join([chunk async for chunk in connection.body_chunks(response)])
    assert response.complete and body.endswith(b"data: [DONE]\n\n")
    await lane.picker.until_idle()
    assert [endpoint.address for endpoint in lane.picker.pool.table] == [staying.address]


async def test_a_pod_that_joins_can_be_chosen_at_once(lane: Lane) -> None:
    await lane.renew([lane.pods[0].address])
    assert (await lane.request("partial", chat(100))).response.pod == lane.pods[0].address
    lane.picker.set_endpoints(lane.pods.addresses)
    await lane.envoy_knows(lane.pods.addresses)
    done = await lane.request("partial", chat(100), to=[lane.pods[3].address])
    assert done.response.pod == lane.pods[3].address


async def test_without_attributes_the_served_metadata_moves_the_booking(lane: Lane) -> None:
    """A gateway that sends no attributes: the endpoint named in the metadata is charged."""
    [dead] = lane.dead_addresses(1)
    alive = lane.pods[1]
    await lane.renew([dead, *lane.pods.addresses])
    _tid, connection = await lane.open(
        "no-attributes", chat(1000, stream=True), to=[dead, alive.address], script="*=sse.200.5"
    )
    async with connection:
        assert (await connection.read_head()).status == 200
        assert lane.picker.in_flight() == {alive.address: 1}
    await lane.picker.until_idle()
    assert lane.picker.moved() == 1
    lane.failing = lane.picker.failing() & {dead}


@pytest.mark.parametrize("script", ["*=reset", "*=status.503", "*=status.500"])
async def test_without_attributes_an_error_teaches_nothing(lane: Lane, script: str) -> None:
    done = await lane.request("no-attributes", chat(100), to=[lane.pods[0].address], script=script)
    assert done.response.status in (500, 503)
    assert lane.picker.outcomes() == {"unconfirmed": 1}
