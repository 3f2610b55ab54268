"""A chat completion as a client sees it: the request of a turn, and what a streamed answer says.

Decoding happens once, after the last byte: while an answer streams, the connection only notes when chunks arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_lab.client.errors import AnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_lab.client.connection import Answer
    from poolpilot_lab.workload.sessions import Turn

PATH: Final = "/v1/chat/completions"
OUTPUT_TOKENS: Final = "x-engine-output-tokens"
"""Client → stand-in engine: the length of the answer. What a real model decides by itself must be equal in all runs."""
INSTANCE: Final = "x-engine-instance"
"""Stand-in engine → client: the name of the engine that answered."""

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


class Message(msgspec.Struct):
    """One entry of a conversation."""

    role: str
    content: str


class _StreamOptions(msgspec.Struct):
    include_usage: bool = True


class _ChatRequest(msgspec.Struct, omit_defaults=True):
    model: str
    messages: list[Message]
    stream: bool
    stream_options: _StreamOptions
    max_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete streamed answer. Times are seconds of `time.monotonic`."""

    text: str
    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    cached_tokens: int | None
    """None when the engine does not say."""
    output_tokens: int


def chat_body(model: str, messages: list[Message], turn: Turn) -> bytes:
    """The JSON body of one turn: streamed, with usage at the end."""
    request = _ChatRequest(model, messages, stream=True, stream_options=_StreamOptions(), max_tokens=turn.max_tokens)
    return msgspec.json.encode(request)


def chat_headers(turn: Turn) -> dict[str, str]:
    """The headers of one turn; without a length where the engine decides."""
    headers = {"content-type": "application/json"}
    if turn.output_tokens:
        headers[OUTPUT_TOKENS] = str(turn.output_tokens)
    return headers


def read_completion(answer: Answer, expected_tokens: int) -> Completion:
    """Reads a streamed chat completion of `expected_tokens` tokens, 0 for any number.

    Raises AnswerError when it is anything else.
    """
    if answer.status != 200:
        raise AnswerError(f"status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
    pieces: list[str] = []
    first_s = last_s = 0.0
    usage: _Usage | None = None
    finished = done = False
    for at_s, data in _events(answer):
        if data == _DONE:
            done = True
            continue
        try:
            event = _decode_event(data)
        except msgspec.MsgspecError as error:
            raise AnswerError(f"an event is not a chat completion chunk ({error}): {data[:200]!r}") from error
        if event.error is not None:
            raise AnswerError(f"an error in mid-stream: {event.error}")
        usage = event.usage or usage
        for choice in event.choices:
            if choice.delta.content:
                pieces.append(choice.delta.content)
                first_s = first_s or at_s
                last_s = at_s
            finished = finished or choice.finish_reason is not None
    if not (finished and done):
        raise AnswerError("the stream ended without a finish reason and [DONE]")
    if usage is None or not first_s:
        raise AnswerError("the stream held no token" if usage else "the stream held no usage")
    if expected_tokens and usage.completion_tokens != expected_tokens:
        raise AnswerError(f"{usage.completion_tokens} tokens came, {expected_tokens} were asked for")
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    return Completion("".join(pieces), first_s, last_s, usage.prompt_tokens, cached, usage.completion_tokens)


def _events(answer: Answer) -> Iterator[tuple[float, bytes]]:
    """Data lines of the events, each with the arrival of the chunk that completed it."""
    rest = b""
    for at_s, chunk in zip(answer.chunk_s, answer.chunks, strict=True):
        *whole, rest = (rest + chunk).split(b"\n\n")
        for event in whole:
            if event.startswith(_DATA):
                yield at_s, event[len(_DATA) :]
