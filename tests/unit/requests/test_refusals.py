"""What a refused client is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poolpilot_picker.errors import BadRequest, NoEndpoints, TooManyRequests
from poolpilot_picker.requests import error_body, parse, read_head

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]


def refusal(path: str, body: bytes | dict[str, Any]) -> BadRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(BadRequest) as caught:
        parse(read_head([(":method", "POST"), (":path", path), ("content-type", "application/json")]), raw)
    return caught.value


ARRAY = "messages must be a non-empty array of objects"
NO_JSON = "error unmarshaling request bodyMap: "
NO_MODEL = "model not found in request body"
NO_MESSAGES = "invalid chat completions request: must have valid messages field: "
NO_PROMPT = "invalid completions request: must have prompt field: "
NO_INPUT = "invalid embeddings request: must have input field: "
NO_ITEMS = "invalid responses request: must have input field: "


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        (COMPLETIONS, {"prompt": "x"}, NO_MODEL, "model"),
        (CHAT, {"messages": HELLO, "model": None}, NO_MODEL, "model"),
        (CHAT, {"messages": HELLO, "model": ""}, f"{NO_MODEL}: model must be a non-empty string", "model"),
        (CHAT, {"messages": HELLO, "model": 5}, f"{NO_MODEL}: model must be a string or null, got 5", "model"),
        (CHAT, {"messages": HELLO, "model": ["m"]}, f'{NO_MODEL}: model must be a string or null, got ["m"]', "model"),
        (CHAT, {"model": "m"}, f"{NO_MESSAGES}{ARRAY}", "messages"),
        (CHAT, {"model": "m", "messages": []}, f"{NO_MESSAGES}{ARRAY}, got []", "messages"),
        (CHAT, {"model": "m", "messages": "hi"},
         f'{NO_MESSAGES}messages must be an array or null, got "hi"', "messages"),
        (CHAT, {"model": "m", "messages": ["hi"]},
         f'{NO_MESSAGES}messages[0] must be an object, got "hi"', "messages[0]"),
        (CHAT, {"model": "m", "messages": [*HELLO, {"content": 5}]},
         f"{NO_MESSAGES}messages[1].content must be a string or an array or null, got 5", "messages[1].content"),
        (CHAT, {"model": "m", "messages": [{"content": [{"text": {}}]}]},
         f"{NO_MESSAGES}messages[0].content[0].text must be a string or null, got {{}}", "messages[0].content[0].text"),
        (CHAT, {"model": "m", "messages": HELLO, "max_tokens": "ten"},
         'invalid chat completions request: max_tokens must be an integer or null, got "ten"', "max_tokens"),
        (CHAT, {"model": "m", "messages": HELLO, "max_tokens": 1.5},
         "invalid chat completions request: max_tokens must be an integer or null, got 1.5", "max_tokens"),
        (CHAT, {"model": "m", "messages": HELLO, "n": True},
         "invalid chat completions request: n must be an integer or null, got true", "n"),
        (CHAT, {"model": "m", "messages": HELLO, "stream": "yes"},
         'invalid chat completions request: stream must be true or false or null, got "yes"', "stream"),
        (CHAT, {"model": "m", "messages": HELLO, "cache_salt": 7},
         "invalid chat completions request: cache_salt must be a string or null, got 7", "cache_salt"),
        (CHAT, b'{"model":"m","messages":[{"content":"x"}],"max_tokens":1e400}',
         "invalid chat completions request: max_tokens must be a number in range", "max_tokens"),
        (COMPLETIONS, {"model": "m"}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": None}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": 5}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": []}, f"{NO_PROMPT}prompt must be a string, a non-empty array", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [1, "a"]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": ["a", 1]}, f"{NO_PROMPT}prompt must be strings or token ids", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [[1], []]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [[1], 2]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [[1], 2, [3]]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [1, [2]]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [[[1]]]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": [1.5]}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": {"a": 1}}, f"{NO_PROMPT}prompt must be a string", "prompt"),
        (EMBEDDINGS, {"model": "m"}, f"{NO_INPUT}input must be a string", "input"),
        (EMBEDDINGS, {"model": "m", "input": False}, f"{NO_INPUT}input must be a string", "input"),
        (RESPONSES, {"model": "m"}, f"{NO_ITEMS}input must be a string or an array of items", "input"),
        (RESPONSES, {"model": "m", "input": 5},
         f"{NO_ITEMS}input must be a string or an array or null, got 5", "input"),
        (MESSAGES, {"model": "m", "max_tokens": 5},
         "invalid messages request: must have valid messages field: ", "messages"),
        (CHAT, b"no healthy upstream", NO_JSON + "JSON is malformed: invalid character (byte 4)", None),
        (CHAT, b"", NO_JSON + "unexpected end of JSON input (the body is empty)", None),
        (CHAT, b" \n", NO_JSON + "unexpected end of JSON input (the body is empty)", None),
        (CHAT, b'{"model":"m","messages":[', NO_JSON + "unexpected end of JSON input", None),
        (CHAT, b'{"model":"m","messages":[{"content":"\\ud800"}]}',
         NO_JSON + "unexpected end of JSON input, or an escape", None),
        (CHAT, b'{"model":"\xff"}', NO_JSON + "Invalid UTF-8", None),
        (CHAT, b'{"temperature":NaN,"model":"m"}', NO_JSON + "JSON is malformed", None),
        (CHAT, b'{"model":"m"} {"model":"m"}', NO_JSON + "JSON is malformed: trailing characters", None),
        (CHAT, b"[1,2]", NO_JSON + "the body must be a JSON object, got an array", None),
        (CHAT, b"null", NO_JSON + "the body must be a JSON object, got null", None),
        (CHAT, b'"text"', NO_JSON + "the body must be a JSON object, got a string", None),
        (CHAT, b'{"model":"m","messages":[],"x":' + b"[" * 100_000, NO_JSON + "the JSON is nested too deeply", None),
        (CHAT, b'{"model":"m","tools":' + b'{"a":' * 100_000, NO_JSON + "the JSON is nested too deeply", None),
    ],
)  # fmt: skip
def test_field_value_and_what_is_allowed_are_named(path: str, body: Any, message: str, param: str | None) -> None:
    error = refusal(path, body)
    assert error.message.startswith(message)
    assert error.param == param
    assert error.text.startswith("inference error: BadRequest - ")


def test_a_long_value_is_shortened() -> None:
    error = refusal(CHAT, {"model": "m", "messages": HELLO, "max_tokens": "9" * 10_000})
    assert len(error.message) < 160
    assert error.message.endswith('..."') or error.message.endswith("...")


def test_refusing_a_huge_body_does_not_look_for_the_value() -> None:
    error = refusal(CHAT, {"model": "m", "messages": [{"content": "x" * 300_000}], "max_tokens": "ten"})
    assert error.message == "invalid chat completions request: max_tokens must be an integer or null, got a string"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            BadRequest("model not found in request body", param="model"),
            {
                "message": "inference error: BadRequest - model not found in request body",
                "type": "BadRequestError",
                "param": "model",
                "code": 400,
            },
        ),
        (
            NoEndpoints("no endpoints"),
            {
                "message": "inference error: ServiceUnavailable - no endpoints",
                "type": "ServiceUnavailableError",
                "param": None,
                "code": 503,
            },
        ),
        (
            TooManyRequests('quotes " and \n'),
            {
                "message": 'inference error: ResourceExhausted - quotes " and \n',
                "type": "RateLimitError",
                "param": None,
                "code": 429,
            },
        ),
    ],
)
def test_the_answer_is_an_openai_error_object(error: Any, expected: dict[str, Any]) -> None:
    assert json.loads(error_body(error)) == {"error": expected}
