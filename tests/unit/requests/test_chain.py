"""Prefix chains: equal beginnings, bounded length, separate seeds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.requests.chain import (
    BLOCK_BYTES,
    BLOCK_ENDS,
    MAX_BLOCKS,
    SEGMENTS,
    chain_hashes,
    chain_seed,
    prefix_chain,
)
from poolpilot_picker.requests.request import NO_PREFIX

SEED = chain_seed("model", "", "")
NAMES = st.text(max_size=12)


def patterned(length: int) -> bytes:
    """Bytes without a period that a block could hide behind."""
    return b"".join(i.to_bytes(4, "big") for i in range(length // 4 + 1))[:length]


LONG = patterned(600_000)


@given(st.integers(0, len(LONG)), st.integers(0, len(LONG)))
def test_a_longer_prompt_extends_the_chain_of_its_beginning(one: int, other: int) -> None:
    short, long = sorted((one, other))
    few, many = chain_hashes(LONG[:short], SEED), chain_hashes(LONG[:long], SEED)
    assert many[: len(few)] == few


@given(st.integers(0, 300_000), st.integers(1, 255))
def test_a_changed_byte_changes_its_block_and_all_after_it_only(position: int, difference: int) -> None:
    changed = bytearray(LONG[:300_000])
    changed[min(position, len(changed) - 1)] ^= difference
    first = int(BLOCK_ENDS.searchsorted(min(position, len(changed) - 1), side="right"))
    before, after = chain_hashes(LONG[:300_000], SEED), chain_hashes(bytes(changed), SEED)
    assert before[:first] == after[:first]
    assert not set(before[first:]) & set(after[first:])


@given(st.tuples(NAMES, NAMES, NAMES), st.tuples(NAMES, NAMES, NAMES))
def test_chains_of_different_model_adapter_or_salt_never_meet(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    prompt = LONG[:2_048]
    ours, theirs = (chain_hashes(prompt, chain_seed(*seed)) for seed in (one, other))
    assert bool(set(ours) & set(theirs)) is (one == other)


def test_names_cannot_run_into_each_other() -> None:
    seeds = {chain_seed("ab", "", ""), chain_seed("a", "b", ""), chain_seed("a", "", "b"), chain_seed("", "ab", "")}
    assert len(seeds) == 4


@pytest.mark.parametrize(
    ("length", "blocks"),
    [
        (0, 0),
        (255, 0),
        (256, 1),
        (65_536, 256),
        (65_536 + 1_023, 256),
        (65_536 + 1_024, 257),
        (262_144, 448),
        (400_000, 481),
        (4 << 20, 832),
        (16 << 20, 1_024),
        (40 << 20, 1_024),
    ],
)
def test_the_length_of_a_chain_is_bounded(length: int, blocks: int) -> None:
    chain = prefix_chain(bytes(length), SEED, tokens=length / 4)
    assert len(chain.hashes) == len(chain.ends) == blocks <= MAX_BLOCKS


def test_a_block_is_small_against_what_stands_before_it() -> None:
    assert SEGMENTS[0] == (0, 65_536, BLOCK_BYTES)
    assert all(size * 64 == start for start, _, size in SEGMENTS[1:])
    assert all(stop == following for (_, stop, _), (following, _, _) in itertools.pairwise(SEGMENTS))


@given(st.integers(0, 500_000), st.floats(1, 200_000))
def test_covered_tokens_rise_and_leave_the_last_token_to_compute(length: int, tokens: float) -> None:
    chain = prefix_chain(LONG[:length], SEED, tokens=tokens)
    covered = [chain.covered(blocks) for blocks in range(len(chain.hashes) + 1)]
    assert covered[0] == 0.0
    assert covered == sorted(covered)
    assert covered[-1] <= max(tokens - 1, 0)


@pytest.mark.parametrize("length", [4_096, 100_000])
def test_tokens_of_an_image_count_from_its_place_on(length: int) -> None:
    chain = prefix_chain(LONG[:length], SEED, tokens=length / 4 + 1_001, marks=[(2_000, 1_000.0)])
    assert chain.covered(7) == pytest.approx(7 * 64)
    assert chain.covered(8) == pytest.approx(8 * 64 + 1_000)
    assert chain.covered(len(chain.hashes)) <= length / 4 + 1_000


def test_media_that_outweigh_the_estimate_do_not_push_it_above_the_prompt() -> None:
    chain = prefix_chain(LONG[:2_000], SEED, tokens=100.0, marks=[(10, 5_000.0)])
    assert chain.covered(len(chain.hashes)) == 99.0


def test_a_prompt_below_one_block_has_no_chain() -> None:
    assert prefix_chain(b"short", SEED, tokens=2.0) is NO_PREFIX
    assert NO_PREFIX.covered(0) == 0.0
