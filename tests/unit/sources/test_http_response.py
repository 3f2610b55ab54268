"""Framing of HTTP/1.1 answers: the same result however the bytes arrive, and refusal of what is ambiguous."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http_response import ResponseReader


def read(data: bytes, *, cuts=(), closed=False, limit=10_000):
    reader = ResponseReader(limit)
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            reader.feed(data[start:end])
    if closed:
        reader.end()
    return reader


def refused(data: bytes, **options) -> ErrorKind:
    with pytest.raises(FetchError) as error:
        read(data, **options)
    return error.value.kind


SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;ext=1\r\nhello\r\n1\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
TO_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"


@given(st.sampled_from([SIZED, CHUNKED, TO_CLOSE]), st.lists(st.integers(0, 150), max_size=12))
def test_however_the_bytes_arrive(data, cuts):
    reader = read(data, cuts=[cut for cut in cuts if cut < len(data)], closed=data is TO_CLOSE)
    assert reader.response is not None
    assert reader.response.status == 200
    assert reader.response.body == (b"hello 0123456789" if data is CHUNKED else b"hello")
    assert reader.keep_alive == (data is not TO_CLOSE)


def test_header_names_are_lower_case_and_values_joined():
    response = read(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 0\r\n\r\n").response
    assert response is not None
    assert response.headers == {"x-a": "1, 2", "content-length": "0"}


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_keeping_the_connection(head, keeps):
    assert read(head + b"Content-Length: 0\r\n\r\n").keep_alive == keeps


def test_interim_answers_are_skipped():
    assert read(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED).response.body == b"hello"


def test_answers_without_a_body():
    reader = read(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert reader.response.status == 204
    assert reader.response.body == b""


def test_a_status_line_without_reason():
    assert read(b"HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n").response.status == 404
    assert read(b"HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n").response.status == 404


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
    ],
)
def test_what_is_no_answer_is_refused(data):
    assert refused(data) is ErrorKind.PROTOCOL


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: 0123456789\r\n" * 10,
    ],
)
def test_what_is_too_large_is_refused_before_it_is_kept(data):
    assert refused(data, limit=100) is ErrorKind.TOO_LARGE


@given(st.sampled_from([SIZED, CHUNKED]), st.data())
def test_an_answer_cut_short_is_an_error(data, draw):
    cut = draw.draw(st.integers(0, len(data) - 1))
    assert refused(data[:cut], closed=True) is ErrorKind.RESET


def test_equal_lengths_are_one_and_both_framings_are_not_reused():
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi").response.body == b"hi"
    both = read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert both.response.body == b""
    assert not both.keep_alive


def test_bytes_behind_the_answer_end_the_connection():
    assert not read(SIZED + b"HTTP").keep_alive
    reader = read(SIZED)
    with pytest.raises(FetchError):
        reader.feed(b"x")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_no_bytes_break_the_reader(data, cuts):
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        whole = start + data
        try:
            read(whole, cuts=[cut for cut in cuts if cut < len(whole)], closed=True, limit=200)
        except FetchError:
            continue
