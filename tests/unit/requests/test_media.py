"""Sizes of images from their first bytes, tokens of audio, files and video."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.requests.media import audio_tokens, file_tokens, image_size, image_tokens, video_tokens

pillow = pytest.importorskip("PIL.Image", reason="needs Pillow to make images")


def picture(form: str, width: int, height: int, **options: Any) -> bytes:
    out = io.BytesIO()
    pillow.new("RGB", (width, height)).save(out, form, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + bytes(30_000)}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0" + bytes(100)}),
    ],
)
def test_the_size_is_read_from_the_header(form: str, options: dict[str, Any]) -> None:
    data = picture(form, 1_280, 720, **options)
    assert image_size(data) == (1_280, 720)
    url = json.dumps({"url": f"data:image/{form.lower()};base64,{base64.b64encode(data).decode()}"}).encode()
    assert image_tokens(url) == 900.0
    assert image_tokens(url.replace(b"/", b"\\/")) == 900.0, "some encoders escape the slash"


@pytest.mark.parametrize(
    "value",
    [
        b'{"url":"https://example.com/a.png"}',
        b'"https://example.com/a.png"',
        b'{"url":"data:image/png;base64,"}',
        b'{"url":"data:image/png;base64,!!!!"}',
        b'{"url":"data:image/png;base64,AAAA',
        b"{}",
        b"null",
        b"5",
    ],
)
def test_an_unknown_size_is_taken_for_640_by_360(value: bytes) -> None:
    assert image_tokens(value) == 225.0


def test_a_huge_size_is_bounded() -> None:
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\xff" * 8
    value = b'"data:image/png;base64,' + base64.b64encode(header) + b'"'
    assert image_tokens(value) == 16_384.0
    empty = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(8)
    assert image_tokens(b'"data:image/png;base64,' + base64.b64encode(empty) + b'"') == 225.0


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBPVP8X"]),
)
def test_no_header_makes_it_raise(data: bytes, start: bytes) -> None:
    image_size(start + data)


@given(st.binary(max_size=100))
def test_no_value_makes_it_raise(value: bytes) -> None:
    for start in (b"", b'"base64,', b'{"data":"'):
        assert image_tokens(start + value) >= 1
        assert audio_tokens(start + value) > 0
        assert file_tokens(start + value) >= 1


def wav(seconds: float, rate: int) -> bytes:
    body = bytes(int(seconds * rate))
    fmt = b"WAVEfmt \x10\0\0\0\1\0\1\0" + (rate // 2).to_bytes(4, "little") + rate.to_bytes(4, "little") + b"\2\0\x10\0"
    return b"RIFF" + len(body).to_bytes(4, "little") + fmt + b"data" + body


def test_only_the_data_counts_not_what_follows_it() -> None:
    value = json.dumps({"data": "A" * 64_000, "format": "mp3", "transcript": "x" * 100_000}).encode()
    assert audio_tokens(value) == 75.0
    assert file_tokens(value) == 3_000.0


@pytest.mark.parametrize("rate", [16_000, 32_000, 88_200])
def test_a_wav_tells_its_length(rate: int) -> None:
    value = json.dumps({"format": "wav", "data": base64.b64encode(wav(4.0, rate)).decode()}).encode()
    assert audio_tokens(value) == pytest.approx(100, rel=0.01)


def test_a_video_is_its_frames() -> None:
    assert video_tokens(fps=1.0, seconds=10.0, width=640, height=360) == 2_250.0
    assert video_tokens(fps=60.0, seconds=1e9, width=64, height=16) == 768.0
    assert video_tokens(fps=0.1, seconds=1.0, width=640, height=360) == 225.0
