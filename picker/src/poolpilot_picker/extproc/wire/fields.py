"""A list of header fields → what a server needs to know of it, and whether it is well-formed (RFC 9113, section 8)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_picker.extproc.wire.hpack import Field

_NAME: Final = re.compile(rb"[!-9;-@\[-~]+").fullmatch
"""Section 8.2.1: visible ASCII, no capitals; a colon only begins pseudo-header fields."""
_VALUE: Final = re.compile(rb"(?:[^\0\r\n\t ](?:[^\0\r\n]*[^\0\r\n\t ])?)?").fullmatch
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":authority", b":path"))


class Block:
    """A header block that is still to be continued (section 6.10)."""

    __slots__ = ("flags", "parts", "size", "stream_id")

    def __init__(self, stream_id: int, flags: int, first: bytes) -> None:
        self.stream_id = stream_id
        self.flags = flags
        self.parts = [first]
        self.size = len(first)


class Section:
    """One list of fields, as a request's head or as trailers. Not changed once made: it is shared between streams."""

    __slots__ = ("content_length", "content_type", "encoding", "method", "path", "problem", "trailers_problem")

    def __init__(self, fields: Sequence[Field]) -> None:
        self.method = b""
        self.path = b""
        self.content_type = b""
        self.encoding = b""
        """Of the messages: `grpc-encoding`."""
        self.content_length: int | None = None
        pseudo: dict[bytes, bytes] = {}
        wrong = self._read(fields, pseudo)
        self.problem = wrong or self._head(pseudo)
        """Why it is malformed as a request; empty if it is not."""
        self.trailers_problem = wrong or ("trailers have a pseudo-header field" if pseudo else "")
        """The same as trailers."""

    def _read(self, fields: Sequence[Field], pseudo: dict[bytes, bytes]) -> str:
        regular = False
        for name, value in fields:
            if name[:1] == b":":
                if regular:
                    return "a pseudo-header field follows a regular one"
                if name not in _PSEUDO or name in pseudo:
                    return "a pseudo-header field is unknown or repeated"
                pseudo[name] = value
            else:
                regular = True
                if not _NAME(name):
                    return "the name of a header field has forbidden characters"
                problem = self._regular(name, value)
                if problem:
                    return problem
            if not _VALUE(value):
                return "the value of a header field has forbidden characters"
        return ""

    def _head(self, pseudo: dict[bytes, bytes]) -> str:
        self.method = pseudo.get(b":method", b"")
        self.path = pseudo.get(b":path", b"")
        if not self.method:
            return "there is no :method"
        if self.method != b"CONNECT" and not (self.path and pseudo.get(b":scheme")):
            return "there is no :path or no :scheme"
        return ""

    def _regular(self, name: bytes, value: bytes) -> str:
        if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
            return "a header field belongs to HTTP/1.1 connections"
        if name == b"content-type":
            self.content_type = value
        elif name == b"grpc-encoding":
            self.encoding = value
        elif name == b"content-length":
            length = int(value) if value.isdigit() and len(value) < 19 else None
            if length is None or self.content_length not in (None, length):
                return "content-length is no number, or two"
            self.content_length = length
        return ""
