"""Bodies cut anywhere: never refused, the model as soon as it is there, the text seen so far."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_picker.requests import InferenceRequest, RequestKind, parse, read_head
from poolpilot_picker.requests.partial import mend

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"


def read(
    path: str, body: bytes, *, complete: bool = False, length: int | None = None, **fields: str
) -> InferenceRequest:
    received = [(":method", "POST"), (":path", path), ("content-type", "application/json"), *fields.items()]
    if length is not None:
        received.append(("content-length", str(length)))
    return parse(read_head(received), body, complete=complete)


TRICKY = 'quote " backslash \\ both \\" end\\\\" newline \n é 你好 😀 {[]}, "model": "no" :'

BODIES: dict[str, tuple[str, Any]] = {
    "model first": (CHAT, {"model": "sql-lora", "messages": [{"role": "user", "content": TRICKY}], "max_tokens": 100}),
    "model last": (CHAT, {"messages": [{"role": "user", "content": TRICKY}], "n": 2, "model": "sql-lora"}),
    "nested": (CHAT, {"x": {"model": "n", "y": [{"model": "n"}]}, "messages": [{"content": "x"}], "model": "sql-lora"}),
    "prompt": (COMPLETIONS, {"prompt": TRICKY, "top_p": 1.5e-3, "echo": False, "model": "sql-lora", "user": None}),
    "ids": (COMPLETIONS, {"model": "sql-lora", "prompt": [[1, 22, 333], [4, 5]], "max_tokens": 10}),
    "input": (EMBEDDINGS, {"input": ["one", "two", TRICKY], "model": "sql-lora"}),
    "items": (RESPONSES, {"input": [{"type": "message", "content": [{"text": TRICKY}]}], "model": "sql-lora"}),
}  # fmt: skip


def cuts(whole: bytes) -> range:
    return range(len(whole) + 1)


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_every_beginning_of_a_body_tells_its_model_once_it_is_there(name: str, ascii_only: bool) -> None:
    path, body = BODIES[name]
    whole = json.dumps(body, ensure_ascii=ascii_only).encode()
    there = whole.index(b'"sql-lora"') + len('"sql-lora"')
    for cut in cuts(whole):
        request = read(path, whole[:cut])
        assert request.model == ("sql-lora" if cut >= there else ""), whole[:cut]
        assert request.kind is not RequestKind.OTHER
        assert request.complete is False


@pytest.mark.parametrize("indent", [None, 1])
def test_the_whole_body_read_as_a_beginning_is_the_whole_body(indent: int | None) -> None:
    for path, body in BODIES.values():
        whole = json.dumps(body, indent=indent).encode()
        seen, known = read(path, whole), read(path, whole, complete=True)
        for field in ("model", "target_model", "stream", "max_tokens", "sequences", "prompt_tokens", "kind"):
            assert getattr(seen, field) == getattr(known, field), field
        assert list(seen.prefix.hashes) == list(known.prefix.hashes)


def test_a_model_of_which_only_the_beginning_is_there_is_no_model() -> None:
    whole = b'{"prompt":"sql","model":"sql-lora"}'
    for cut in range(whole.index(b"sql-lora") + 1, len(whole) - 2):
        assert read(COMPLETIONS, whole[:cut]).model == "", whole[:cut]


def test_a_name_that_was_cut_is_no_name_even_where_the_body_is_wrong_or_another() -> None:
    assert read(CHAT, b'{"messages":"wrong","model":"sql-lo').target_model == ""
    assert read(CHAT, b'{"messages":"wrong","model":"sql-lora"').target_model == "sql-lora"
    assert read("/v1/rerank", b'{"query":"q","model":"sql-lo').target_model == ""
    assert read("/v1/rerank", b'{"query":"q","model":"sql-lora"').target_model == "sql-lora"
    assert read(CHAT, b'{"messages":[{"content":"x"}],"model":"m","lora_path":"sql-lo').adapter == ""


def test_a_prompt_that_ends_in_the_name_of_the_model_does_not_hide_it() -> None:
    assert read(COMPLETIONS, b'{"model":"abc","prompt":"say abc').model == "abc"


@pytest.mark.parametrize("salt", [b"cache_salt", b"extra_key"])
def test_a_salt_of_which_only_the_beginning_is_there_is_no_salt(salt: bytes) -> None:
    text = b'"prompt":"' + b"word " * 200 + b'"'
    cut = read(COMPLETIONS, b'{"model":"m",' + text + b',"' + salt + b'":"ab')
    none = read(COMPLETIONS, b'{"model":"m",' + text)
    assert list(cut.prefix.hashes) == list(none.prefix.hashes) != []


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=600)}),
    min_size=1,
    max_size=6,
)


def test_a_message_that_has_only_begun_is_not_hashed() -> None:
    """A block that ends in what the cut left open would be another block than that of the whole prompt."""
    lead = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 248 + b'"},{"role":"as'
    whole = lead + b'sistant","content":"' + b"y" * 600 + b'"}]}'
    known = list(read(CHAT, whole, complete=True).prefix.hashes)
    for cut in range(len(lead) - 20, len(lead) + 80):
        seen = list(read(CHAT, whole[:cut]).prefix.hashes)
        assert known[: len(seen)] == seen


@settings(max_examples=60)
@given(MESSAGES, st.data(), st.booleans())
def test_what_was_seen_gives_the_beginning_of_the_chain(messages: Any, data: st.DataObject, ascii_only: bool) -> None:
    turns = [{"role": message["role"], "content": message["content"]} for message in messages]
    body = {"model": "m", "messages": [{"role": "system", "content": "be brief " * 80}, *turns]}
    whole = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    known = list(read(CHAT, whole, complete=True).prefix.hashes)
    for cut in data.draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=8)):
        seen = list(read(CHAT, whole[:cut]).prefix.hashes)
        assert known[: len(seen)] == seen
        assert len(seen) >= (2 if cut > 800 else 0), "the system text alone is 720 bytes long"


def test_the_prompt_is_extrapolated_by_the_content_length() -> None:
    whole = json.dumps({"model": "m", "prompt": "many words of about equal length " * 1_000}).encode()
    known = read(COMPLETIONS, whole, complete=True).prompt_tokens
    seen = read(COMPLETIONS, whole[: len(whole) // 4], length=len(whole))
    assert seen.prompt_tokens == pytest.approx(known, rel=0.02)
    assert seen.text_tokens == 0.0, "nothing can be learned from it"
    assert seen.prefix.covered(len(seen.prefix.hashes)) < known / 4
    assert read(COMPLETIONS, whole, length=10**17).prompt_tokens == known * 64, "beyond belief"
    assert read(COMPLETIONS, whole[: len(whole) // 4]).prompt_tokens == pytest.approx(known / 4, rel=0.02)


def test_token_ids_of_a_beginning_are_counted() -> None:
    whole = json.dumps({"model": "m", "prompt": list(range(10_000, 12_000))}).encode()
    seen = read(COMPLETIONS, whole[: len(whole) // 2])
    assert seen.prompt_tokens == pytest.approx(1_000, abs=5)
    assert len(seen.prefix.hashes) > 10


def test_the_header_of_a_body_based_router_tells_the_model_where_the_beginning_does_not() -> None:
    hint = {"x-gateway-model-name": "m"}
    assert read(CHAT, b'{"messages":[{"content":"abc', **hint).target_model == "m"
    assert read(CHAT, b'{"model":"own","messages":[{"content":"abc', **hint).target_model == "own"
    assert read(CHAT, b"\xff", **hint).target_model == "m"


@pytest.mark.parametrize(
    "beginning",
    [
        b"", b" ", b"{", b"[", b'"', b"\\", b"}", b"]", b"nul", b"-", b"\xef\xbb\xbf", b'{"model":5', b'{"model":5,',
        b'{"messages":"x","model":"m"', b'{"messages":[5', b'{"model":"\xff', b'{"model":"\\', b'{"model":"\\u', b"{}}",
        b'{"a":1 "b', b"[" * 100_000, b'{"a":' * 100_000, b"[]" * 100_000, b'"' * 99_999, b'\\"' * 50_000,
        b'{"prompt":"' + b"\\\\" * 50_000, b'{"prompt":"' + b'\\"' * 50_000, b'{"prompt":"' + b'\\\\\\"' * 30_000,
        b"[[]," * 50_000, b'{"prompt":[1,2],"prompt":[[1],[', b'{"prompt":[[1],2', b'{"prompt":["a",5',
    ],
)  # fmt: skip
def test_nothing_seen_is_too_strange(beginning: bytes) -> None:
    request = read(CHAT, beginning)
    assert request.model in ("", "m")
    assert read(COMPLETIONS, beginning).prompt_tokens >= 0


@pytest.mark.parametrize(
    ("beginning", "mended"),
    [
        (b'{"a":"x', b'{"a":"x"}'),
        (b'{"a":"x\\', b'{"a":"x"}'),
        (b'{"a":"x\\\\', b'{"a":"x\\\\"}'),
        (b'{"a":"x\\\\","b":["c"', b'{"a":"x\\\\","b":["c"]}'),
        (b'{"a":"x\\\\\\"y","b":["c"', b'{"a":"x\\\\\\"y","b":["c"]}'),
        (b'{"a":"x\\u12', b'{"a":"x"}'),
        (b'{"a":"x\\\\u12', b'{"a":"x\\\\u12"}'),
        (b'{"a":"\\ud83d', b'{"a":""}'),
        (b'{"a":"\\ud83d\\ude0', b'{"a":""}'),
        (b'{"a":"\\ud83d\\ude00', b'{"a":"\\ud83d\\ude00"}'),
        (b'{"a":"\\ude00', b'{"a":"\\ude00"}'),
        (b'{"a":"\xf0\x9f\x98', b'{"a":""}'),
        (b'{"a":"\xc3', b'{"a":""}'),
        (b'{"a":"\xc3\xa9', b'{"a":"\xc3\xa9"}'),
        (b'{"a', b'{"a":null}'),
        (b'{"a"', b'{"a":null}'),
        (b'{"a": ', b'{"a":null}'),
        (b'{"a":12', b'{"a":null}'),
        (b'{"a":tru', b'{"a":null}'),
        (b'{"a":[1, 2', b'{"a":[1]}'),
        (b'{"a":[1,', b'{"a":[1]}'),
        (b'{"a":[{"b":"c"}', b'{"a":[{"b":"c"}]}'),
        (b'{"a":"\\"{["', b'{"a":"\\"{["}'),
        (b'{"a":"}"', b'{"a":"}"}'),
        (b'{"a":1}', b'{"a":1}'),
    ],
)
def test_how_a_cut_is_mended(beginning: bytes, mended: bytes) -> None:
    def decodes(candidate: bytes) -> bool:
        try:
            json.loads(candidate)
        except ValueError:
            return False
        return True

    right = next(candidate for candidate in mend(beginning).candidates if decodes(candidate))
    assert json.loads(right) == json.loads(mended)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.data())
def test_any_object_cut_anywhere_can_be_mended(body: dict[str, Any], data: st.DataObject) -> None:
    whole = json.dumps(body, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    raw = whole.encode("utf-8", "replace")
    beginning = raw[: data.draw(st.integers(1, len(raw)))]
    decoded = []
    for candidate in mend(beginning).candidates:
        try:
            decoded.append(json.loads(candidate))
        except ValueError:
            continue
    assert decoded, beginning
    assert isinstance(decoded[0], dict)
    assert set(decoded[0]) - set(json.loads(raw)) <= {next(reversed(decoded[0]), None)}, "only the last key may be cut"
