"""The tokenizer: stable, prefix-preserving, and not a fixed number of bytes per token."""

import base64
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_lab.engine import prose, tokens


def pieces(text: str) -> list[str]:
    prompt = tokens.tokenize(text.encode())
    bounds = [*prompt.offsets.tolist(), len(prompt.data)]
    return [prompt.data[a:b].decode() for a, b in pairwise(bounds)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("The queue is empty.", ["The", " queue", " is", " empty", "."]),
        ("    return x", ["   ", " return", " x"]),
        ("a,b\nc", ["a", ",", "b", "\n", "c"]),
        ("predicted-finish", ["predicte", "d", "-", "finish"]),
        ("abc123def", ["abc", "123", "def"]),
        ("中文 ok", ["中", "文", " ok"]),
        ("привет", ["прив", "ет"]),
        ("x  ", ["x", "  "]),
    ],
)
def test_text_is_cut_as_documented(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


@given(st.text(max_size=300))
def test_tokens_cover_the_text(text: str) -> None:
    data = text.encode()
    prompt = tokens.tokenize(data)
    offsets = prompt.offsets.tolist()
    assert offsets == sorted(set(offsets))
    assert (offsets[:1] == [0]) == bool(data)
    assert all(0 < b - a <= tokens.PIECE_BYTES for a, b in pairwise([*offsets, len(data)]))
    assert prompt.tokens == len(prompt.ids())


@given(st.text(alphabet="ab 1.中é", min_size=1, max_size=200), st.text(alphabet="ab 1.中é", max_size=50))
@settings(max_examples=200)
def test_text_that_goes_on_keeps_all_but_its_last_tokens(text: str, more: str) -> None:
    head = tokens.tokenize(text.encode()).offsets.tolist()
    whole = tokens.tokenize((text + more).encode()).offsets.tolist()
    assert whole[: len(head) - 1] == head[:-1]


def test_counts_differ_from_bytes_over_four_in_both_directions() -> None:
    random = Random(1)
    english = b"".join(prose.answer(5, 2000, after_space=True))
    ratios = {
        "english": len(english) / tokens.tokenize(english).tokens,
        "base64": (lambda data: len(data) / tokens.tokenize(data).tokens)(base64.b64encode(random.randbytes(3000))),
        "cyrillic": (lambda data: len(data) / tokens.tokenize(data).tokens)(
            "Когда придёт следующий поезд? ".encode() * 50
        ),
    }
    assert 3.8 < ratios["english"] < 4.6
    assert ratios["base64"] < 3.3
    assert ratios["cyrillic"] > 4.6


def test_answers_are_one_token_a_piece() -> None:
    for key in range(40):
        for after_space, before in ((True, b"\n"), (False, b"word")):
            answer = prose.answer(key, 500, after_space=after_space)
            assert tokens.tokenize(before + b"".join(answer)).tokens == 1 + len(answer) == 501


def test_answers_repeat_by_key_and_can_be_longer_than_the_text() -> None:
    assert prose.answer(3, 50, after_space=True) == prose.answer(3, 50, after_space=True)
    assert prose.answer(3, 50, after_space=True) != prose.answer(4, 50, after_space=True)
    assert len(prose.answer(3, prose.STREAM + 10, after_space=False)) == prose.STREAM + 10


def test_natural_lengths_are_lognormal_around_the_median() -> None:
    lengths = sorted(prose.natural_length(key, 150, 0.8) for key in range(4000))
    assert 140 <= lengths[2000] <= 160
    assert 55 <= lengths[400] <= 62  # exp(-1.28 * 0.8) of the median
    assert lengths[0] >= 1


def test_block_keys_are_chained_and_belong_to_adapter_and_salt() -> None:
    text = b"".join(prose.answer(1, 100, after_space=True))
    other = b"Zebra" + text[5:]
    root = tokens.root_key(None, None)
    base = tokens.block_keys(tokens.tokenize(text), [], 16, root)
    assert len(base) == 6
    changed = tokens.block_keys(tokens.tokenize(other), [], 16, root)
    assert not set(base) & set(changed)
    for adapter, salt in (("ad-a", None), (None, "tenant"), ("ad-a", "tenant")):
        assert not set(base) & set(tokens.block_keys(tokens.tokenize(text), [], 16, tokens.root_key(adapter, salt)))
    longer = tokens.block_keys(tokens.tokenize(text + b" and more"), [], 16, root)
    assert longer[:6] == base


def test_the_next_turn_finds_the_blocks_of_the_answer() -> None:
    root = tokens.root_key(None, None)
    question = b"\x01user\nWhat is a queue?\x02\n\x01assistant\n"
    answer = prose.answer(9, 80, after_space=True)
    first = tokens.block_keys(tokens.tokenize(question), answer, 16, root)
    turn = question + b"".join(answer) + b"\x02\n\x01user\nAnd a stack?\x02\n\x01assistant\n"
    second = tokens.block_keys(tokens.tokenize(turn), [], 16, root)
    assert second[: len(first)] == first
    assert len(first) == (tokens.tokenize(question).tokens + 80) // 16


def test_token_ids_have_keys_of_their_own() -> None:
    ids = list(range(64))
    keys = tokens.block_keys(tokens.from_ids(ids), [], 16, 1)
    assert len(keys) == 4
    assert tokens.block_keys(tokens.from_ids([*ids[:63], 9]), [], 16, 1)[:3] == keys[:3]
    assert tokens.from_ids(ids).tokens == 64
