"""Images, audio, video and files inside a prompt → estimated tokens, by their size, never by the length of base64.

An image costs width × height / 1024 tokens, 640 × 360 where the size is unknown (llm-d-router's estimate).
"""

from __future__ import annotations

import binascii
import re
from typing import Final

DEFAULT_WIDTH: Final = 640
DEFAULT_HEIGHT: Final = 360
PIXELS_PER_TOKEN: Final = 1024.0
MAX_IMAGE_TOKENS: Final = 16384.0
"""Engines scale larger images down (Qwen2-VL: 16,384 tokens)."""
AUDIO_TOKENS_PER_SECOND: Final = 25.0
"""Common for audio encoders of the Whisper family after pooling (Qwen2-Audio: 25 per second)."""
WAV_BYTES_PER_SECOND: Final = 32_000.0
"""16 kHz, 16 bit, mono, where the header does not tell."""
MP3_BYTES_PER_SECOND: Final = 16_000.0
"""128 kbit/s."""
DEFAULT_AUDIO_SECONDS: Final = 10.0
MAX_FRAMES: Final = 768.0
FILE_BYTES_PER_TOKEN: Final = 16.0
"""A document's bytes are mostly not text (PDF: fonts, images, compression)."""
EMBEDDING_BYTES: Final = 8192.0
"""Per token: 4,096 numbers of two bytes."""

_BASE64: Final = re.compile(rb'base64,|"(?:data|file_data)"\s*:\s*"')
_HEADER_CHARS: Final = 65_536
"""Base64 characters decoded to find an image's size: a JPEG's may follow 40 KB of metadata."""


def image_tokens(value: bytes) -> float:
    """Tokens of an image given as raw JSON: a URL, a data URL, an object that holds one, or an Anthropic source."""
    width, height = image_size(_decoded(_base64(value)[:_HEADER_CHARS])) or (DEFAULT_WIDTH, DEFAULT_HEIGHT)
    return min(max(width * height / PIXELS_PER_TOKEN, 1.0), MAX_IMAGE_TOKENS)


def audio_tokens(value: bytes) -> float:
    """Tokens of audio given as raw JSON: `{"data": base64, "format": "wav"}`, a URL or a data URL."""
    data = _base64(value)
    if not data:
        return DEFAULT_AUDIO_SECONDS * AUDIO_TOKENS_PER_SECOND
    size = len(data) * 0.75
    start = _decoded(data[:64])
    rate = MP3_BYTES_PER_SECOND
    if start[:4] == b"RIFF":
        rate = float(int.from_bytes(start[28:32], "little")) or WAV_BYTES_PER_SECOND
    return max(size / rate, 0.1) * AUDIO_TOKENS_PER_SECOND


def video_tokens(*, fps: float, seconds: float, width: int, height: int) -> float:
    """Tokens of a video, sampled at `fps`."""
    frames = min(max(fps * seconds, 1.0), MAX_FRAMES)
    return frames * min(max(width * height / PIXELS_PER_TOKEN, 1.0), MAX_IMAGE_TOKENS)


def file_tokens(value: bytes) -> float:
    """Tokens of a document given as raw JSON."""
    return max(len(_base64(value)) * 0.75 / FILE_BYTES_PER_TOKEN, 1.0)


def embeds_tokens(value: bytes) -> float:
    """Tokens of a prompt given as an embedding tensor, base64 in raw JSON."""
    return max(len(value) * 0.75 / EMBEDDING_BYTES, 1.0)


def image_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) from the first bytes of a PNG, JPEG, GIF or WebP; None when they do not tell."""
    size: tuple[int, int] | None = None
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data[:3] == b"GIF" and len(data) >= 10:
        size = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = _webp_size(data)
    elif data[:2] == b"\xff\xd8":
        size = _jpeg_size(data)
    return size if size and size[0] and size[1] else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        if marker == 0xFF:
            at += 1
            continue
        at += 2 if marker == 0x01 or 0xD0 <= marker <= 0xD9 else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    form = data[12:16]
    if form == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if form == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def _base64(value: bytes) -> bytes:
    """The first base64 text in raw JSON; empty where there is none."""
    found = _BASE64.search(value)
    if not found:
        return b""
    end = value.find(b'"', found.end())
    return value[found.end() : end if end >= 0 else len(value)]


def _decoded(base64: bytes) -> bytes:
    head = base64.replace(b"\\", b"").translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    head = head[: len(head) // 4 * 4]
    try:
        return binascii.a2b_base64(head)
    except binascii.Error:
        return b""
