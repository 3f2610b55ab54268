"""Request bodies of every size and form, in every mode, reach the pod byte for byte, and one pod only."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from gateway_client import Http1
from gateway_site import SMALL_LIMIT, Lane, chat

MODES = ["partial", "buffered", "duplex"]
KB, MB = 1024, 1024 * 1024


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("size", [0, KB, 400 * KB, 5 * MB])
@pytest.mark.parametrize("mode", [*MODES, "partial-small", *(f"{mode}-original-dst" for mode in MODES)])
async def test_a_body_arrives_unchanged_where_the_picker_said(lane: Lane, mode: str, size: int) -> None:
    wanted = lane.pods[2].address
    body = chat(size) if size else b""
    done = await lane.request(mode, body, to=[wanted])
    assert done.response.status == 200 and done.response.pod == wanted
    assert done.response.json() == {"pod": wanted, "length": len(body), "sha256": sha256(body)}
    [hit] = done.hits
    if mode.startswith("buffered") or not size:
        assert hit.headers["content-length"] == str(len(body))
    else:
        assert hit.headers["transfer-encoding"] == "chunked", "Envoy drops the length where a picker might change it"
    assert done.messages[0].count("response_headers") == 1
    if mode.startswith(("partial", "buffered")):
        expected = ["request_headers", "request_body", "response_headers", "end"]
        if not size:
            expected.remove("request_body")
        assert done.messages == [expected]


@pytest.mark.parametrize("size", [KB, 5 * MB])
@pytest.mark.parametrize("mode", MODES)
async def test_chunked_bodies(lane: Lane, mode: str, size: int) -> None:
    body = chat(size)
    chunks = [body[start : start + 100_000] for start in range(0, size, 100_000)]
    done = await lane.request(mode, chunks, to=[lane.pods[1].address])
    assert done.response.status == 200
    assert done.hits[0].sha256 == sha256(body)


@pytest.mark.parametrize("mode", MODES)
async def test_a_chunked_body_may_be_empty(lane: Lane, mode: str) -> None:
    done = await lane.request(mode, [], path="/custom", to=[lane.pods[1].address])
    assert done.response.status == 200 and done.hits[0].length == 0


@pytest.mark.parametrize("size", [0, KB, 5 * MB])
@pytest.mark.parametrize("mode", MODES)
async def test_http2_clients(lane: Lane, mode: str, size: int) -> None:
    body = chat(size) if size else b""
    done = await lane.request(mode, body, to=[lane.pods[3].address], protocol="http2")
    assert done.response.status == 200 and done.response.complete
    assert done.hits[0].sha256 == sha256(body)


@pytest.mark.parametrize("mode", MODES)
async def test_expect_100_continue(lane: Lane, mode: str) -> None:
    body = chat(KB)
    tid, sent = lane.headers(to=[lane.pods[0].address])
    async with await Http1.connect(lane.port(mode)) as connection:
        connection.send_head(
            "POST", "/v1/completions", {**sent, "expect": "100-continue", "content-length": str(len(body))}
        )
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        connection.writer.write(body)
        response = await connection.read_response()
    # Completions need a prompt: this body has messages, and the picker says so.
    assert response.status == 400, response.body
    tid, connection = await lane.open(mode, body)
    async with connection:
        assert (await connection.read_response()).status == 200
    assert lane.pods.hits(tid)[0].sha256 == sha256(body)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("mode", MODES)
async def test_requests_without_a_body_take_the_same_path(lane: Lane, mode: str, method: str) -> None:
    done = await lane.request(mode, None, method=method, path="/v1/models", to=[lane.pods[2].address])
    assert done.response.status == 200 and done.response.pod == lane.pods[2].address
    assert done.messages[0][0] == "request_headers" and "request_body" not in done.messages[0]
    assert lane.picker.outcomes() == {"served": 1}


async def test_above_the_limit_buffered_is_answered_413_by_envoy(lane: Lane) -> None:
    """The picker sees the request's headers and then the 413's: nothing was booked, nothing stays."""
    done = await lane.request("buffered-small", chat(400 * KB))
    assert done.response.status == 413
    assert done.hits == [] and lane.picker.outcomes() == {}
    assert done.messages == [["request_headers", "response_headers", "end"]]


@pytest.mark.parametrize("size", [400 * KB, 5 * MB])
@pytest.mark.parametrize("model_last", [False, True])
async def test_above_the_limit_the_beginning_is_enough(lane: Lane, size: int, model_last: bool) -> None:
    """BUFFERED_PARTIAL shows a prefix, in which the model may be missing; the rest passes untouched."""
    body = chat(size, model_last=model_last)
    assert len(body) > 2 * SMALL_LIMIT
    done = await lane.request("partial-small", body)
    assert done.response.status == 200
    [hit] = done.hits
    assert (hit.length, hit.sha256) == (len(body), sha256(body))
    assert done.messages == [["request_headers", "request_body", "response_headers", "end"]]


# ── bodies that are no inference call ────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
async def test_multipart(lane: Lane, mode: str) -> None:
    body = b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + bytes(range(256)) * 100 + b"\r\n--x--\r\n"
    done = await lane.request(
        mode,
        body,
        path="/v1/audio/transcriptions",
        headers={"content-type": "multipart/form-data; boundary=x"},
        to=[lane.pods[1].address],
    )
    assert done.response.status == 200 and done.hits[0].sha256 == sha256(body)
    assert done.hits[0].headers["content-type"] == "multipart/form-data; boundary=x"


@pytest.mark.parametrize("mode", MODES)
async def test_gzip(lane: Lane, mode: str) -> None:
    body = gzip.compress(chat(KB))
    done = await lane.request(mode, body, headers={"content-encoding": "gzip"}, to=[lane.pods[1].address])
    assert done.response.status == 200 and done.hits[0].sha256 == sha256(body)
    assert done.hits[0].headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("body", [b"", b"not json", b'{"anything": [1, 2]}', b"\x00\xff" * 1000])
@pytest.mark.parametrize("mode", MODES)
async def test_unknown_paths_are_routed_whatever_they_carry(lane: Lane, mode: str, body: bytes) -> None:
    done = await lane.request(mode, body, path="/some/other/api", to=[lane.pods[1].address])
    assert done.response.status == 200 and done.hits[0].sha256 == sha256(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "messages"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "model"),
        (b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}', "model"),
        (b'{"model": "m"}', "messages"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
async def test_a_bad_inference_body_is_answered_400_and_reaches_no_pod(
    lane: Lane, mode: str, body: bytes, told: str
) -> None:
    done = await lane.request(mode, body)
    assert done.response.status == 400
    message = done.response.json()["error"]["message"]
    assert message.startswith("inference error: BadRequest - ")
    if body != b"{":
        assert told in message
    assert done.hits == [] and lane.picker.outcomes() == {}


@pytest.mark.parametrize("mode", MODES)
async def test_an_empty_pool_is_answered_503(lane: Lane, mode: str) -> None:
    await lane.renew([])
    done = await lane.request(mode, chat(KB))
    assert done.response.status == 503 and done.hits == []
    assert done.response.json()["error"]["message"].startswith("inference error: ServiceUnavailable - ")
    assert done.response.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


@pytest.mark.parametrize("mode", MODES)
async def test_only_the_destination_is_added(lane: Lane, mode: str) -> None:
    """Nothing that came is sent back as a mutation: headers keep value and case of content."""
    sent = {"x-custom": "a, b;  c", "accept": "text/event-stream", "authorization": "Bearer s3cret"}
    done = await lane.request(mode, chat(KB), headers=sent, to=[lane.pods[0].address])
    got = done.hits[0].headers
    assert {name: got.get(name) for name in sent} == sent
    assert got["x-gateway-destination-endpoint"] == lane.pods[0].address
    added = set(got) - set(sent) - {"host", "content-type", "content-length", "transfer-encoding", "x-tid"}
    assert added <= {
        "x-gateway-destination-endpoint",
        "x-poolpilot-routing-key",
        "x-request-id",
        "x-forwarded-proto",
        "x-envoy-expected-rq-timeout-ms",
    }
