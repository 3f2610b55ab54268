"""What the compiled core says of a prompt, against the reference and the package `xxhash`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from poolpilot_picker import compiled
from poolpilot_picker.requests.chain import SEGMENTS, reference_chain_hashes, reference_even_chain
from poolpilot_picker.requests.tokens import SAMPLE_BYTES, TABLE, UNIT, WINDOWS, reference_text_units

CORE = compiled.load()
BLOCKS = CORE.blocks(SEGMENTS)
WEIGHER = CORE.weigher(TABLE, UNIT, SAMPLE_BYTES, WINDOWS)
LONG = random.Random(1).randbytes(17 << 20)
SEEDS = st.integers(0, 2**64 - 1)


@given(st.binary(max_size=400), SEEDS)
def test_one_block_of_any_size_is_hashed_as_the_package_does(data, seed):
    """All ends of the algorithm: stripes of 32 bytes, then 8, 4 and 1."""
    if data:
        assert CORE.blocks(((0, len(data), len(data)),)).hashes(data, seed) == [xxh64_intdigest(data, seed)]


@pytest.mark.parametrize(
    "length", [0, 1, 255, 256, 65_535, 65_536, 66_560, 262_144, 400_000, 4 << 20, 16 << 20, 17 << 20]
)
def test_chains_of_every_length_are_those_of_the_reference(length):
    prompt = LONG[:length]
    assert BLOCKS.hashes(prompt, 7) == reference_chain_hashes(prompt, 7)
    assert BLOCKS.chain(prompt, 7, 0.24 * length) == reference_even_chain(prompt, 7, 0.24 * length)


@given(st.integers(0, 20_000), SEEDS, st.floats(0.0, 1e9))
def test_hashes_and_ends_are_those_of_the_reference_to_the_last_bit(length, seed, most):
    assert BLOCKS.chain(LONG[:length], seed, most) == reference_even_chain(LONG[:length], seed, most)


@given(st.text(max_size=600) | st.binary(max_size=9_000).map(lambda data: data.decode("latin-1")))
def test_tokens_are_those_of_the_reference_to_the_last_bit(text):
    data = text.encode()
    assert WEIGHER.units(data) == reference_text_units(data)


@pytest.mark.parametrize("length", [4_095, 4_096, 4_097, 5_000, 400_000, 17 << 20])
def test_tokens_of_long_texts_are_those_of_the_reference(length):
    assert WEIGHER.units(LONG[:length]) == reference_text_units(LONG[:length])


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_is_none_is_an_error(seed):
    with pytest.raises(OverflowError):
        BLOCKS.hashes(LONG[:256], seed)


@pytest.mark.parametrize("text", [None, "text", bytearray(300), 3])
def test_what_is_not_bytes_is_an_error(text):
    with pytest.raises(TypeError):
        WEIGHER.units(text)
    with pytest.raises(TypeError):
        BLOCKS.chain(text, 0, 1.0)


@pytest.mark.parametrize(
    "stretches",
    [
        ((0, 10, 3),),
        ((1, 11, 10),),
        ((0, 10, 0),),
        ((0, 10, 5), (11, 21, 10)),
        ((0, 0, 1),),
        tuple((i, i + 1, 1) for i in range(9)),
    ],
)
def test_stretches_that_do_not_fit_are_an_error(stretches):
    with pytest.raises(ValueError, match="stretches of whole blocks"):
        CORE.blocks(stretches)


@pytest.mark.parametrize(
    ("table", "unit", "sample", "windows"),
    [
        (TABLE[1:], 80, 4_096, 64),
        (TABLE, 0, 4_096, 64),
        (TABLE, 80, 10, 64),
        (TABLE, 80, 10, 0),
        (TABLE, 80, 1 << 22, 1),
    ],
)
def test_weights_that_do_not_fit_are_an_error(table, unit, sample, windows):
    with pytest.raises(ValueError, match="a table has 256 weights"):
        CORE.weigher(table, unit, sample, windows)
