"""The client's model in the answer: whatever the chunks, nothing else changes and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.extproc.renaming import MOST_SPACE, Renaming, can_be_renamed

TARGET = "org/llama-3"


def renamed(chunks: list[bytes], target: str = TARGET, client: str = "llama") -> bytes:
    renaming = Renaming(target, client)
    *before, end = chunks
    return b"".join([*(renaming.feed(chunk, last=False) for chunk in before), renaming.feed(end, last=True)])


EVENT = b'data: {"id":"1","model":"org/llama-3","choices":[{"delta":{"content":"\\"model\\":\\"org/llama-3\\""}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def test_every_event_of_a_stream() -> None:
    assert (
        renamed([EVENT, EVENT + EVENT, DONE])
        == (EVENT * 3).replace(b'"model":"org/llama-3"', b'"model":"llama"') + DONE
    )


@pytest.mark.parametrize("cut", range(len(EVENT) + 1))
def test_a_cut_anywhere(cut: int) -> None:
    assert renamed([EVENT[:cut], EVENT[cut:]]) == renamed([EVENT])


def test_byte_by_byte() -> None:
    assert renamed([EVENT[at : at + 1] for at in range(len(EVENT))]) == renamed([EVENT])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b'{"model" :\n  "org/llama-3"}', b'{"model" :\n  "llama"}'),
        (b'{"model":"org\\/llama-3"}', b'{"model":"llama"}'),
        (b'{"response":{"model":"org/llama-3"}}', b'{"response":{"model":"llama"}}'),
        (b'{"model":"org/llama-30"}', b'{"model":"org/llama-30"}'),
        (b'{"model":"other"}', b'{"model":"other"}'),
        (b'{"models":"org/llama-3"}', b'{"models":"org/llama-3"}'),
        (b'{"a":"model","b":"org/llama-3"}', b'{"a":"model","b":"org/llama-3"}'),
        (b'{"model":' + b" " * (MOST_SPACE + 1) + b'"org/llama-3"}',) * 2,
        (b'"model', b'"model'),
        (b"", b""),
    ],
)
def test_what_is_a_model(text: bytes, wanted: bytes) -> None:
    assert renamed([text]) == wanted
    assert renamed([text[at : at + 1] for at in range(len(text))] or [b""]) == wanted


@given(
    st.text(min_size=1),
    st.text(),
    st.booleans(),
    st.dictionaries(st.text().filter(lambda key: key != "model"), st.text() | st.integers(), max_size=3),
    st.lists(st.integers(1, 30), max_size=20),
)
def test_any_names_in_any_chunks(
    target: str, client: str, ascii_only: bool, others: dict[str, Any], sizes: list[int]
) -> None:
    target, client = (name.encode("utf-8", "replace").decode() for name in (target, client))
    body = json.dumps({**others, "model": target, "z": target}, ensure_ascii=ascii_only).encode("utf-8", "replace")
    chunks, at = [], 0
    for size in sizes:
        chunks.append(body[at : at + size])
        at += size
    told = renamed([*chunks, body[at:]], target, client)
    assert json.loads(told) == {**json.loads(body), "model": client}


def test_little_is_held_back_and_nothing_lost() -> None:
    renaming = Renaming(TARGET, "llama")
    assert renaming.feed(b'data: {"x":"y"}\n\n', last=False) == b'data: {"x":"y"}\n\n'
    assert renaming.feed(b'{"a":1,"mod', last=False) == b'{"a":1,'
    assert renaming.feed(b'e":2}', last=False) == b'"mode":2}'
    assert renaming.feed(b'"model":', last=False) == b""
    assert renaming.flush() == b'"model":' and renaming.flush() == b""


@pytest.mark.parametrize(
    ("headers", "can"),
    [
        ({"content-type": "application/json"}, True),
        ({"content-type": b"text/event-stream; charset=utf-8"}, True),
        ({"content-type": "application/problem+json"}, True),
        ({}, True),
        ({"content-type": "audio/mpeg"}, False),
        ({"content-type": "application/json", "content-encoding": "gzip"}, False),
        ({"content-type": "application/json", "content-encoding": b"gzip"}, False),
        ({"content-type": "application/json", "content-encoding": "Identity"}, True),
        ({"content-type": "application/json", "content-encoding": b"identity"}, True),
    ],
)
def test_which_answers(headers: dict[str, str | bytes], can: bool) -> None:
    assert can_be_renamed(headers) is can
