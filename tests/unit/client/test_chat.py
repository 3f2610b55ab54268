"""Reading a streamed answer: any split of the bytes, and everything that makes an answer a bad one."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_chat import choice, completion_events, event
from poolpilot_lab.client.chat import Message, chat_body, chat_headers, read_completion
from poolpilot_lab.client.connection import Answer
from poolpilot_lab.client.errors import AnswerError
from poolpilot_lab.workload.sessions import Turn


def answer(chunks: list[bytes], status: int = 200) -> Answer:
    """An answer whose chunk i arrived at second 10 + i."""
    return Answer(1.0, status=status, chunks=chunks, chunk_s=[10.0 + index for index in range(len(chunks))])


def test_times_are_those_of_the_chunks_with_the_first_and_the_last_token() -> None:
    completion = read_completion(answer(completion_events(4)), 4)
    assert (completion.first_token_s, completion.last_token_s) == (11.0, 14.0), "chunk 0 holds the role, no token"
    assert completion.text == " w0 w1 w2 w3"
    assert (completion.prompt_tokens, completion.cached_tokens, completion.output_tokens) == (7, 3, 4)


def test_an_engine_that_does_not_tell_cached_tokens() -> None:
    assert read_completion(answer(completion_events(1, cached_tokens=None)), 1).cached_tokens is None


def test_where_the_engine_decides_any_length_is_right() -> None:
    assert read_completion(answer(completion_events(4)), 0).output_tokens == 4
    assert "x-engine-output-tokens" not in chat_headers(Turn("?", 0.0, 0, None))
    assert chat_headers(Turn("?", 0.0, 3, None))["x-engine-output-tokens"] == "3"


@given(st.lists(st.integers(0, 900), max_size=12))
def test_any_split_of_the_bytes_reads_the_same(cuts: list[int]) -> None:
    whole = b"".join(completion_events(5))
    marks = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    chunks = [whole[start:end] for start, end in itertools.pairwise(marks)]
    completion = read_completion(answer(chunks), 5)
    assert completion.text == " w0 w1 w2 w3 w4"
    assert 10.0 <= completion.first_token_s <= completion.last_token_s < 10.0 + len(chunks)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (completion_events(3)[:-1], r"without a finish reason and \[DONE\]"),
        ([*completion_events(3)[:2], event(b"[DONE]")], "without a finish reason"),
        (completion_events(4), "4 tokens came, 3 were asked for"),
        ([*completion_events(3)[:-2], event(b"[DONE]")], "no usage"),
        ([event(choice("", "length")), *completion_events(3)[-2:]], "no token"),
        ([event(b"{]"), *completion_events(3)], "not a chat completion chunk"),
        ([event({"error": {"message": "out of memory", "code": 500}})], "mid-stream.*out of memory"),
        ([], "without a finish reason"),
    ],
)
def test_a_bad_answer_says_what_is_wrong(events: list[bytes], says: str) -> None:
    with pytest.raises(AnswerError, match=says):
        read_completion(answer(events), 3)


def test_another_status_shows_the_body() -> None:
    with pytest.raises(AnswerError, match="status 404: no such model"):
        read_completion(answer([b"no such ", b"model"], status=404), 3)


@pytest.mark.parametrize(("limit", "expected"), [(None, {}), (64, {"max_tokens": 64})])
def test_the_body_of_a_turn(limit: int | None, expected: dict[str, Any]) -> None:
    turn = Turn("hello", 0.0, 12, limit)
    body = json.loads(chat_body("m", [Message("user", "hello")], turn))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **expected,
    }
    assert chat_headers(turn)["x-engine-output-tokens"] == "12"
