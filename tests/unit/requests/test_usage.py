"""Response bodies: token usage and the first token, whatever an engine sends and wherever chunks are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poolpilot_picker.requests import Usage, UsageReader, usage_of
from poolpilot_picker.requests.usage import _CONTENT, MAX_HELD

RECORDED: dict[str, list[Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "engines" / "vllm-0.32" / "http-responses.json").read_text("utf-8")
)
FULL = Usage(prompt_tokens=7, completion_tokens=10)
USAGE = b'{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}'
DONE = b"data: [DONE]\n\n"


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields}]})


def streamed(*chunks: bytes) -> UsageReader:
    reader = UsageReader(streamed=True)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    return reader


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([b'data: {"choices":[],"usage":' + USAGE + b"}\n\n" + DONE], FULL),
        ([b'data: {"choices":[],"usage":' + USAGE + b"}\n\n", DONE], FULL),
        ([delta(content="a"), delta(content="b"), b'data: {"usage":' + USAGE + b"}\n\n", DONE], FULL),
        ([delta(content="a"), DONE], None),
        ([b'data: {"usage":' + USAGE + b"}\n\n", delta(content="a"), b'data: {"usage":null}\n\n', DONE], FULL),
        (
            [b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n', b'data: {"usage":' + USAGE + b"}\n\n"],
            FULL,
        ),
        ([b'data:{"usage":' + USAGE + b"}\r\n\r\n"], FULL),
        ([b": comment\n", b"event: x\n", b'data: {"usage":' + USAGE + b"}"], FULL),
        ([b'data: {"choices":[{"delta":{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}}]}\n\n'], None),
        ([b'data: {"usage":' + USAGE + b"\n\n"], None),
        ([b"data: [[[[\n\n", b'data: "usage"\n\n', b'data: {"usage":{}}\n\n'], None),
    ],
)
def test_usage_is_kept_over_the_whole_stream(chunks: list[bytes], usage: Usage | None) -> None:
    assert streamed(*chunks).usage == usage


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_chunks_may_be_cut_anywhere(size: int) -> None:
    whole = delta(role="assistant", content="") + delta(content="é") * 3 + b'data: {"usage":' + USAGE + b"}\n\n" + DONE
    reader = streamed(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert (reader.usage, reader.events) == (FULL, 3)


@pytest.mark.parametrize(
    "value",
    [None, "x", {}, [], 5, -1.5, True, {"prompt_tokens": None}, {"prompt_tokens": "7"}, {"prompt_tokens": -7},
     {"prompt_tokens": 7.5}, {"prompt_tokens": [7]}, {"prompt_tokens": True}, {"completion_tokens": {}}],
)  # fmt: skip
def test_malformed_usage_is_no_usage(value: Any) -> None:
    assert usage_of(value) is None
    assert streamed(event({"usage": value})).usage is None
    whole = UsageReader(streamed=False)
    whole.feed(json.dumps({"usage": value}).encode())
    whole.finish()
    assert whole.usage is None


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 10}, FULL),
        ({"input_tokens": 7, "output_tokens": 10}, FULL),
        ({"prompt_tokens": 7}, Usage(prompt_tokens=7)),
        ({"prompt_tokens": 7, "completion_tokens": "x"}, Usage(prompt_tokens=7)),
        ({"completion_tokens": 10}, Usage(completion_tokens=10)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(prompt_tokens=7, cached_tokens=4)),
        ({"prompt_tokens": 7, "prompt_tokens_details": None}, Usage(prompt_tokens=7)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": None}}, Usage(prompt_tokens=7)),
        ({"prompt_tokens": 7, "prompt_tokens_details": [4]}, Usage(prompt_tokens=7)),
        ({"input_tokens": 7, "input_tokens_details": {"cached_tokens": 0}}, Usage(prompt_tokens=7, cached_tokens=0)),
        ({"input_tokens": 7, "cache_read_input_tokens": 3}, Usage(prompt_tokens=10, cached_tokens=3)),
        (
            {"input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2},
            Usage(prompt_tokens=12, cached_tokens=3),
        ),
        (
            {"input_tokens": 7, "cache_read_input_tokens": 0, "cache_creation_input_tokens": None},
            Usage(prompt_tokens=7, cached_tokens=0),
        ),
        ({"output_tokens": 5, "cache_read_input_tokens": 3}, Usage(completion_tokens=5, cached_tokens=3)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(completion_tokens=0)),
        ({"prompt_tokens": 0}, None),
        ({"input_tokens": 0, "cache_read_input_tokens": 9}, Usage(prompt_tokens=9, cached_tokens=9)),
    ],
)
def test_usage_of_every_api(value: Any, usage: Usage) -> None:
    assert usage_of(value) == usage


def test_usage_of_the_responses_api_comes_with_the_completed_event() -> None:
    inner = {"id": "resp", "output": [], "usage": {"input_tokens": 7, "output_tokens": 10}}
    reader = streamed(
        b"event: response.created\n" + event({"type": "response.created", "response": {"usage": None}}),
        b"event: response.output_text.delta\n" + event({"type": "response.output_text.delta", "delta": "hi"}),
        b"event: response.completed\n" + event({"type": "response.completed", "response": inner}),
    )
    assert (reader.usage, reader.events) == (FULL, 1)


def test_usage_of_the_messages_api_is_put_together() -> None:
    reader = streamed(
        event({"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}),
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}}),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}}),
    )
    assert (reader.usage, reader.events) == (FULL, 1)


def test_a_prompt_that_was_counted_is_not_forgotten_for_a_zero() -> None:
    reader = streamed(
        event({"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 0}}}),
        event({"type": "message_delta", "usage": {"input_tokens": 0, "output_tokens": 10}}),
    )
    assert reader.usage == FULL


@pytest.mark.parametrize("how", ["incomplete", "failed"])
def test_usage_of_a_response_that_did_not_complete(how: str) -> None:
    inner = {"id": "resp", "usage": {"input_tokens": 7, "output_tokens": 10}}
    assert streamed(event({"type": f"response.{how}", "response": inner})).usage == FULL


def test_the_prompt_of_a_messages_answer_is_all_of_it_however_much_came_from_the_cache() -> None:
    end = {"input_tokens": 40, "cache_read_input_tokens": 960, "cache_creation_input_tokens": 0, "output_tokens": 10}
    reader = streamed(
        event({"type": "message_start", "message": {"usage": {"input_tokens": 1_000, "output_tokens": 0}}}),
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}}),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end}),
    )
    assert reader.usage == Usage(prompt_tokens=1_000, completion_tokens=10, cached_tokens=960)


@pytest.mark.parametrize(
    ("chunk", "content"),
    [
        (delta(role="assistant"), False),
        (delta(role="assistant", content=""), False),
        (delta(role="assistant", content=None, tool_calls=[]), False),
        (event({"choices": [{"delta": {}, "finish_reason": "stop"}]}), False),
        (b": ping\n\n", False),
        (b"event: content\n\n", False),
        (DONE, False),
        (delta(content="a"), True),
        (delta(content='"'), True),
        (delta(reasoning_content="hm"), True),
        (delta(reasoning="hm"), True),
        (delta(refusal="no"), True),
        (delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]), True),
        (event({"choices": [{"text": " a"}]}), True),
        (event({"choices": [{"text": ""}]}), False),
        (event({"type": "response.output_text.delta", "delta": "a"}), True),
        (event({"type": "response.created", "response": {"output": []}}), False),
        (event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}), False),
        (event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}), True),
        (event({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}), True),
        (b'data: {"choices":[{"delta":{"content" : "a"}}]}\n\n', True),
    ],
)
def test_the_first_token_is_the_first_content(chunk: bytes, content: bool) -> None:
    reader = UsageReader(streamed=True)
    reader.feed(chunk)
    assert reader.first_token_seen is content


def test_a_document_that_is_not_streamed() -> None:
    whole = json.dumps({"choices": [{"message": {"content": "x"}}], "usage": json.loads(USAGE)}).encode()
    reader = UsageReader(streamed=False)
    for at in range(0, len(whole), 10):
        reader.feed(whole[at : at + 10])
        assert reader.usage is None
    reader.finish()
    assert reader.usage == FULL


@pytest.mark.parametrize("streams", [True, False])
def test_memory_is_bounded_and_usage_at_the_end_still_found(streams: bool) -> None:
    vectors = b'{"object":"list","data":[' + b"0.12345," * 100_000 + b'0],"usage":' + USAGE + b"}"
    whole = b"data: " + vectors + b"\n\n" if streams else vectors
    reader = UsageReader(streamed=streams)
    for at in range(0, len(whole), 30_000):
        reader.feed(whole[at : at + 30_000])
        assert len(reader._held) <= MAX_HELD
    reader.finish()
    assert reader.usage == FULL


def test_after_a_line_that_was_too_long_the_next_is_read_again() -> None:
    reader = UsageReader(streamed=True)
    reader.feed(b"data: " + b"x" * (2 * MAX_HELD))
    reader.feed(b'\n: {"content":"no event"}\n' + delta(content="a") + b'data: {"usage":' + USAGE + b"}\n\n")
    assert (reader.usage, reader.events) == (FULL, 1)


@pytest.mark.parametrize("name", [name for name, (_, head, _) in RECORDED.items() if "event-stream" in str(head)])
def test_recorded_streams(name: str) -> None:
    text = RECORDED[name][2].encode()
    reader = streamed(*(text[at : at + 100] for at in range(0, len(text), 100)))
    assert reader.first_token_seen
    assert (reader.usage is not None) is (b'"usage":{' in text)
    if reader.usage is not None:
        assert reader.usage.prompt_tokens and reader.usage.completion_tokens


@pytest.mark.parametrize(
    "name",
    [name for name, (_, head, body) in RECORDED.items() if '"usage":{' in body and "event-stream" not in str(head)],
)
def test_recorded_documents(name: str) -> None:
    reader = UsageReader(streamed=False)
    reader.feed(RECORDED[name][2].encode())
    reader.finish()
    assert reader.usage is not None and reader.usage.prompt_tokens


PIECES = st.sampled_from(
    [b"data: ", b"data:", b"\n", b"\r\n", b"\n\n", b'"usage":', b"{", b"}", b"[", b'"', b"\\", b"null", b"-1", b"1.5",
     USAGE, b'{"usage":' + USAGE + b"}", b'"prompt_tokens":', b"\xff", b'"content":"a"', b'"response":{', b"[DONE]"]
)  # fmt: skip


@given(st.lists(PIECES | st.binary(max_size=8), max_size=30), st.booleans())
def test_nothing_an_engine_sends_makes_it_raise(chunks: list[bytes], streams: bool) -> None:
    reader = UsageReader(streamed=streams)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    assert reader.usage is None or isinstance(reader.usage, Usage)


PIECES = (
    '"content":"',
    '"delta":"',
    '"tool_calls":[{',
    '"tool_calls":[{"',
    '"function_call":{"',
    '"',
    "a",
    " ",
    '"role":"assistant",',
)


@example(['"content":"a', '"content":""', '"content":"', '"content":"b'])
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), max_size=8))
def test_events_that_begin_as_the_one_before_are_read_alike(texts: list[str]) -> None:
    """What is remembered of the last event with content changes nothing but the cost."""
    lines = [b"data: " + text.encode() for text in texts]
    reader = streamed(*(line + b"\n" for line in lines))
    assert reader.events == sum(_CONTENT.search(line) is not None for line in lines)
