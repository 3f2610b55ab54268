"""Headers → RequestHead, and what becomes of the body."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.requests import BodyUse, RequestHead, RequestKind, body_use, new_request_id, read_head
from poolpilot_picker.requests.head import KNOWN, KNOWN_CHARACTERS, VideoHint, _known

POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}


def head(**fields: str | bytes) -> RequestHead:
    """A JSON POST to chat completions; underscores in names become hyphens, a leading one a colon."""
    received: dict[str, str | bytes] = dict(POST)
    for name, value in fields.items():
        received[":" + name[1:] if name.startswith("_") else name.replace("_", "-")] = value
    return read_head(received.items(), new_id=lambda: "made")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", RequestKind.CHAT),
        ("/v1/chat/completions/", RequestKind.CHAT),
        ("/v1/chat/completions?api-version=1", RequestKind.CHAT),
        ("/openai/deployments/x/chat/completions#f", RequestKind.CHAT),
        ("chat/completions", RequestKind.CHAT),
        ("/v1/completions", RequestKind.COMPLETIONS),
        ("/v1/embeddings", RequestKind.EMBEDDINGS),
        ("/v1/responses", RequestKind.RESPONSES),
        ("/v1/messages", RequestKind.MESSAGES),
        ("/foo/xcompletions", RequestKind.OTHER),
        ("/v1/notchat/completions", RequestKind.COMPLETIONS),
        ("/v1/responses/resp_1", RequestKind.OTHER),
        ("/v1/messages/count_tokens", RequestKind.OTHER),
        ("/v1/chat/completions/render", RequestKind.OTHER),
        ("/v1/models", RequestKind.OTHER),
        ("/", RequestKind.OTHER),
    ],
)
def test_the_path_tells_the_api(path: str, kind: RequestKind) -> None:
    assert head(_path=path).kind is kind


def test_the_path_is_taken_from_the_first_header_that_has_it() -> None:
    assert head(_path="/a?b", x_original_path="/v1/c").path == "/a"
    assert read_head([("x-forwarded-path", "/f"), ("x-original-path", "/o?q")]).path == "/o"
    assert read_head([("x-forwarded-path", "/f")]).path == "/f"
    assert read_head([("hi", "mom")]).path == "/v1/completions"


@pytest.mark.parametrize(
    ("fields", "end_of_stream", "use"),
    [
        ({}, False, BodyUse.INFERENCE),
        ({}, True, BodyUse.NONE),
        ({"_method": "GET", "_path": "/v1/models"}, True, BodyUse.NONE),
        ({"_path": "/v1/models"}, False, BodyUse.OPAQUE),
        ({"_method": "PUT"}, False, BodyUse.OPAQUE),
        ({"content_type": "application/json; charset=utf-8"}, False, BodyUse.INFERENCE),
        ({"content_type": "Application/JSON"}, False, BodyUse.INFERENCE),
        ({"content_type": "application/vnd.api+json"}, False, BodyUse.INFERENCE),
        ({"content_type": ""}, False, BodyUse.INFERENCE),
        ({"content_type": "application/x-www-form-urlencoded"}, False, BodyUse.OPAQUE),
        ({"content_type": "multipart/form-data; boundary=x"}, False, BodyUse.OPAQUE),
        ({"content_encoding": "gzip"}, False, BodyUse.OPAQUE),
        ({"content_encoding": "identity"}, False, BodyUse.INFERENCE),
        ({"_method": "CONNECT"}, False, BodyUse.UNSEEN),
        ({"connection": "Upgrade", "upgrade": "websocket"}, False, BodyUse.UNSEEN),
        ({"connection": "keep-alive, Upgrade", "upgrade": "websocket"}, True, BodyUse.UNSEEN),
        ({"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c"}, False, BodyUse.INFERENCE),
        ({"upgrade": "websocket"}, False, BodyUse.INFERENCE),
        ({"content_type": "application/grpc"}, False, BodyUse.UNSEEN),
        ({"content_type": "application/grpc+proto"}, False, BodyUse.UNSEEN),
        (
            {"content_type": "application/grpc", "_path": "/vllm.grpc.engine.VllmEngine/Generate"},
            False,
            BodyUse.UNSEEN,
        ),
    ],
)
def test_what_becomes_of_the_body(fields: dict[str, str], end_of_stream: bool, use: BodyUse) -> None:
    assert body_use(head(**fields), end_of_stream=end_of_stream) is use


def test_a_missing_request_id_is_made() -> None:
    assert (head(x_request_id="given").request_id, head(x_request_id="given").request_id_made) == ("given", False)
    assert (head().request_id, head().request_id_made) == ("made", True)
    assert head(x_request_id="").request_id == "made"
    assert uuid.UUID(new_request_id()).version == 4


@pytest.mark.parametrize(
    ("new", "alias", "field"),
    [
        ("x-llm-d-inference-objective", "x-gateway-inference-objective", "objective"),
        ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id", "tenant"),
        ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite", "model_rewrite"),
        ("x-poolpilot-routing-key", "x-session-id", "routing_key"),
    ],
)
def test_new_names_win_over_their_aliases(new: str, alias: str, field: str) -> None:
    assert getattr(read_head([(alias, "old"), (new, "new")]), field) == "new"
    assert getattr(read_head([(alias, "old")]), field) == "old"
    assert getattr(read_head([(new, ""), (alias, "old")]), field) == "old"
    assert getattr(read_head([]), field) == ""


@pytest.mark.parametrize("alias", ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"])
@pytest.mark.parametrize(
    ("value", "slo", "ignored"),
    [
        ("250", 250.0, False),
        ("0.5", 0.5, False),
        *[(bad, None, True) for bad in ("", "x", "-1", "0", "nan", "inf", "1e999")],
    ],
)
def test_an_objective_that_makes_no_sense_is_ignored_and_told(
    alias: str, value: str, slo: float | None, ignored: bool
) -> None:
    read = read_head([(alias, value)])
    assert read.slo_ttft_ms == slo
    assert read.ignored == ((alias,) if ignored else ())


@pytest.mark.parametrize(
    ("value", "ttl", "ignored"),
    [("2s", 2_000.0, False), ("0s", 0.0, False), *[(bad, None, True) for bad in ("", "2", "-2s", "soon")]],
)
def test_how_long_a_client_will_wait_in_the_queue(value: str, ttl: float | None, ignored: bool) -> None:
    read = read_head([("x-llm-d-inference-ttl", value)])
    assert read.queue_ttl_ms == ttl
    assert read.ignored == (("x-llm-d-inference-ttl",) if ignored else ())


def test_slo_per_token() -> None:
    assert head(x_slo_tpot_ms="30").slo_tpot_ms == 30.0
    assert head(x_llm_d_slo_tpot_ms="20", x_slo_tpot_ms="30").slo_tpot_ms == 20.0


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("if-available", True), ("respond-async, If-Available", True), ("wait=10", False), ("", False)],
)
def test_prefer_if_available(value: str, wanted: bool) -> None:
    assert head(prefer=value).only_if_cached is wanted


@pytest.mark.parametrize(
    ("value", "wanted"), [("1", True), ("true", True), ("yes", True), ("0", False), ("False", False)]
)
def test_a_receipt_is_asked_for(value: str, wanted: bool) -> None:
    assert head(x_poolpilot_receipt=value).receipt_wanted is wanted
    assert head().receipt_wanted is False


def test_the_test_selection_is_a_list() -> None:
    assert head(test_epp_endpoint_selection=" 10.0.0.1 ,10.0.0.2:8000,").test_selection == ("10.0.0.1", "10.0.0.2:8000")
    assert head().test_selection == ()


@pytest.mark.parametrize(
    ("value", "length"), [("1024", 1024), ("", None), ("-1", None), ("1e3", None), ("9" * 40, None), ("²", None)]
)
def test_content_length(value: str, length: int | None) -> None:
    assert head(content_length=value).content_length == length


def test_what_a_video_is_like() -> None:
    read = head(x_llm_d_video_fps="2", x_llm_d_video_duration_seconds="30", x_llm_d_video_resolution="1280x720")
    assert read.video == VideoHint(fps=2.0, seconds=30.0, width=1280, height=720)
    assert head().video == VideoHint(fps=1.0, seconds=10.0, width=640, height=360)
    for bad in ("1280", "0x5", "ax b", "1x2x3", "99999x2", "1" * 5_000 + "x1"):
        read = head(x_llm_d_video_resolution=bad)
        assert read.video == VideoHint()
        assert read.ignored == ("x-llm-d-video-resolution",)


def test_values_may_be_bytes_in_any_encoding() -> None:
    read = read_head(
        [(":path", b"/v1/completions"), ("x-llm-d-inference-fairness-id", b"caf\xe9"), (":method", b"POST")]
    )
    assert read.path == "/v1/completions"
    assert read.tenant == "caf\ufffd"


def test_a_connect_request_has_no_path() -> None:
    read = read_head([(":method", "CONNECT"), (":authority", "a:1")])
    assert read.upgrade


def test_the_client_address_never_becomes_a_routing_key() -> None:
    assert head(x_forwarded_for="10.1.2.3", x_real_ip="10.1.2.3", x_envoy_external_address="10.1.2.3").routing_key == ""


NAMES = st.sampled_from(
    [
        ":path", ":method", "content-type", "content-encoding", "content-length", "upgrade", "connection", "prefer",
        "x-llm-d-slo-ttft-ms", "x-slo-tpot-ms", "x-llm-d-video-fps", "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution", "x-request-id", "x-poolpilot-receipt", "x-session-id",
        "test-epp-endpoint-selection",
    ]
)  # fmt: skip


@given(st.lists(st.tuples(NAMES, st.text() | st.binary())), st.booleans())
def test_no_header_makes_it_raise(received: list[tuple[str, str | bytes]], end_of_stream: bool) -> None:
    body_use(read_head(received), end_of_stream=end_of_stream)


def test_what_requests_have_in_common_is_remembered_and_nothing_else() -> None:
    one = head(x_request_id="one", content_length="5", x_session_id="s", prefer="if-available")
    other = head(x_request_id="other")
    assert (one.request_id, one.content_length, one.routing_key, one.only_if_cached) == ("one", 5, "s", True)
    assert (other.request_id, other.content_length, other.routing_key, other.only_if_cached) == (
        "other",
        None,
        "",
        False,
    )
    assert other.use is BodyUse.INFERENCE and head(content_encoding="gzip").use is BodyUse.OPAQUE
    assert read_head([("x-original-path", "/v1/a")]).path == "/v1/a"
    assert read_head([("x-original-path", "/v1/b")]).path == "/v1/b"


def test_clients_cannot_make_the_memory_of_heads_grow() -> None:
    for number in range(2 * KNOWN):
        read_head([(":path", f"/{number}")])
    read_head([(":path", "/" + "x" * KNOWN_CHARACTERS)])
    assert len(_known) <= KNOWN
    assert all(len(path or "") <= KNOWN_CHARACTERS for path, *_ in _known)


@pytest.mark.parametrize("name", ["x-prefiller-host-port", "x-gateway-destination-endpoint-served", "prefer"])
def test_a_head_is_plain_where_only_usual_headers_were_sent(name: str) -> None:
    assert head(accept="*/*", x_pod="a").plain
    assert not read_head([*POST.items(), (name, "1")]).plain
