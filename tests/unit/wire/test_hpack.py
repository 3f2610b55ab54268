"""Header blocks: the RFC's examples, an independent codec as oracle, and the rules about the size of the table."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hpack import Decoder as OracleDecoder
from hpack import Encoder as OracleEncoder
from hpack import HeaderTuple, HPACKError, NeverIndexedHeaderTuple
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault
from poolpilot_picker.extproc.wire.hpack import (
    CACHED_BLOCKS,
    CACHED_STRINGS,
    NO_TABLE,
    STATIC_TABLE,
    Decoder,
    Field,
    ListTooLarge,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECURE = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), (b":authority", b"www.example.com")]
DATE = b"Mon, 21 Oct 2013 20:13:2%d GMT"
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"


def response(status: bytes, second: int) -> list[Field]:
    return [
        (b":status", status),
        (b"cache-control", b"private"),
        (b"date", DATE % second),
        (b"location", b"https://www.example.com"),
    ]


REQUESTS = [GET, [*GET, (b"cache-control", b"no-cache")], [*SECURE, (b"custom-key", b"custom-value")]]
RESPONSES = [
    response(b"302", 1),
    response(b"307", 1),
    [*response(b"200", 2), (b"content-encoding", b"gzip"), (b"set-cookie", COOKIE)],
]
PLAIN = [
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
]
CODED = [
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
]
PLAIN_RESPONSES = [
    (
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
        "6e1768747470733a2f2f7777772e6578616d706c652e636f6d"
    ),
    "4803333037c1c0bf",
    (
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d"
        "4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
    ),
]
CODED_RESPONSES = [
    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
    "4883640effc1c0bf",
    (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960"
        "d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
    ),
]


def decoder(max_list_bytes: int = 65_536) -> Decoder[tuple[Field, ...]]:
    return Decoder(tuple, max_list_bytes)


def fields(*pairs: tuple[str, str]) -> tuple[Field, ...]:
    return tuple((name.encode(), value.encode()) for name, value in pairs)


def broken(reader: Decoder[Any], block: bytes) -> str:
    with pytest.raises(ConnectionFault) as caught:
        reader.decode(block)
    assert caught.value.code is Code.COMPRESSION_ERROR
    return caught.value.reason


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", fields(("custom-key", "custom-header"))),  # C.2.1
        ("040c2f73616d706c652f70617468", fields((":path", "/sample/path"))),  # C.2.2
        ("100870617373776f726406736563726574", fields(("password", "secret"))),  # C.2.3
        ("82", fields((":method", "GET"))),  # C.2.4
    ],
)
def test_representations(block: str, expected: tuple[Field, ...]) -> None:
    assert decoder().decode(bytes.fromhex(block)) == expected


@pytest.mark.parametrize("blocks", [PLAIN, CODED])
def test_requests_on_one_connection(blocks: list[str]) -> None:
    """C.3 and C.4."""
    reader = decoder()
    assert [list(reader.decode(bytes.fromhex(block))) for block in blocks] == REQUESTS


@pytest.mark.parametrize("blocks", [PLAIN_RESPONSES, CODED_RESPONSES])
def test_responses_with_evictions(blocks: list[str]) -> None:
    """C.5 and C.6: a table of 256 bytes."""
    reader = decoder()
    first, *rest = (bytes.fromhex(block) for block in blocks)
    got = [reader.decode(b"\x3f\xe1\x01" + first), *map(reader.decode, rest)]
    assert [list(one) for one in got] == RESPONSES


def test_the_static_table() -> None:
    assert STATIC_TABLE[1:] == HeaderTable.STATIC_TABLE


# ── an independent codec ─────────────────────────────────────────────────────

NAMES = st.sampled_from([name for name, _ in STATIC_TABLE[1:]]) | st.binary(min_size=1, max_size=12)
VALUES = st.sampled_from([value for _, value in STATIC_TABLE[1:]]) | st.binary(max_size=40)
HEADERS = st.tuples(NAMES, VALUES, st.booleans())


@given(
    st.lists(st.tuples(st.lists(HEADERS, max_size=8), st.booleans(), st.none() | st.integers(0, 4_096)), max_size=8),
    st.booleans(),
)
def test_what_an_independent_encoder_says(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]], repeat: bool
) -> None:
    reader, writer = decoder(), OracleEncoder()
    for headers, coded, size in blocks:
        if size is not None:
            writer.header_table_size = size
        listed = [
            NeverIndexedHeaderTuple(name, value) if secret else HeaderTuple(name, value)
            for name, value, secret in headers
        ]
        expected = tuple((name, value) for name, value, _ in headers)
        assert reader.decode(writer.encode(listed, huffman=coded)) == expected
        if repeat:  # now perhaps from memory
            assert reader.decode(writer.encode(listed, huffman=coded)) == expected


def we_say(reader: Decoder[tuple[Field, ...]], block: bytes) -> tuple[Field, ...] | ConnectionFault:
    try:
        return reader.decode(block)
    except ConnectionFault as fault:
        return fault


def oracle_says(oracle: OracleDecoder, block: bytes) -> tuple[Field, ...] | None:
    try:
        return tuple((bytes(name), bytes(value)) for name, value in oracle.decode(block, raw=True))
    except (HPACKError, IndexError):
        return None


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_as_an_independent_decoder_has_them(blocks: list[bytes]) -> None:
    reader, oracle = decoder(), OracleDecoder()
    for block in blocks:
        expected, got = oracle_says(oracle, block), we_say(reader, block)
        if isinstance(got, ConnectionFault):
            assert got.code is Code.COMPRESSION_ERROR
            # Numbers beyond 28 bits are not for us.
            assert expected is None or "too large" in got.reason
            return  # nothing comes after a fault
        assert got == expected


@given(st.lists(st.lists(HEADERS, max_size=6), max_size=4))
def test_what_we_encode(lists: list[list[tuple[bytes, bytes, bool]]]) -> None:
    oracle = OracleDecoder()
    oracle.max_allowed_table_size = 0
    begin = NO_TABLE
    for headers in lists:
        expected = [(name, value) for name, value, _ in headers]
        got = oracle.decode(begin + encode(expected), raw=True)
        assert [(bytes(name), bytes(value)) for name, value in got] == expected
        begin = b""


# ── sizes and memory ─────────────────────────────────────────────────────────

CUSTOM = bytes.fromhex(PLAIN[2])[4:]
"""A literal with incremental indexing."""


def test_a_table_that_is_in_use_must_be_given_up_first() -> None:
    reader = decoder()
    reader.decode(CUSTOM)
    assert reader.decode(b"\xbe") == ((b"custom-key", b"custom-value"),)
    reader.allow(0)
    assert "was not reduced" in broken(reader, b"\xbe")


def test_a_static_entry_also_waits_for_the_reduction() -> None:
    reader = decoder()
    reader.decode(CUSTOM)
    reader.decode(b"\x82")
    reader.allow(0)
    assert "was not reduced" in broken(reader, b"\x82"), "not from memory either"


def test_after_the_reduction_there_is_no_table() -> None:
    reader = decoder()
    reader.decode(CUSTOM)
    reader.allow(0)
    assert reader.decode(b"\x20\x82") == ((b":method", b"GET"),)
    assert reader.decode(CUSTOM) == ((b"custom-key", b"custom-value"),)
    assert "entry 62" in broken(reader, b"\xbe")


def test_a_table_never_used_need_not_be_given_up() -> None:
    reader = decoder()
    assert reader.decode(b"\x82") == ((b":method", b"GET"),)
    reader.allow(0)
    assert reader.decode(b"\x82") == ((b":method", b"GET"),)
    reader.decode(CUSTOM)
    assert "entry 62" in broken(reader, b"\xbe")


def test_no_larger_table_than_allowed() -> None:
    reader = decoder()
    assert "allowed are 4096" in broken(reader, b"\x3f\xe2\x1f")
    reader = decoder()
    reader.decode(b"\x3f\xe1\x1f\x82")
    reader.allow(100)
    assert "allowed are 100" in broken(reader, b"\x3f\xe1\x1f\x82")


def test_updates_come_first_and_may_be_two() -> None:
    reader = decoder()
    assert reader.decode(b"\x20\x3f\xe1\x1f\x82") == ((b":method", b"GET"),)
    assert "after a header field" in broken(reader, b"\x82\x20")


def test_memory_is_forgotten_when_the_table_changes() -> None:
    reader = decoder()
    reader.decode(CUSTOM)
    assert reader.decode(b"\xbe") == ((b"custom-key", b"custom-value"),)
    reader.decode(b"\x40\x01a\x01b")
    assert reader.decode(b"\xbe") == ((b"a", b"b"),)


def test_equal_blocks_are_interpreted_once() -> None:
    seen: list[Sequence[Field]] = []
    reader: Decoder[int] = Decoder(lambda found: seen.append(found) or len(seen), 65_536)  # type: ignore[func-returns-value]
    reader.allow(0)
    block = b"\x83\x86\x04\x02/a"
    assert [reader.decode(block), reader.decode(block), reader.decode(b"\x82"), reader.decode(block)] == [1, 1, 2, 1]


def test_memory_is_bounded() -> None:
    reader = decoder()
    reader.allow(0)
    for number in range(3 * CACHED_BLOCKS):
        reader.decode(b"\x04\x06/%05d" % number)
        assert len(reader.known) <= CACHED_BLOCKS
    reader.decode(b"\x04\x7f\xff\x0f" + b"x" * 2_174)
    assert all(len(block) < 1_025 for block in reader.known)
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode
    for text in (*(b"%05d" % number for number in range(2 * CACHED_STRINGS)), b"z" * 160):
        value = coded(text)
        assert len(value) < 255
        length = bytes((0x80 | len(value),)) if len(value) < 127 else bytes((0xFF, len(value) - 127))
        assert reader.decode(b"\x04" + length + value)[0][1] == text
        assert len(reader._strings) <= CACHED_STRINGS
    assert max(map(len, reader._strings)) <= 128


def test_a_list_too_large_leaves_the_decoder_right() -> None:
    reader = decoder(max_list_bytes=100)
    with pytest.raises(ListTooLarge):
        reader.decode(CUSTOM + b"\x04\x28" + b"/" * 40)
    assert reader.decode(b"\xbe") == ((b"custom-key", b"custom-value"),), "what it said of the table counts"


def test_a_small_block_cannot_grow_without_end() -> None:
    reader = decoder(max_list_bytes=2_000)
    reader.decode(b"\x40\x01a\x7f\x81\x07" + b"v" * 1_024)
    with pytest.raises(ListTooLarge):
        reader.decode(b"\xbe" * 60_000)


@pytest.mark.parametrize(
    "block", ["80", "be", "3f", "7fffffffffff", "0085", "000a616263", "008261", "40", "04", "8f", "ff80808080808001"]
)
def test_broken_blocks(block: str) -> None:
    data = bytes.fromhex(block)
    if data == b"\x8f":
        assert decoder().decode(data)
        return
    broken(decoder(), data)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_end_well(block: bytes) -> None:
    with contextlib.suppress(ConnectionFault, ListTooLarge):
        decoder(500).decode(block)
