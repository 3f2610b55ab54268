"""The shared vectors that concern bodies: picker cases 4, 8, 9 and the usage of streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from poolpilot_picker.errors import BadRequest
from poolpilot_picker.requests import BodyUse, UsageReader, body_use, parse, read_head, rewrite_model

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
PICKS: dict[str, Any] = yaml.safe_load((VECTORS / "epp-hermetic.yaml").read_text("utf-8"))
SMALL: dict[str, Any] = yaml.safe_load((VECTORS / "small.yaml").read_text("utf-8"))
CASES = {case["id"]: case for case in PICKS["cases"]}
HEADERS = list(PICKS["setup"]["request_headers"].items())
"""They hold neither a path nor a content type: completions in JSON are meant."""


def body_of(case: dict[str, Any]) -> bytes:
    request = case["request"]
    template: str = PICKS["setup"]["body_template"]
    return template.replace("<MODEL>", request["model"]).replace("<PROMPT>", request["prompt"]).encode()


@pytest.mark.parametrize("case", [4, 8])
def test_bodies_that_are_refused(case: int) -> None:
    head = read_head(HEADERS)
    assert body_use(head, end_of_stream=False) is BodyUse.INFERENCE
    with pytest.raises(BadRequest) as caught:
        parse(head, CASES[case]["request"]["raw_body"].encode())
    expected = CASES[case]["expect"]
    text = expected["body"]
    if "note" in expected:
        text = text[: text.index("bodyMap: ") + len("bodyMap: ")]
    assert (caught.value.status, caught.value.text[: len(text)]) == (expected["status"], text)


@pytest.mark.parametrize("case", [1, 2, 5, 7, 9, 10, 12])
def test_bodies_that_are_placed(case: int) -> None:
    request = CASES[case]["request"]
    body = body_of(CASES[case])
    objective = [
        ("x-gateway-inference-objective", request["model"]),
        ("x-gateway-model-name-rewrite", request["target"]),
    ]
    parsed = parse(read_head([*HEADERS, *objective]), body)
    assert (parsed.request_id, parsed.objective) == ("test-request-id", request["model"])
    assert (parsed.model, parsed.target_model, parsed.max_tokens) == (request["model"], request["target"], 100)
    assert json.loads(rewrite_model(body, parsed.target_model)) == {**json.loads(body), "model": request["target"]}


def test_a_body_split_inside_the_model_is_whole_once_joined() -> None:
    body = body_of(CASES[9])
    left, right = (part.strip(".") for part in CASES[9]["request"]["split_inside"])
    at = body.index(left.encode()) + len(left)
    assert body[at:].startswith(right.encode())
    head = read_head(HEADERS)
    assert parse(head, b"".join((body[:at], body[at:]))).model == "sql-lora-sheddable"
    assert parse(head, body[:at], complete=False).model == "", "half a name is no name"


@pytest.mark.parametrize("case", PICKS["grpc_cases"], ids=lambda case: case["name"])
def test_grpc_is_placed_at_its_headers(case: dict[str, Any]) -> None:
    path = case.get("path", "/vllm.grpc.engine.VllmEngine/Generate")
    head = read_head([(":method", "POST"), (":path", path), ("content-type", "application/grpc")])
    assert body_use(head, end_of_stream=False) is BodyUse.UNSEEN
    assert parse(head, b"").is_inference is False


CONTENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}\n\n'
DONE = b"data: [DONE]\n\n"

STREAMS: dict[str, list[bytes]] = {
    "usage and [DONE] in the same chunk": [CONTENT, COUNTS + DONE],
    "usage and [DONE] in consecutive chunks": [CONTENT, COUNTS, DONE],
    "content chunks, then usage, then [DONE]": [CONTENT, CONTENT, COUNTS, CONTENT, DONE],
    "no usage at all": [CONTENT, DONE],
}


@pytest.mark.parametrize("case", SMALL["sse_usage"], ids=lambda case: case["stream"])
def test_usage_of_streams(case: dict[str, str]) -> None:
    reader = UsageReader(streamed=True)
    for chunk in STREAMS[case["stream"]]:
        reader.feed(chunk)
    reader.finish()
    if case["usage"] == "zeros":
        assert reader.usage is None, "not told is not zero: nothing may be learned from it"
    else:
        assert reader.usage is not None
        assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (7, 10)
