"""Response bodies → what they prove: token usage and the first token. Only of sampled exchanges; for learning."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_HELD: Final = 1 << 17
"""Bytes kept of an unfinished line or document; of longer ones the end, where `usage` stands."""

_CONTENT: Final = re.compile(
    rb'"(?:content|text|delta|reasoning_content|reasoning|refusal|thinking|partial_json|arguments)"\s*:\s*"[^"]'
    rb'|"(?:tool_calls|function_call)"\s*:\s*[\[{]\s*["{]'
)
"""A value that a model wrote: a role-only first delta (`"content":""`) is none."""
_USAGE: Final = re.compile(rb'"usage"\s*:\s*')
_USAGE_OBJECT: Final = re.compile(rb'"usage"\s*:\s*\{')
"""Many events carry `"usage":null`: those need no decoding."""
_OBJECT: Final = json.JSONDecoder()


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the engine counted them; None where it did not say, or said nonsense."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class UsageReader:
    """Reads one response body chunk by chunk; never raises for what an engine sends.

    `streamed` is True for `text/event-stream`. After the last chunk call `finish`; `usage` has the last counts seen.
    """

    __slots__ = ("_alike", "_held", "_overflowed", "_streamed", "events", "usage")

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._held = b""
        self._overflowed = False
        self._alike = b""
        """How the last event with content began, up to the quote before its text: most events of an answer do."""
        self.usage: Usage | None = None
        self.events = 0
        """Events with content so far: about the tokens written, when streamed."""

    @property
    def first_token_seen(self) -> bool:
        """True once an event carried content."""
        return self.events > 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the body, cut anywhere."""
        data = self._held + chunk if self._held else chunk
        if self._streamed:
            lines = data.split(b"\n")
            data = lines.pop()
            for line in lines:
                self._line(line, whole=not self._overflowed)
                self._overflowed = False
        if len(data) > MAX_HELD:
            data = data[-MAX_HELD:]
            self._overflowed = True
        self._held = data

    def finish(self) -> None:
        """The body has ended: reads what has no line end, or the one JSON document."""
        held, self._held = self._held, b""
        if self._streamed:
            self._line(held, whole=not self._overflowed)
        elif held:
            self._take(held, whole=not self._overflowed)

    def _line(self, line: bytes, *, whole: bool) -> None:
        if whole and not line.startswith(b"data:"):
            return
        if self._has_content(line):
            self.events += 1
        if b'"usage"' in line and (not whole or _USAGE_OBJECT.search(line)):
            self._take(line[5:] if whole else line, whole=whole)

    def _has_content(self, line: bytes) -> bool:
        alike = self._alike
        if alike and line.startswith(alike) and line[len(alike) : len(alike) + 1] not in (b"", b'"'):
            return True
        found = _CONTENT.search(line)
        if found is None:
            return False
        beginning = line[: found.end() - 1]
        self._alike = beginning if beginning.endswith(b'"') and found.group().count(b'"') == 3 else b""
        return True

    def _take(self, document: bytes, *, whole: bool) -> None:
        found = None
        if whole:
            try:
                found = _usage_in(msgspec.json.decode(document))
            except (msgspec.DecodeError, RecursionError):
                return
        else:
            for candidate in _objects_after(document):
                found = usage_of(candidate) or found
        if found is not None:
            self.usage = _merged(self.usage, found)


def usage_of(value: Any) -> Usage | None:
    """Usage from a decoded `usage` object of any of the APIs; None when it says nothing usable."""
    if not isinstance(value, dict):
        return None
    prompt = _tokens(value, "prompt_tokens", "input_tokens")
    completion = _tokens(value, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    details = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    cached = _tokens(details, "cached_tokens") if isinstance(details, dict) else None
    if cached is None and (cached := _tokens(value, "cache_read_input_tokens")) is not None and prompt is not None:
        # Anthropic's input tokens are those that neither came from the cache nor were written to it.
        prompt += cached + (_tokens(value, "cache_creation_input_tokens") or 0)
    # Some servers write zeros where they have not counted (yet): no prompt has no tokens.
    prompt = prompt or None
    if prompt is None and completion is None:
        return None
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def _merged(old: Usage | None, new: Usage) -> Usage:
    # Anthropic tells the prompt's tokens at the start and the answer's at the end.
    if old is None:
        return new
    return Usage(
        prompt_tokens=old.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        completion_tokens=old.completion_tokens if new.completion_tokens is None else new.completion_tokens,
        cached_tokens=old.cached_tokens if new.cached_tokens is None else new.cached_tokens,
    )


def _usage_in(document: Any) -> Usage | None:
    # Responses API: in `response` of the event response.completed; Anthropic: in `message` of message_start.
    if not isinstance(document, dict):
        return None
    for holder in (document, document.get("response"), document.get("message")):
        if isinstance(holder, dict) and (found := usage_of(holder.get("usage"))):
            return found
    return None


def _objects_after(text: bytes) -> Iterator[Any]:
    for match in _USAGE.finditer(text):
        try:
            yield _OBJECT.raw_decode(text[match.end() : match.end() + 4096].decode("utf-8", "replace"))[0]
        except (ValueError, RecursionError):
            continue


def _tokens(value: dict[str, Any], *names: str) -> int | None:
    for name in names:
        count = value.get(name)
        if type(count) is int and count >= 0:
            return count
    return None
