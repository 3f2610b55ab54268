"""Huffman-coded strings, against the RFC's examples and an independent codec."""

from __future__ import annotations

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import example, given
from hypothesis import strategies as st

from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault
from poolpilot_picker.extproc.wire.huffman import LENGTHS, codes, decode

encode = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode


def test_the_code_follows_from_its_lengths() -> None:
    assert list(LENGTHS) == list(REQUEST_CODES_LENGTH)
    assert codes() == list(REQUEST_CODES)


@pytest.mark.parametrize(
    ("coded", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
        ("a8eb10649cbf", b"no-cache"),
        ("25a849e95ba97d7f", b"custom-key"),
        ("25a849e95bb8e8b4bf", b"custom-value"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        ("9d29ad171863c78f0b97c8e9ae82ae43d3", b"https://www.example.com"),
        (
            "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),
        ("", b""),
    ],
)
def test_examples_of_the_rfc(coded: str, text: bytes) -> None:
    assert decode(bytes.fromhex(coded)) == text


@given(st.binary(max_size=200))
def test_everything_comes_back(text: bytes) -> None:
    assert decode(encode(text)) == text


@given(st.binary(max_size=40))
@example(b"\xff\xff\xff\xff")  # the end-of-string symbol
@example(b"\x1f\xff")  # padding of a whole byte and more
@example(b"\x18")  # padding that is not ones
@example(b"\x1f")  # "a" and its padding
def test_any_bytes_as_an_independent_decoder_has_them(data: bytes) -> None:
    try:
        expected = decode_huffman(data)
    except HPACKDecodingError:
        with pytest.raises(ConnectionFault) as caught:
            decode(data)
        assert caught.value.code is Code.COMPRESSION_ERROR
    else:
        assert decode(data) == expected
