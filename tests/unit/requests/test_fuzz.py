"""No body makes parsing raise anything but BadRequest; a beginning never raises at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_picker.errors import BadRequest
from poolpilot_picker.requests import InferenceRequest, error_body, parse, read_head, rewrite_model

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/other"]

KEYS = st.sampled_from(
    ["model", "messages", "prompt", "input", "instructions", "system", "tools", "functions", "max_tokens", "n",
     "best_of", "max_completion_tokens", "max_output_tokens", "stream", "cache_salt", "lora_path", "suffix",
     "prompt_embeds", "content", "role", "type", "text", "refusal", "thinking", "image_url", "url",
     "input_audio", "data", "video_url", "file", "source", "tool_calls", "function_call", "name", "arguments",
     "output", "summary", "reasoning", "reasoning_content"],
)  # fmt: skip
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["m", "user", "data:image/png;base64,iVBORw0KGgo=", "\ud800", "\udc00", "\ud83d\ude00", "\x00"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=8)


def check(path: str, raw: bytes) -> None:
    head = read_head([(":method", "POST"), (":path", path), ("content-type", "application/json")], new_id=lambda: "id")
    seen = parse(head, raw, complete=False)
    assert seen.prompt_tokens >= 0
    try:
        request = parse(head, raw)
    except BadRequest as error:
        refused = error
    else:
        check_request(request, raw, path)
        return
    assert "error" in json.loads(error_body(refused))
    assert len(refused.message) < 600


def check_request(request: InferenceRequest, raw: bytes, path: str) -> None:
    assert request.sequences >= 1
    assert request.max_tokens is None or 0 <= request.max_tokens < 2**31
    assert request.prefix.covered(len(request.prefix.hashes)) <= max(request.prompt_tokens, 1)
    if request.is_inference:
        assert request.model and request.prompt_tokens >= 1
        head = read_head([(":method", "POST"), (":path", path), ("content-type", "application/json")])
        rewritten = parse(head, rewrite_model(raw, "rewritten"))
        assert (rewritten.model, rewritten.prompt_tokens) == ("rewritten", request.prompt_tokens)


@pytest.mark.parametrize("path", PATHS)
@given(body=BODIES, ascii_only=st.booleans())
def test_json_of_known_words(path: str, body: dict[str, Any], ascii_only: bool) -> None:
    check(path, json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("path", PATHS)
@given(body=BODIES, cut=st.integers(0, 400), at=st.integers(0, 400), byte=st.binary(max_size=2))
def test_damaged_json(path: str, body: dict[str, Any], cut: int, at: int, byte: bytes) -> None:
    raw = json.dumps({"model": "m", **body}).encode("utf-8", "surrogatepass")
    check(path, raw[:cut])
    check(path, raw[:at] + byte + raw[at:])


@settings(max_examples=50)
@given(raw=st.binary(max_size=200), path=st.sampled_from(PATHS))
def test_any_bytes(raw: bytes, path: str) -> None:
    check(path, raw)


@pytest.mark.parametrize("path", PATHS[:5])
@pytest.mark.parametrize(
    "opening", [b'{"a":', b"[", b'{"messages":[{"content":[', b'{"input":[{"output":[', b'{"tools":[']
)
def test_deep_nesting(path: str, opening: bytes) -> None:
    for depth in (150, 900, 20_000):
        check(path, opening * depth)
        closing = opening.translate(bytes.maketrans(b"[{", b"]}"), b'"a:messgcontinpul')[::-1]
        check(path, b'{"model":"m","x":' + opening * depth + b"1" + closing * depth + b"}")
