"""One series of a metrics page, and the labels in it (Prometheus text 0.0.4, OpenMetrics 1.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import msgspec

Labels = Mapping[str, str]

NO_LABELS: Final[Labels] = MappingProxyType({})

_LABEL: Final = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*')
_ESCAPE: Final = re.compile(r'\\([\\"n])')
_UNESCAPED: Final = {"\\": "\\", '"': '"', "n": "\n"}


class Series(msgspec.Struct, frozen=True, gc=False):
    """One line: raw text between the braces, value, and time stamp in ms where the line has one."""

    block: bytes
    value: float
    timestamp_ms: float | None = None

    @property
    def labels(self) -> Labels:
        """Parsed labels; the same block is parsed once."""
        return parse_labels(self.block) if self.block else NO_LABELS


@lru_cache(maxsize=4096)
def parse_labels(block: bytes) -> Labels:
    """Labels between braces: `a="x",b="y"` → {"a": "x", "b": "y"}. Escapes are \\\\, \\" and \\n.

    Raises ValueError where the block is not a list of labels. The result is shared: read-only.
    """
    labels: dict[str, str] = {}
    at, end = 0, len(block)
    if not block.strip():
        return NO_LABELS
    while True:
        match = _LABEL.match(block, at)
        if match is None:
            raise ValueError(f"label expected at byte {at} of {block[:200]!r}")
        name, value = match[1].decode(), match[2].decode("utf-8", "replace")
        labels[_unescape(name[1:-1]) if name.startswith('"') else name] = _unescape(value)
        at = match.end()
        if at == end:
            return MappingProxyType(labels)
        if block[at] != 0x2C:
            raise ValueError(f"comma expected at byte {at} of {block[:200]!r}")
        at += 1
        if not block[at:].strip():
            return MappingProxyType(labels)  # a trailing comma is allowed


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED[match[1]], text) if "\\" in text else text
