"""What a client gets: framing, lengths, choices, determinism, cached tokens, and errors that name the field."""

import asyncio
from typing import Any

import pytest

from engine_http import Reply, call, events, read_chunks, read_head, request, serving
from poolpilot_lab.engine import prose, tokens
from poolpilot_lab.engine.server import EngineServer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Tell me about queues, please."}]


async def post(server: EngineServer, path: str, headers: dict[str, str] | None = None, **body: Any) -> Reply:
    return await call(server, "POST", path, body, headers)


def text(reply: Reply, index: int = 0) -> str:
    """The text of one choice, streamed or whole."""
    if reply.headers["content-type"] == "application/json":
        choice = reply.json["choices"][index]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    choices = [choice for event in events(reply.body) if event != "[DONE]" for choice in event["choices"]]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"]["content"]
        for choice in choices
        if choice["index"] == index
    )


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "Queues are"})])
async def test_one_chunk_per_event_and_done_at_the_end(path: str, body: dict[str, Any]) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("POST", path, {**body, "stream": True, "max_tokens": 6, "ignore_eos": True}))
        status, headers, _ = await read_head(reader)
        chunks = [chunk async for chunk in read_chunks(reader)]
        writer.close()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert len(chunks) == 6 + 1 + (path == CHAT)
    seen = [event["choices"][0]["finish_reason"] for event in events(b"".join(chunks))[:-1]]
    assert seen == [None] * (len(seen) - 1) + ["length"]


async def test_stream_and_whole_answer_say_the_same() -> None:
    async with serving() as server:
        for path, body in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "Queues are", "max_tokens": 40})):
            whole = await post(server, path, **body)
            stream = await post(server, path, **body, stream=True, stream_options={"include_usage": True})
            assert text(stream) == text(whole) != ""
            usage = events(stream.body)[-2]["usage"]
            expected = whole.json["usage"]
            assert usage["completion_tokens"] == expected["completion_tokens"]
            assert usage["prompt_tokens"] == expected["prompt_tokens"]
            assert "usage" not in events((await post(server, path, **body, stream=True)).body)[-2] or path == TEXT


async def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving() as server:
        reply = await post(server, CHAT, messages=HELLO, stream=True, stream_options=options, max_tokens=3)
    counts = [event["usage"]["completion_tokens"] for event in events(reply.body)[1:-1]]
    assert counts == [1, 2, 3, 3]


async def test_answers_are_the_same_on_every_engine_and_differ_by_prompt_and_seed() -> None:
    async with serving() as one, serving(seed=99) as other:
        first = await post(one, CHAT, messages=HELLO)
        assert text(await post(other, CHAT, messages=HELLO)) == text(first)
        assert text(await post(one, CHAT, messages=HELLO, seed=7)) != text(first)
        assert text(await post(one, CHAT, messages=[{"role": "user", "content": "Other."}])) != text(first)


async def test_the_natural_length_does_not_depend_on_max_tokens() -> None:
    async with serving() as server:
        natural = (await post(server, CHAT, messages=HELLO)).json
        length = natural["usage"]["completion_tokens"]
        roomy = (await post(server, CHAT, messages=HELLO, max_tokens=length + 100)).json
        tight = (await post(server, CHAT, messages=HELLO, max_completion_tokens=length - 1)).json
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert roomy["usage"]["completion_tokens"] == length
    assert tight["usage"]["completion_tokens"] == length - 1
    assert tight["choices"][0]["finish_reason"] == "length"
    assert tokens.tokenize(natural["choices"][0]["message"]["content"].encode()).tokens == length


async def test_lengths_spread_around_the_median() -> None:
    async with serving(output_median=30.0, output_sigma=0.5) as server:
        replies = await asyncio.gather(
            *(post(server, TEXT, prompt=f"Question {n}", max_tokens=1000) for n in range(60))
        )
    lengths = sorted(reply.json["usage"]["completion_tokens"] for reply in replies)
    assert 20 <= lengths[30] <= 40
    assert lengths[0] < 22 < 45 < lengths[-1]


async def test_a_test_client_can_fix_the_length() -> None:
    async with serving() as server:
        by_header = await post(server, CHAT, {"x-engine-output-tokens": "33"}, messages=HELLO)
        completion = await post(server, TEXT, {"x-engine-output-tokens": "33"}, prompt="a")
        capped = await post(server, CHAT, {"x-engine-output-tokens": "33"}, messages=HELLO, max_tokens=5)
        ignoring = await post(server, CHAT, messages=HELLO, max_tokens=44, ignore_eos=True)
        at_least = await post(server, CHAT, messages=HELLO, min_tokens=900)
        wrong = await post(server, CHAT, {"x-engine-output-tokens": "-3"}, messages=HELLO)
    assert [r.json["usage"]["completion_tokens"] for r in (by_header, completion, capped, ignoring)] == [33, 33, 5, 44]
    assert at_least.json["usage"]["completion_tokens"] == 900
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "x-engine-output-tokens")
    assert "'-3'" in wrong.json["error"]["message"]


async def test_a_completion_without_a_limit_has_sixteen_tokens() -> None:
    async with serving(output_median=200.0, output_sigma=0.0) as server:
        assert (await post(server, TEXT, prompt="a")).json["usage"]["completion_tokens"] == 16
        assert (await post(server, CHAT, messages=HELLO)).json["usage"]["completion_tokens"] == 200


async def test_several_choices_and_several_prompts() -> None:
    async with serving() as server:
        chat = await post(server, CHAT, messages=HELLO, n=3)
        assert [choice["index"] for choice in chat.json["choices"]] == [0, 1, 2]
        texts = [text(chat, index) for index in range(3)]
        assert len(set(texts)) == 3
        stream = await post(server, CHAT, messages=HELLO, n=3, stream=True)
        assert [text(stream, index) for index in range(3)] == texts
        assert events(stream.body)[-1] == "[DONE]"
        single = await post(server, TEXT, prompt="two", max_tokens=9)
        many = await post(server, TEXT, prompt=["one", "two"], n=2, max_tokens=9)
        assert [choice["index"] for choice in many.json["choices"]] == [0, 1, 2, 3]
        assert text(many, 2) == text(single)
        usage = many.json["usage"]
        assert usage["prompt_tokens"] == 2, "each prompt counts once"
        ids = await post(server, TEXT, prompt=[[1, 2, 3], [4, 5, 6, 7]], max_tokens=2)
        assert ids.json["usage"]["prompt_tokens"] == 7
        assert server.engine.telemetry.request_choices.sum == 1 * 1 + 2 * 4 + 3 * 6 + 2 * 1


async def test_cached_tokens_are_told_and_follow_the_conversation() -> None:
    question = {"role": "user", "content": "Tell me about queues. " * 40}
    async with serving() as server:
        first = (await post(server, CHAT, messages=[question])).json
        again = (await post(server, CHAT, messages=[question])).json
        answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        turn = (await post(server, CHAT, messages=[question, answer, HELLO[0]])).json
        salted = (await post(server, CHAT, messages=[question], cache_salt="tenant")).json
    cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in (first, again, turn, salted)]
    prompt = first["usage"]["prompt_tokens"]
    assert cached[0] == 0
    assert cached[1] == (prompt - 1) // 16 * 16
    total = prompt + first["usage"]["completion_tokens"]
    assert total - 17 <= cached[2] <= total, "the answer's blocks are found too"
    assert cached[3] == 0


async def test_adapters_share_no_prefix() -> None:
    from poolpilot_lab.engine.models import Adapter

    async with serving(enable_lora=True, lora_modules=(Adapter("ad-a", "/a"),)) as server:
        body = {"messages": [{"role": "user", "content": "word " * 200}]}
        await post(server, CHAT, **body)
        other = (await post(server, CHAT, **body, model="ad-a")).json
        again = (await post(server, CHAT, **body, model="ad-a")).json
    assert other["model"] == "ad-a"
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 190


async def test_every_content_shape_is_computed() -> None:
    async def count(*messages: dict[str, Any], **body: Any) -> int:
        reply = await post(server, CHAT, messages=list(messages), max_tokens=1, **body)
        assert reply.status == 200, reply.body
        return reply.json["usage"]["prompt_tokens"]

    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    words = {"type": "text", "text": "What is this?"}
    call_ = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with serving() as server:
        plain = await count({"role": "user", "content": "What is this?"})
        assert await count({"role": "user", "content": [words]}) == plain
        assert await count({"role": "user", "content": [words, image]}) > plain + 500
        calls = await count(
            {"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call_]}
        )
        assert calls > plain
        assert await count({"role": "user", "content": "What is this?"}, tools=[tool]) > plain + 10
        assert await count({"role": "user", "content": "What is this?"}, tools=None) == plain


async def test_embeddings_take_one_prefill() -> None:
    async with serving() as server:
        reply = await post(server, "/v1/embeddings", model="tiny", input=["one two", "three"])
        steps = server.engine.telemetry.steps
    assert steps == 1
    data = reply.json["data"]
    assert [entry["index"] for entry in data] == [0, 1]
    assert data[0]["embedding"] != data[1]["embedding"]
    assert reply.json["usage"]["prompt_tokens"] == 3


async def test_tokenize_tells_what_usage_will_say() -> None:
    async with serving() as server:
        reply = (await post(server, "/tokenize", prompt="What is a queue?")).json
        chat = (await post(server, "/tokenize", messages=HELLO)).json
        usage = (await post(server, CHAT, messages=HELLO)).json["usage"]
    assert reply["count"] == len(reply["tokens"]) == tokens.tokenize(b"What is a queue?").tokens == 5
    assert chat["count"] == usage["prompt_tokens"]


async def test_a_router_is_told_the_tokens_of_a_chat_before_it_asks_for_the_answer() -> None:
    async with serving() as server:
        rendered = await post(server, f"{CHAT}/render", messages=HELLO, max_tokens=7, stream=True)
        counted = (await post(server, "/tokenize", messages=HELLO)).json
        assert server.engine.in_flight == 0
    assert rendered.status == 200
    assert rendered.json["token_ids"] == counted["tokens"]
    assert rendered.json["sampling_params"]["max_tokens"] == 7
    assert rendered.json["request_id"].startswith("chatcmpl-")


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "says"),
    [
        (CHAT, b"{", 400, "body", "JSON decode error"),
        (CHAT, b"\xff", 400, "body", "JSON decode error"),
        (CHAT, {}, 400, "body", "messages"),
        (CHAT, {"messages": []}, 400, "body.messages", "at least 1 item"),
        (CHAT, {"messages": [{"content": "x"}]}, 400, "body.messages[0]", "role"),
        (CHAT, {"messages": HELLO, "max_tokens": "9"}, 400, "body.max_tokens", "got `str`"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, 400, "max_tokens", "must be at least 1, got 0"),
        (CHAT, {"messages": HELLO, "n": 0}, 400, "n", "between 1 and 128, got 0"),
        (CHAT, {"messages": HELLO, "min_tokens": 9, "max_tokens": 3}, 400, "min_tokens", "max_tokens=3, got 9"),
        (CHAT, {"messages": HELLO, "max_tokens": 5000}, 400, "input_tokens", "you requested 5000 output tokens"),
        (TEXT, {}, 400, "body.prompt", "Field required"),
        (TEXT, {"prompt": ""}, 400, "body.prompt", "at least 1 character"),
        (TEXT, {"prompt": []}, 400, "body.prompt", "at least 1 item"),
        (TEXT, {"prompt": ["a", 1]}, 400, "body.prompt.1", "Input should be a string"),
        (TEXT, {"prompt": [-1]}, 400, "body.prompt", "non-negative"),
        (TEXT, {"model": "nope", "prompt": "a"}, 404, "model", "`nope` does not exist"),
        ("/v1/embeddings", {"input": {}}, 400, "body.input", "got `object`"),
        ("/tokenize", {}, 400, "body.prompt", "Field required"),
        (f"{CHAT}/render", {"messages": []}, 400, "body.messages", "at least 1 item"),
        (f"{CHAT}/render", {"model": "nope", "messages": HELLO}, 404, "model", "`nope` does not exist"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(path: str, body: Any, status: int, param: str, says: str) -> None:
    async with serving() as server:
        reply = await call(server, "POST", path, body)
        assert server.engine.in_flight == 0
    assert reply.status == status
    error = reply.json["error"]
    assert (error["param"], error["code"]) == (param, status)
    assert says in error["message"]


async def test_prose_is_ascii_so_that_its_json_needs_no_escapes() -> None:
    assert all(
        byte in b" ,.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        for byte in b"".join(prose.answer(0, prose.STREAM, after_space=False))
    )
