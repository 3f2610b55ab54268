"""Rewriting the model in a body: all other bytes stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.requests import RequestKind, limit_tokens, rewrite_model

CHAT, COMPLETIONS, RESPONSES = RequestKind.CHAT, RequestKind.COMPLETIONS, RequestKind.RESPONSES


@pytest.mark.parametrize(
    ("body", "rewritten"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{ "x" : 1.0 , "model" : "a" , "y":"z" }', b'{ "x" : 1.0 , "model" : "new" , "y":"z" }'),
        (
            b'{"m":{"model":"a"},"model":"a","n":[{"model":"a"}]}',
            b'{"m":{"model":"a"},"model":"new","n":[{"model":"a"}]}',
        ),
        (b'{"prompt":"\\"model\\":\\"a\\"","model":"a"}', b'{"prompt":"\\"model\\":\\"a\\"","model":"new"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"a","model":"new"}'),
        (b'{"model":null}', b'{"model":"new"}'),
        (b'{"model":{"a":[1]},"z":1}', b'{"model":"new","z":1}'),
        (b'\xef\xbb\xbf{"model":"a"}\n', b'\xef\xbb\xbf{"model":"new"}\n'),
        (b'{"model":"\xc3\xa9\\u00e9"}', b'{"model":"new"}'),
    ],
)
def test_only_the_value_changes(body: bytes, rewritten: bytes) -> None:
    assert rewrite_model(body, "new") == rewritten


def test_a_name_is_written_as_json() -> None:
    assert json.loads(rewrite_model(b'{"model":"a"}', 'quote " back \\ é 你')) == {"model": 'quote " back \\ é 你'}


@pytest.mark.parametrize(
    ("body", "rewritten"),
    [
        (b"{}", b'{"model":"new"}'),
        (b" {\n}", b' {"model":"new"\n}'),
        (b'\xef\xbb\xbf{ "x":1}', b'\xef\xbb\xbf{"model":"new", "x":1}'),
        (b'{"x":{"model":"a"}}', b'{"model":"new","x":{"model":"a"}}'),
    ],
)
def test_a_body_without_a_model_gets_one(body: bytes, rewritten: bytes) -> None:
    assert rewrite_model(body, "new") == rewritten


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"model":', b'{"x":' + b"[" * 100_000])
def test_what_is_no_object_is_not_rewritten(body: bytes) -> None:
    with pytest.raises(ValueError):
        rewrite_model(body, "new")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("model"), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), JSON, st.text(), st.integers(0, 4), st.booleans())
def test_any_body_keeps_everything_else(
    others: dict[str, Any], model: Any, new: str, position: int, ascii_only: bool
) -> None:
    others.pop("model", None)
    pairs = list(others.items())
    pairs.insert(position, ("model", model))
    body = json.dumps(dict(pairs), ensure_ascii=ascii_only).encode("utf-8", "replace")
    new = new.encode("utf-8", "replace").decode()
    rewritten = rewrite_model(body, new)
    assert json.loads(rewritten) == {**json.loads(body), "model": new}
    assert len(rewritten) - len(body) == len(rewrite_model(b'{"model":0}', new)) - 11 - (
        len(json.dumps(model, ensure_ascii=ascii_only).encode("utf-8", "replace")) - 1
    )


@pytest.mark.parametrize(
    ("kind", "body", "limited"),
    [
        (CHAT, b'{"max_tokens": 99, "model": "m"}', b'{"max_tokens": 50, "model": "m"}'),
        (CHAT, b'{"max_tokens": 5, "model": "m"}', b'{"max_tokens": 5, "model": "m"}'),
        (CHAT, b'{"max_completion_tokens":99,"max_tokens":98}', b'{"max_completion_tokens":50,"max_tokens":50}'),
        (CHAT, b'{"max_completion_tokens":99,"max_tokens":7}', b'{"max_completion_tokens":50,"max_tokens":7}'),
        (CHAT, b'\xef\xbb\xbf{ "n":1}', b'\xef\xbb\xbf{"max_tokens":50, "n":1}'),
        (CHAT, b"{ }", b'{"max_tokens":50 }'),
        (CHAT, b'{"max_tokens":null,"x":{"max_tokens":99}}', b'{"max_tokens":50,"x":{"max_tokens":99}}'),
        (CHAT, b'{"max_tokens":1e9}', b'{"max_tokens":50}'),
        (CHAT, b'{"max_tokens":-1}', b'{"max_tokens":50}'),
        (CHAT, b'{"max_tokens":"99"}', b'{"max_tokens":50}'),
        (CHAT, b'{"max_tokens":"7"}', b'{"max_tokens":"7"}'),
        (RESPONSES, b'{"max_output_tokens":99}', b'{"max_output_tokens":50}'),
        (RESPONSES, b'{"input":"x"}', b'{"max_output_tokens":50,"input":"x"}'),
        (COMPLETIONS, b'{"max_tokens":99,"max_tokens":51}', b'{"max_tokens":99,"max_tokens":50}'),
    ],
)
def test_limits_on_the_output_are_lowered_and_nothing_else(kind, body, limited):
    assert limit_tokens(body, kind, 50) == limited


@given(
    st.dictionaries(st.sampled_from(["max_tokens", "max_completion_tokens", "x"]), st.none() | st.integers(0, 10**12)),
    st.integers(1, 1_000),
    st.booleans(),
)
def test_afterwards_the_engine_reads_no_more_than_the_limit(fields, most, spaced):
    body = json.dumps(fields, indent=2 if spaced else None).encode()
    told = json.loads(limit_tokens(body, CHAT, most))
    limits = [told[name] for name in ("max_tokens", "max_completion_tokens") if told.get(name) is not None]
    assert limits and max(limits) <= most
    for name, value in fields.items():
        if value is not None:
            assert told[name] == (value if name == "x" else min(value, most))
