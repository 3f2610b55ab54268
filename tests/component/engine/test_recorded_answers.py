"""Answers have the shape of vLLM's, entry by entry of the recording: status, content type, keys and their types."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine_http import Reply, call, events, serving
from poolpilot_lab.engine.server import EngineServer

RECORDING = json.loads((Path(__file__).parents[2] / "data/engines/vllm-0.32/http-responses.json").read_text())

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What is a queue? " * 20}], "max_tokens": 8}
TEXT = {"model": "tiny", "prompt": "What is a queue? " * 20, "max_tokens": 5}
ADAPTER_B = {"lora_name": "ad-b", "lora_path": "/adapters/ad-b"}

# name of the recording -> (path, body)
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_stream": ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    "chat_stream_nousage": ("/v1/chat/completions", {**CHAT, "stream": True, "max_tokens": 4}),
    "chat": ("/v1/chat/completions", CHAT),
    "completion": ("/v1/completions", TEXT),
    "completion_tokens": ("/v1/completions", {**TEXT, "prompt": list(range(297))}),
    "lora_a": ("/v1/chat/completions", {**CHAT, "model": "ad-a"}),
    "load_b": ("/v1/load_lora_adapter", ADAPTER_B),
    "load_b_again": ("/v1/load_lora_adapter", ADAPTER_B),
    "lora_b": ("/v1/completions", {**TEXT, "model": "ad-b", "max_tokens": 8}),
    "unload_b": ("/v1/unload_lora_adapter", {"lora_name": "ad-b"}),
    "missing": ("/v1/completions", {**TEXT, "model": "nope"}),
    "toolong": ("/v1/completions", {**TEXT, "prompt": [7] * 3794}),
    "badjson": ("/v1/completions", {**TEXT, "prompt": 3.5}),
    "tokenize": ("/tokenize", {"model": "tiny", "prompt": "What is a queue?"}),
}
# These APIs the stand-in does not have.
OUT_OF_SCOPE = {"messages", "responses"}

SAME_TEXT = {"load_b", "load_b_again", "unload_b", "missing", "toolong"}
SAME_HEADERS = {"server", "content-type", "vary", "connection", "transfer-encoding"}


def shape(value: Any) -> Any:
    """Keys in order, and the types of values; numbers and texts are not compared."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.fixture(scope="module")
def lora_settings() -> dict[str, Any]:
    from poolpilot_lab.engine.models import Adapter

    return {
        "enable_lora": True,
        "max_loras": 2,
        "runtime_lora": True,
        "lora_modules": (Adapter("ad-a", "/adapters/ad-a"),),
        "enable_prompt_tokens_details": False,
    }


def test_every_recorded_answer_is_compared() -> None:
    assert set(RECORDING) == set(REQUESTS) | OUT_OF_SCOPE


async def ask(server: EngineServer, name: str) -> Reply:
    path, body = REQUESTS[name]
    return await call(server, "POST", path, body)


@pytest.mark.parametrize("name", REQUESTS)
async def test_answer_has_the_recorded_shape(name: str, lora_settings: dict[str, Any]) -> None:
    status, headers, body = RECORDING[name]
    async with serving(**lora_settings) as server:
        if name in {"load_b_again", "lora_b", "unload_b"}:
            assert (await ask(server, "load_b")).status == 200
        reply = await ask(server, name)
    assert reply.status == status
    for header in SAME_HEADERS:
        assert reply.headers.get(header) == headers.get(header), header
    assert ("content-length" in reply.headers) == ("content-length" in headers)
    if name in SAME_TEXT:
        assert reply.body.decode() == body
    elif body.startswith("data: "):
        expected, actual = events(body.encode()), events(reply.body)
        # One event per token: the recording's last token of chat_stream was an incomplete character.
        assert len(actual) == len(expected)
        assert [shape(event) for event in actual] == [shape(event) for event in expected]
    else:
        assert shape(reply.json) == shape(json.loads(body))


async def test_the_error_of_a_wrong_body_names_field_value_and_type(lora_settings: dict[str, Any]) -> None:
    async with serving(**lora_settings) as server:
        error = (await ask(server, "badjson")).json["error"]
    recorded = json.loads(RECORDING["badjson"][2])["error"]
    assert (error["type"], error["param"], error["code"]) == (recorded["type"], recorded["param"], recorded["code"])
    assert "body.prompt" in error["message"]


async def test_usage_tells_the_tokens(lora_settings: dict[str, Any]) -> None:
    async with serving(**lora_settings) as server:
        usage = (await ask(server, "completion_tokens")).json["usage"]
        chunk = events((await ask(server, "chat_stream")).body)[-2]
    assert usage == {
        "prompt_tokens": 297,
        "total_tokens": 302,
        "completion_tokens": 5,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    assert chunk["choices"] == []
    assert chunk["usage"]["completion_tokens"] == 8


ORCA = (Path(__file__).parents[2] / "data/engines/vllm-0.32/orca-response-headers.txt").read_text()


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "JSON"), ("/v1/completions", "TEXT"), ("/v1/completions", "text")]
)
async def test_load_report_header_is_the_recorded_one(path: str, kind: str) -> None:
    body = CHAT if "chat" in path else TEXT
    recorded = next(line for line in ORCA.splitlines() if line.startswith(f"endpoint-load-metrics: {kind.upper()}"))
    async with serving() as server:
        reply = await call(server, "POST", path, body, {"endpoint-load-metrics-format": kind})
        plain = await call(server, "POST", path, body)
        stream = await call(server, "POST", path, {**body, "stream": True}, {"endpoint-load-metrics-format": kind})
    assert f"endpoint-load-metrics: {reply.headers['endpoint-load-metrics']}" == recorded
    assert "endpoint-load-metrics" not in plain.headers
    assert "endpoint-load-metrics" not in stream.headers


async def test_models_lists_adapters_with_parent_and_root(lora_settings: dict[str, Any]) -> None:
    async with serving(**lora_settings, served_model_names=("tiny", "small"), model="org/tiny-llama") as server:
        listing = (await call(server, "GET", "/v1/models")).json
    assert listing["object"] == "list"
    cards = {card["id"]: card for card in listing["data"]}
    assert list(cards) == ["tiny", "small", "ad-a"]
    assert (cards["tiny"]["root"], cards["tiny"]["parent"]) == ("org/tiny-llama", None)
    assert (cards["tiny"]["max_model_len"], cards["tiny"]["owned_by"]) == (2048, "vllm")
    assert (cards["ad-a"]["root"], cards["ad-a"]["parent"]) == ("/adapters/ad-a", "tiny")
