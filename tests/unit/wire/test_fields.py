"""Lists of header fields: what is well-formed, and what is read of them."""

from __future__ import annotations

import pytest

from poolpilot_picker.extproc.wire.fields import Section

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b":authority", b"picker")]


def test_a_grpc_request() -> None:
    section = Section(
        [*REQUEST, (b"content-type", b"application/grpc"), (b"grpc-encoding", b"gzip"), (b"te", b"trailers")]
    )
    assert not section.problem
    assert (section.method, section.path, section.content_type) == (b"POST", b"/a/b", b"application/grpc")
    assert section.encoding == b"gzip"
    assert section.content_length is None


@pytest.mark.parametrize(
    "more",
    [
        [(b"a", b"")],
        [(b"a!#$%&'*+-.^_`|~1", b"any thing \t \x80\xff")],
        [(b"a", b"1"), (b"a", b"2")],
        [(b"content-length", b"5"), (b"content-length", b"5")],
    ],
)
def test_good_fields(more: list[tuple[bytes, bytes]]) -> None:
    assert not Section([*REQUEST, *more]).problem
    assert not Section(more).trailers_problem


@pytest.mark.parametrize(
    "more",
    [
        [(b"A", b"1")],
        [(b"", b"1")],
        [(b"a b", b"1")],
        [(b"a:", b"1")],
        [(b"a\x80", b"1")],
        [(b"a", b"1\r\nb: 2")],
        [(b"a", b"\0")],
        [(b"a", b" 1")],
        [(b"a", b"1\t")],
        [(b"connection", b"close")],
        [(b"keep-alive", b"1")],
        [(b"proxy-connection", b"close")],
        [(b"transfer-encoding", b"chunked")],
        [(b"upgrade", b"h2c")],
        [(b"te", b"gzip")],
        [(b"content-length", b"-1")],
        [(b"content-length", b"")],
        [(b"content-length", b"9" * 19)],
        [(b"content-length", b"1"), (b"content-length", b"2")],
    ],
)
def test_bad_fields(more: list[tuple[bytes, bytes]]) -> None:
    assert Section([*REQUEST, *more]).problem
    assert Section(more).trailers_problem


@pytest.mark.parametrize(
    "fields",
    [
        [],
        REQUEST[1:],
        [REQUEST[0], *REQUEST[2:]],
        [*REQUEST[:2], *REQUEST[3:]],
        [*REQUEST[:2], (b":path", b""), REQUEST[3]],
        [*REQUEST, REQUEST[0]],
        [*REQUEST, (b":status", b"200")],
        [*REQUEST, (b":unknown", b"1")],
        [REQUEST[0], (b"a", b"1"), *REQUEST[1:]],
        [*REQUEST[:3], (b":authority", b"a\nb")],
    ],
)
def test_bad_pseudo_header_fields(fields: list[tuple[bytes, bytes]]) -> None:
    assert Section(fields).problem


def test_connect_has_no_path() -> None:
    assert not Section([(b":method", b"CONNECT"), (b":authority", b"a:1")]).problem


def test_trailers_have_no_pseudo_header_fields() -> None:
    assert Section(REQUEST).trailers_problem
    assert not Section([(b"a", b"1")]).trailers_problem
    assert not Section([]).trailers_problem
