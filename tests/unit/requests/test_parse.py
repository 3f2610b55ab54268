"""Bodies of every API → InferenceRequest."""

from __future__ import annotations

import base64
import gzip
import json
import time
from typing import Any

import pytest

from poolpilot_picker.errors import BadRequest
from poolpilot_picker.requests import InferenceRequest, RequestHead, RequestKind, parse, read_head

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
LONG = " ".join(f"sentence number {i} of a long text" for i in range(200))


def head(path: str, **fields: str) -> RequestHead:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return read_head([(":method", "POST"), (":path", path), ("content-type", "application/json"), *named.items()])


def read(path: str, body: Any, **options: Any) -> InferenceRequest:
    return parse(head(path), body if isinstance(body, bytes) else json.dumps(body).encode(), **options)


def chat(*messages: Any, **fields: Any) -> InferenceRequest:
    return read(CHAT, {"model": "m", "messages": list(messages), **fields})


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, {"messages": HELLO}, {"kind": RequestKind.CHAT, "max_tokens": None, "sequences": 1, "stream": False}),
        (CHAT, {"messages": HELLO, "max_tokens": 7, "n": 3}, {"max_tokens": 7, "sequences": 3}),
        (CHAT, {"messages": HELLO, "stream": True}, {"stream": True}),
        (CHAT, {"messages": HELLO, "max_tokens": 7, "max_completion_tokens": 5}, {"max_tokens": 5}),
        (CHAT, {"messages": HELLO, "max_tokens": 7, "max_completion_tokens": None}, {"max_tokens": 7}),
        (CHAT, {"messages": HELLO, "max_tokens": None, "n": None, "stream": None}, {"max_tokens": None}),
        (CHAT, {"messages": HELLO, "max_tokens": 16.0}, {"max_tokens": 16}),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, {"max_tokens": 0}),
        (CHAT, {"messages": HELLO, "max_tokens": -1}, {"max_tokens": None, "unlimited": True}),
        (CHAT, {"messages": HELLO, "max_tokens": 10**40}, {"max_tokens": None}),
        (CHAT, {"messages": HELLO, "n": 0}, {"sequences": 1}),
        (CHAT, {"messages": HELLO, "n": 10**9}, {"sequences": 16_384}),
        (COMPLETIONS, {"prompt": "hello"}, {"kind": RequestKind.COMPLETIONS, "sequences": 1}),
        (COMPLETIONS, {"prompt": "hello", "max_tokens": 9, "n": 2, "best_of": 4}, {"max_tokens": 9, "sequences": 4}),
        (COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}, {"sequences": 6}),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, {"sequences": 1, "prompt_tokens": 3}),
        (COMPLETIONS, {"prompt": [[1, 2, 3], [4]]}, {"sequences": 2, "prompt_tokens": 4}),
        (COMPLETIONS, {"prompt": ""}, {"sequences": 1, "prompt_tokens": 1}),
        (COMPLETIONS, {"prompt": None, "prompt_embeds": "AAAA" * 8192}, {"fixed_tokens": pytest.approx(3, rel=0.01)}),
        (EMBEDDINGS, {"input": "hello"}, {"kind": RequestKind.EMBEDDINGS, "sequences": 1, "max_tokens": 0}),
        (EMBEDDINGS, {"input": ["a", "b"]}, {"sequences": 2}),
        (EMBEDDINGS, {"input": [[5, 6], [7, 8], [9]]}, {"sequences": 3, "prompt_tokens": 5}),
        (EMBEDDINGS, {"messages": HELLO}, {"sequences": 1}),
        (RESPONSES, {"input": "hello"}, {"kind": RequestKind.RESPONSES, "max_tokens": None}),
        (RESPONSES, {"input": HELLO, "max_output_tokens": 8, "stream": True}, {"max_tokens": 8, "stream": True}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 8}, {"kind": RequestKind.MESSAGES, "max_tokens": 8}),
    ],
)  # fmt: skip
def test_what_is_read(path: str, body: dict[str, Any], expected: dict[str, Any]) -> None:
    request = read(path, {"model": "m", **body})
    assert (request.model, request.target_model, request.is_inference) == ("m", "m", True)
    assert {name: getattr(request, name) for name in expected} == expected
    assert request.prompt_tokens >= 1


def test_the_head_is_taken_over() -> None:
    request = parse(
        head(
            CHAT,
            x_request_id="id-1",
            x_llm_d_inference_fairness_id="team-a",
            x_llm_d_inference_objective="fast",
            x_poolpilot_routing_key="session-1",
            x_llm_d_slo_ttft_ms="200",
            x_llm_d_slo_tpot_ms="20",
            x_poolpilot_receipt="1",
            prefer="if-available",
            test_epp_endpoint_selection="10.0.0.1",
        ),
        json.dumps({"model": "m", "messages": HELLO}).encode(),
    )
    assert (request.request_id, request.path, request.tenant, request.objective) == ("id-1", CHAT, "team-a", "fast")
    assert (request.routing_key, request.slo_ttft_ms, request.slo_tpot_ms) == ("session-1", 200.0, 20.0)
    assert (request.receipt_wanted, request.only_if_cached, request.test_selection) == (True, True, ("10.0.0.1",))


def test_unknown_fields_are_skipped_whatever_they_hold() -> None:
    odd = {"seed": 10**30, "logit_bias": {"1": -100}, "response_format": {"deep": [[[{}]]]}, "model_": 5, "stop": ["x"]}
    assert chat(*HELLO, **odd).prompt_tokens == chat(*HELLO).prompt_tokens


@pytest.mark.parametrize(
    "raw",
    [
        b'\xef\xbb\xbf{"model":"m","prompt":"x"}',
        b' \n{"prompt":"x","model":"m"}\n ',
        b'{"mod\\u0065l":"m","prompt":"x"}',
        b'{"model":"first","prompt":"x","model":"m"}',
        b'{"nested":{"model":"other"},"prompt":"x","model":"m","tail":[{"model":"other"}]}',
        b'{"model":"m","prompt":"\\ud83d\\ude00 \xf0\x9f\x98\x80"}',
    ],
)
def test_the_model_is_the_last_one_at_the_top(raw: bytes) -> None:
    assert read(COMPLETIONS, raw).model == "m"


@pytest.mark.parametrize(
    "content",
    [
        "hello there",
        [{"type": "text", "text": "hello there"}],
        ["hello there"],
        [{"type": "input_text", "text": "hello there"}],
        [{"type": "refusal", "refusal": "hello there"}],
        [{"type": "thinking", "thinking": "hello there"}],
    ],
)
def test_a_text_is_the_same_prompt_in_whatever_shape_it_comes(content: Any) -> None:
    words = [{"role": "user", "content": LONG}, {"role": "user", "content": content}, {"role": "user", "content": LONG}]
    plain = [{**message, "content": "hello there" if message["content"] is content else LONG} for message in words]
    assert list(chat(*words).prefix.hashes) == list(chat(*plain).prefix.hashes)
    assert chat(*words).prompt_tokens == chat(*plain).prompt_tokens


def test_texts_of_one_message_are_joined_by_a_line_feed() -> None:
    parts = [{"type": "text", "text": LONG}, {"type": "text", "text": "more"}]
    assert list(chat({"content": parts}).prefix.hashes) == list(chat({"content": f"{LONG}\nmore"}).prefix.hashes)


@pytest.mark.parametrize("content", [None, "", []])
def test_content_may_be_missing(content: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat(*HELLO, {"role": "assistant", "content": content, "tool_calls": [call]}).prompt_tokens > 5


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "42"}),
        ({"role": "assistant", "content": "x", "reasoning_content": "hm"}, {"role": "user", "content": "and?"}),
        ({"role": "assistant", "content": "x", "reasoning": "hm"}, {"role": "user", "content": "and?"}),
        ({"role": "assistant", "refusal": "no"}, {"role": "user", "content": "please"}),
    ],
)
def test_a_longer_conversation_extends_the_chain_of_a_shorter_one(first: Any, then: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    system = {"role": "system", "content": LONG}
    short, long = chat(system, first, tools=tools), chat(system, first, then, {"content": LONG}, tools=tools)
    assert len(short.prefix.hashes) > 20
    assert list(long.prefix.hashes)[: len(short.prefix.hashes)] == list(short.prefix.hashes)
    assert len(long.prefix.hashes) > len(short.prefix.hashes)
    other = chat(system, {**first, "content": "something else"}, then, {"content": LONG}, tools=tools)
    assert list(other.prefix.hashes)[-1] != list(long.prefix.hashes)[-1]


@pytest.mark.parametrize(
    "difference",
    [
        {"model": "other"},
        {"cache_salt": "tenant-b"},
        {"extra_key": "tenant-b"},
        {"extra_key": ["tenant-b"]},
        {"lora_path": "adapter"},
        {"tools": [{"name": "f"}]},
        {"messages": [{"role": "system", "content": LONG}]},
    ],
)
def test_what_the_engine_would_not_share_is_not_shared(difference: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
    assert not set(read(CHAT, body).prefix.hashes) & set(read(CHAT, {**body, **difference}).prefix.hashes)


@pytest.mark.parametrize(
    "same",
    [
        {"cache_salt": None},
        {"cache_salt": ""},
        {"temperature": 1},
        {"tools": None},
        {"tools": []},
        {"lora_path": None},
        {"extra_key": None},
        {"extra_key": ""},
    ],
)
def test_what_the_engine_would_share_is_shared(same: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
    assert list(read(CHAT, body).prefix.hashes) == list(read(CHAT, {**body, **same}).prefix.hashes)


def test_all_apis_of_a_conversation_feed_the_same_chain() -> None:
    turns = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "yes"}]
    asked = read(CHAT, {"model": "m", "messages": [{"role": "system", "content": "be brief"}, *turns]})
    anthropic = read(MESSAGES, {"model": "m", "system": "be brief", "messages": turns, "max_tokens": 5})
    responses = read(RESPONSES, {"model": "m", "instructions": "be brief", "input": turns})
    assert list(asked.prefix.hashes) == list(anthropic.prefix.hashes) == list(responses.prefix.hashes)
    as_text = read(RESPONSES, {"model": "m", "input": LONG})
    assert list(as_text.prefix.hashes) == list(chat(turns[0]).prefix.hashes)


def test_what_a_client_writes_for_the_account_does_not_hide_the_rest_of_the_system_text() -> None:
    def system(digest: str) -> list[dict[str, str]]:
        line = f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={digest};"
        return [{"type": "text", "text": line}, {"type": "text", "text": LONG}]

    body = {"model": "m", "messages": HELLO, "max_tokens": 5}
    first, second = (read(MESSAGES, {**body, "system": system(digest)}) for digest in ("eb6c6", "4e20a"))
    assert list(first.prefix.hashes) == list(second.prefix.hashes) != []
    without = read(MESSAGES, {**body, "system": system("eb6c6")[1:]})
    assert (first.prompt_tokens, list(first.prefix.hashes)) == (without.prompt_tokens, list(without.prefix.hashes))
    asked = [
        {"role": "user", "content": [{"type": "text", "text": f"{system(digest)[0]['text']} {LONG}"}]}
        for digest in ("eb6c6", "4e20a")
    ]
    chains = [set(read(MESSAGES, {**body, "messages": [message]}).prefix.hashes) for message in asked]
    assert not chains[0] & chains[1], "a message is a message"


def test_items_of_the_responses_api_take_part() -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "what now?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking"}], "content": None},
        {"type": "function_call", "name": "f", "call_id": "1", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "result " * 100},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "result " * 100}]},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "x" * 400}},
        {"type": "item_reference", "id": "msg_1"},
    ]
    tokens = [read(RESPONSES, {"model": "m", "input": items[:count]}).prompt_tokens for count in range(1, 8)]
    assert tokens == sorted(set(tokens))
    assert tokens[3] - tokens[2] > 100
    assert tokens[4] - tokens[3] > 100


def test_tool_results_of_anthropic_take_part() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": LONG}]}
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"city": "Oslo"}}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    request = read(MESSAGES, {"model": "m", "messages": messages, "max_tokens": 5})
    assert request.prompt_tokens > 1_000
    assert len(request.prefix.hashes) > 20


def test_results_inside_results_cost_their_size_once() -> None:
    deep: Any = "x" * 50_000
    for _ in range(100):
        deep = [{"type": "tool_result", "content": deep}]
    request = chat({"role": "user", "content": deep})
    assert 10_000 < request.prompt_tokens < 50_000
    assert list(request.prefix.hashes) == list(chat({"role": "user", "content": deep}).prefix.hashes)


def image(seed: int) -> str:
    data = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        + (1024).to_bytes(4, "big")
        + (512).to_bytes(4, "big")
        + bytes([seed]) * 300_000
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_an_image_counts_by_its_size_and_takes_part_in_the_chain() -> None:
    def request(data: str) -> InferenceRequest:
        parts = [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": LONG}]
        return chat({"role": "user", "content": parts})

    with_one, with_other = request(image(1)), request(image(2))
    assert with_one.prompt_tokens - chat({"role": "user", "content": LONG}).prompt_tokens == pytest.approx(512, abs=12)
    assert with_one.fixed_tokens == 512
    assert with_one.prefix.covered(1) > 512
    assert not set(with_one.prefix.hashes) & set(with_other.prefix.hashes)
    assert list(with_one.prefix.hashes) == list(request(image(1)).prefix.hashes)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, 225),
        ({"type": "image_url", "image_url": "https://example.com/a.png"}, 225),
        ({"type": "input_image", "image_url": image(1)}, 512),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image(1)[22:]}}, 512),
        ({"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "mp3"}}, 75),
        ({"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}, 250),
        ({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}, 2_250),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 64_000}}, 3_000),
        ({"type": "document", "source": {"type": "base64", "data": "A" * 64_000}}, 3_000),
        ({"type": "image", "image": image(1)}, 512),
        ({"type": "image", "image": "https://example.com/a.png"}, 225),
        ({"type": "audio", "audio": "https://example.com/a.wav"}, 250),
        ({"type": "video", "video": "https://example.com/a.mp4"}, 2_250),
        ({"type": "image_embeds", "image_embeds": "A" * 1_048_576}, 96),
        ({"type": "image_url", "image_url": None, "uuid": "a"}, 225),
        ({"type": "input_file", "file_url": "https://example.com/a.pdf"}, 1),
    ],
)  # fmt: skip
def test_what_is_no_text_counts_by_its_size(part: dict[str, Any], tokens: int) -> None:
    request = chat({"role": "user", "content": [part, {"type": "text", "text": "what is this?"}]})
    assert request.fixed_tokens == pytest.approx(tokens, rel=0.01)
    assert request.prompt_tokens < tokens * 1.02 + 20


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "image", "image": "https://example.com/a"}, {"type": "image", "image": "https://example.com/b"}),
        ({"type": "image_url", "image_url": None, "uuid": "a"}, {"type": "image_url", "image_url": None, "uuid": "b"}),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, {"type": "image_embeds", "image_embeds": "BBBB"}),
        ({"type": "audio_embeds", "audio_embeds": "AAAA"}, {"type": "audio_embeds", "audio_embeds": "BBBB"}),
        ({"type": "input_image", "file_id": "a"}, {"type": "input_image", "file_id": "b"}),
        ({"type": "redacted_thinking", "data": "a"}, {"type": "redacted_thinking", "data": "b"}),
    ],
)
def test_what_follows_another_medium_is_another_prompt(one: dict[str, Any], other: dict[str, Any]) -> None:
    text = {"type": "text", "text": LONG}
    chains = [set(chat({"role": "user", "content": [part, text]}).prefix.hashes) for part in (one, other, one)]
    assert chains[0] == chains[2]
    assert not chains[0] & chains[1]


def test_a_named_image_is_the_same_with_and_without_its_data() -> None:
    text = {"type": "text", "text": LONG}
    sent, named = (
        chat({"role": "user", "content": [{"type": "image_url", "image_url": image, "uuid": "cat-7"}, text]})
        for image in ({"url": "https://example.com/cat.png"}, None)
    )
    assert list(sent.prefix.hashes) == list(named.prefix.hashes)


def test_inputs_of_multimodal_embeddings_are_counted_one_by_one() -> None:
    items = [{"text": LONG}, {"image": image(1)}, {"text": "a cat", "image": image(2)}]
    request = read(EMBEDDINGS, {"model": "m", "input": items})
    assert (request.sequences, request.fixed_tokens, request.max_tokens) == (3, 1_024.0, 0)
    assert request.prompt_tokens > 1_024 + read(EMBEDDINGS, {"model": "m", "input": LONG}).prompt_tokens
    assert request.prefix.hashes != read(EMBEDDINGS, {"model": "m", "input": items[:2]}).prefix.hashes


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (CHAT, {"stream": "True"}, {"stream": True}),
        (CHAT, {"stream": "false"}, {"stream": False}),
        (CHAT, {"stream": 1}, {"stream": True}),
        (CHAT, {"max_tokens": "64", "n": "2"}, {"max_tokens": 64, "sequences": 2}),
        (CHAT, {"max_completion_tokens": "-1"}, {"max_tokens": None, "unlimited": True}),
        (COMPLETIONS, {"stream": "true", "max_tokens": "64", "best_of": "3"}, {"max_tokens": 64, "sequences": 3}),
        (RESPONSES, {"stream": "true", "max_output_tokens": "64"}, {"stream": True, "max_tokens": 64}),
        (EMBEDDINGS, {"stream": 0}, {"stream": False}),
    ],
)
def test_numbers_and_truth_may_be_written_as_text_as_engines_take_them(
    path: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": HELLO, "prompt": "null", "input": "1", **fields}
    if path == CHAT:
        body = {name: value for name, value in body.items() if name not in ("prompt", "input")}
    request = read(path, body)
    assert {name: getattr(request, name) for name in expected} == expected
    plain = read(path, {name: value for name, value in body.items() if name not in fields})
    assert list(request.prefix.hashes) == list(plain.prefix.hashes)
    assert request.prompt_tokens == plain.prompt_tokens


def test_every_image_counts_where_it_stands() -> None:
    def picture(number: int) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": f"https://example.com/{number}.png"}}

    text = {"type": "text", "text": "x" * 1_000}
    chain = chat({"content": [part for number in range(4) for part in (picture(number), text)]}).prefix
    gains = [chain.covered(blocks + 1) - chain.covered(blocks) for blocks in range(len(chain.hashes))]
    assert [block for block, gain in enumerate(gains) if gain > 225] == [0, 4, 8, 11]


def test_what_stands_for_an_image_in_the_chain_costs_no_tokens() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": f"https://example.com/{number}"}} for number in range(100)]
    assert chat({"content": pictures}).prompt_tokens <= 22_500 + 110


def test_no_more_media_are_looked_at_than_an_engine_could_take() -> None:
    few, many = (chat({"content": [{"type": "image_url", "image_url": ""}] * count}) for count in (4_096, 10_000))
    assert few.fixed_tokens == many.fixed_tokens == 4_096 * 225


def test_a_video_counts_by_what_the_client_says_of_it() -> None:
    body = {"model": "m", "messages": [{"content": [{"type": "video_url", "video_url": {"url": "x"}}]}]}
    fields = {"x_llm_d_video_fps": "2", "x_llm_d_video_duration_seconds": "20", "x_llm_d_video_resolution": "1024x512"}
    request = parse(head(CHAT, **fields), json.dumps(body).encode())
    assert request.fixed_tokens == 2 * 20 * 512


def test_token_ids_are_counted_not_estimated() -> None:
    ids = list(range(1_000, 3_000))
    request = read(COMPLETIONS, {"model": "m", "prompt": ids}, token_scale=lambda model: 3.0)
    assert (request.prompt_tokens, request.text_tokens, request.fixed_tokens) == (2_000, 0.0, 2_000.0)
    longer = read(COMPLETIONS, {"model": "m", "prompt": [*ids, 7, 8]})
    assert len(request.prefix.hashes) > 20
    assert list(longer.prefix.hashes)[: len(request.prefix.hashes)] == list(request.prefix.hashes)
    compact = read(COMPLETIONS, json.dumps({"model": "m", "prompt": ids}, separators=(",", ":")).encode())
    assert list(compact.prefix.hashes) == list(request.prefix.hashes)


def test_one_prompt_in_a_list_is_that_prompt() -> None:
    alone, listed = (read(COMPLETIONS, {"model": "m", "prompt": prompt}) for prompt in (LONG, [LONG]))
    assert list(alone.prefix.hashes) == list(listed.prefix.hashes)


def test_the_target_model_seeds_the_chain_and_scales_the_estimate() -> None:
    body = json.dumps({"model": "alias", "prompt": LONG}).encode()
    scales = {"real": 1.5}.get
    plain = parse(head(COMPLETIONS), json.dumps({"model": "real", "prompt": LONG}).encode())
    request = parse(
        head(COMPLETIONS), body, target_of=lambda model: "real", token_scale=lambda model: scales(model, 1.0)
    )
    assert (request.model, request.target_model) == ("alias", "real")
    assert list(request.prefix.hashes) == list(plain.prefix.hashes)
    assert request.prompt_tokens == pytest.approx(plain.prompt_tokens * 1.5, abs=1)
    assert request.text_tokens == plain.text_tokens
    by_header = parse(head(COMPLETIONS, x_gateway_model_name_rewrite="real"), body)
    assert (by_header.model, by_header.target_model) == ("alias", "real")
    by_both = parse(head(COMPLETIONS, x_gateway_model_name_rewrite="header"), body, target_of=lambda model: "rule")
    assert (by_both.model, by_both.target_model) == ("alias", "rule")


def test_a_rule_for_every_request_takes_one_without_a_model() -> None:
    request = parse(head(COMPLETIONS), b'{"prompt":"a"}', target_of=lambda model: "" if model else "real")
    assert (request.model, request.target_model) == ("", "real")
    with pytest.raises(BadRequest, match="model not found"):
        parse(head(COMPLETIONS), b'{"prompt":"a"}', target_of=lambda model: "real" if model else "")


def test_what_cannot_be_rewritten_has_its_own_model_as_target() -> None:
    """The engine will be asked for the model that stands in the body."""
    cut = parse(
        head(COMPLETIONS, x_gateway_model_name_rewrite="other"),
        b'{"model":"m","prompt":"aaaa',
        complete=False,
        target_of=lambda model: "other",
    )
    assert (cut.model, cut.target_model) == ("m", "m")
    path = "/v1/audio/transcriptions"
    opaque = parse(head(path, x_gateway_model_name_rewrite="other"), b'{"model":"m"}', target_of=lambda model: "other")
    assert (opaque.model, opaque.target_model) == ("m", "m")


def test_an_adapter_apart_from_the_model() -> None:
    assert read(CHAT, {"model": "m", "messages": HELLO, "lora_path": "sql"}).adapter == "sql"
    assert read(CHAT, {"model": "m", "messages": HELLO, "lora_path": ["a", "b"]}).adapter == ""


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\nContent-Type: audio/mpeg\r\n\r\n'
    + b"\xff\xfb\0" * 40_000
    + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--b--\r\n'
)


def form(*parts: str) -> bytes:
    return "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in (*parts, "")).encode()


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (form('name="model"\r\n\r\nwhisper-1'), "whisper-1"),
        (form("name=model\r\n\r\norg/whisper"), "org/whisper"),
        (form('name="model"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nwhisper-1'), "whisper-1"),
        (form('name="file"; filename="model.txt"\r\n\r\nno model'), ""),
        (form('name="file"; filename=model\r\n\r\nno model'), ""),
        (form('name="model_size"\r\n\r\nlarge', 'name="model"\r\n\r\nwhisper-1'), "whisper-1"),
        (form('name="file"; filename="model.mp3"\r\n\r\nx', 'name="model"\r\n\r\nwhisper-1'), "whisper-1"),
        (form('filename="x"; name="model"\r\n\r\nwhisper-1'), "whisper-1"),
    ],
)
def test_the_model_of_a_form_is_the_part_of_that_name(body: bytes, model: str) -> None:
    received = {":method": "POST", ":path": "/v1/audio/transcriptions", "content-type": "multipart/form-data"}
    assert parse(read_head(received.items()), body).model == model


@pytest.mark.parametrize(
    "piece",
    [
        b";name=model;",
        b"a;name=model\r\n",
        b'; name="model"\r\n',
        b"\r\nContent-Disposition: ",
        b'\r\nContent-Disposition: x; name="model"',
        b'\r\nContent-Disposition: x; name="model"\r\n\r\n',
    ],
)
def test_a_hostile_form_costs_no_time_of_others(piece: bytes) -> None:
    received = {":method": "POST", ":path": "/v1/audio/transcriptions", "content-type": "multipart/form-data"}
    head, body = read_head(received.items()), piece * (200_000 // len(piece))
    began = time.process_time()
    assert parse(head, body).model == ""
    assert time.process_time() - began < 0.3, "it takes 10 ms; without bounds it took seconds"


@pytest.mark.parametrize(
    ("fields", "body", "model"),
    [
        ({":path": "/v1/audio/transcriptions", "content-type": "multipart/form-data; boundary=b"}, FORM, "whisper-1"),
        ({"content-encoding": "gzip"}, gzip.compress(b'{"model":"m","messages":[]}'), ""),
        ({"content-encoding": "gzip", "x-gateway-model-name": "m"}, gzip.compress(b"{}"), "m"),
        ({":path": "/v1/rerank"}, b'{"model":"m","query":"q","documents":["d"]}', "m"),
        ({":path": "/v1/rerank"}, b'{"model":5}', ""),
        ({":path": "/v1/rerank"}, b'{"model":', ""),
        ({":path": "/v1/rerank"}, b"[" * 100_000, ""),
        ({":path": "/v1/anything"}, b"\x00\xff", ""),
        ({"content-type": "text/plain"}, b'{"model":"m","messages":"wrong"}', "m"),
        ({":method": "GET", ":path": "/v1/models"}, b"", ""),
        ({"content-type": "application/grpc", ":path": "/vllm.grpc.engine.VllmEngine/Generate"}, b"\0\0\0\0\2ab", ""),
    ],
)
def test_what_is_no_json_inference_call_is_never_refused(fields: dict[str, str], body: bytes, model: str) -> None:
    received = {":method": "POST", ":path": CHAT, "content-type": "application/json", **fields}
    for complete in (True, False):
        request = parse(read_head(received.items()), body, complete=complete)
        assert (request.kind, request.is_inference) == (RequestKind.OTHER, False)
        assert request.model == request.target_model == model


def test_the_size_of_an_encoded_prompt_is_guessed() -> None:
    text = json.dumps({"model": "m", "messages": [{"content": LONG}]}).encode()
    request = parse(head(CHAT, content_encoding="gzip"), gzip.compress(text))
    assert 0 < request.prompt_tokens < 2 * read(CHAT, text).prompt_tokens


def refused(path: str, body: bytes | dict[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(path, body)
    return caught.value


def test_a_body_refused_is_a_bad_request() -> None:
    error = refused(CHAT, {"messages": HELLO})
    assert (error.status, error.text) == (400, "inference error: BadRequest - model not found in request body")
