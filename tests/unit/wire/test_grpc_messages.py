"""Length-prefixed messages and statuses."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise
from urllib.parse import unquote_to_bytes

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.extproc.wire.errors import CallFault, Status
from poolpilot_picker.extproc.wire.grpc_messages import (
    MAX_STATUS_TEXT,
    MessageReader,
    check_encoding,
    escaped,
    is_grpc,
    trailers,
)
from poolpilot_picker.extproc.wire.limits import Held

LIMIT = 1_000


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def reader(encoding: bytes = b"", held: Held | None = None) -> MessageReader:
    return MessageReader(LIMIT, held or Held(10_000), encoding)


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(0, 300), max_size=12))
def test_messages_cut_anywhere(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(prefixed, messages))
    held = Held(10_000)
    cutter = reader(held=held)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got: list[bytes] = []
    for start, end in pairwise(bounds):
        if start < end:
            got += cutter.feed(data[start:end])
            assert cutter.have == held.bytes
    assert got == messages
    assert not cutter.have and held.bytes == 0


def test_every_byte_alone() -> None:
    cutter, got = reader(), list[bytes]()
    for byte in prefixed(b"abc") + prefixed(b"") + prefixed(b"d"):
        got += cutter.feed(bytes((byte,)))
    assert got == [b"abc", b"", b"d"]


def test_what_is_not_whole_is_forgotten() -> None:
    held = Held(10_000)
    cutter = reader(held=held)
    cutter.feed(prefixed(b"x" * 100)[:50])
    assert cutter.have and held.bytes == 50
    cutter.forget()
    assert not cutter.have and held.bytes == 0


@pytest.mark.parametrize("split", [0, 1, 4])
def test_too_large_is_known_by_the_prefix(split: int) -> None:
    cutter = reader()
    data = prefixed(b"x" * (LIMIT + 1))
    if split:
        cutter.feed(data[:split])
    with pytest.raises(CallFault, match="1001 bytes is larger than the limit of 1000") as caught:
        cutter.feed(data[split:])
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    assert list(reader().feed(prefixed(b"x" * LIMIT))) == [b"x" * LIMIT]


def test_a_listener_holds_only_so_much() -> None:
    held = Held(100)
    one, other = reader(held=held), reader(held=held)
    one.feed(prefixed(b"x" * 900)[:60])
    with pytest.raises(CallFault) as caught:
        other.feed(prefixed(b"x" * 900)[:60])
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    one.forget()
    other.feed(prefixed(b"x" * 900)[:60])


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages(encoding: bytes, compress: object) -> None:
    assert callable(compress)
    plain = b"hello " * 20
    whole = compress(plain)
    assert list(reader(encoding).feed(prefixed(whole, 1) + prefixed(b"plain"))) == [plain, b"plain"]
    for broken in (b"", b"nothing", whole[:-1]):
        with pytest.raises(CallFault) as caught:
            reader(encoding).feed(prefixed(broken, 1))
        assert caught.value.status is Status.INTERNAL
    with pytest.raises(CallFault) as caught:
        reader(encoding).feed(prefixed(compress(b"x" * 100_000), 1))
    assert caught.value.status is Status.RESOURCE_EXHAUSTED, "not even a bomb"


@pytest.mark.parametrize("encoding", [b"", b"identity"])
def test_compressed_without_an_encoding(encoding: bytes) -> None:
    with pytest.raises(CallFault, match="no grpc-encoding") as caught:
        reader(encoding).feed(prefixed(b"x", 1))
    assert caught.value.status is Status.INTERNAL


def test_encodings() -> None:
    for known in (b"", b"identity", b"gzip", b"deflate"):
        check_encoding(known)
    with pytest.raises(CallFault, match=r"'snappy' is not supported; allowed are gzip and deflate") as caught:
        check_encoding(b"snappy")
    assert caught.value.status is Status.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("content_type", "yes"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_content_types(content_type: bytes, yes: bool) -> None:
    assert is_grpc(content_type) is yes


def fields(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


def test_statuses() -> None:
    assert fields(trailers(Status.INTERNAL, "no", only=False)) == {"grpc-status": "13", "grpc-message": "no"}
    assert fields(trailers(Status.UNIMPLEMENTED, "", only=True)) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "12",
        "grpc-accept-encoding": "identity,deflate,gzip",
    }
    assert len(trailers(Status.INTERNAL, "x" * 100_000, only=True)) < MAX_STATUS_TEXT + 200


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_messages_of_statuses(text: str) -> None:
    sent = escaped(text)
    assert all(0x20 <= byte <= 0x7E for byte in sent) and sent == sent.strip(b" ")
    assert unquote_to_bytes(sent).decode() == text.strip(" ")
