"""Shapes of the JSON bodies that `parse` decodes: only the fields it needs; all others are skipped by the decoder.

Every field may be null: clients send it, and a mended partial body (`requests.partial`) has it at the cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

ABSENT: Final = Raw(b"")
"""Default of raw fields: compare by `is`."""

BOM: Final = b"\xef\xbb\xbf"
"""Engines written in Python accept one before JSON."""

Number = int | float | None


class Part(Struct, gc=False):
    """One part of a message's content, in the words of any of the APIs."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    image_url: Raw = ABSENT
    input_audio: Raw = ABSENT
    audio_url: Raw = ABSENT
    video_url: Raw = ABSENT
    file: Raw = ABSENT
    file_data: Raw = ABSENT
    source: Raw = ABSENT
    """Anthropic: image or document."""
    image: Raw = ABSENT
    """Models' own words for what others call image_url, audio_url and video_url; SGLang's embeddings."""
    audio: Raw = ABSENT
    video: Raw = ABSENT
    image_embeds: Raw = ABSENT
    """vLLM: tensors, base64, instead of a picture or sound."""
    audio_embeds: Raw = ABSENT
    uuid: Raw = ABSENT
    """vLLM: the name of a medium, which may be sent once with it and then alone."""
    file_id: Raw = ABSENT
    file_url: Raw = ABSENT
    data: Raw = ABSENT
    """Anthropic: redacted thinking."""
    name: Raw = ABSENT
    input: Raw = ABSENT
    """Anthropic: arguments of a tool_use."""
    content: Raw = ABSENT
    """Anthropic: tool_result, a string or parts."""


Content = str | list[str | Part] | None


class Message(Struct, gc=False):
    """A chat message, or an item of the Responses API."""

    type: str | None = None
    role: str | None = None
    content: Content = None
    reasoning_content: str | None = None
    reasoning: Raw = ABSENT
    refusal: str | None = None
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT
    name: Raw = ABSENT
    arguments: Raw = ABSENT
    output: Raw = ABSENT
    summary: Raw = ABSENT


class Body(Struct, gc=False):
    """What every inference body may hold."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    extra_key: Raw = ABSENT
    """SGLang: another salt."""
    lora_path: Raw = ABSENT


class ChatBody(Body, gc=False):
    """`/v1/chat/completions` and `/v1/messages`."""

    messages: list[Message] | None = None
    system: Content = None
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    max_tokens: Number = None
    max_completion_tokens: Number = None
    n: Number = None


class CompletionsBody(Body, gc=False):
    """`/v1/completions`."""

    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    suffix: str | None = None
    max_tokens: Number = None
    n: Number = None
    best_of: Number = None


class EmbeddingsBody(Body, gc=False):
    """`/v1/embeddings`; vLLM also takes messages."""

    input: Raw = ABSENT
    messages: list[Message] | None = None


class ResponsesBody(Body, gc=False):
    """`/v1/responses`."""

    instructions: str | None = None
    input: str | list[Message] | None = None
    tools: Raw = ABSENT
    max_output_tokens: Number = None


class Names(Struct, gc=False):
    """Top-level values as they stand in the body."""

    model: Raw = ABSENT
    cache_salt: Raw = ABSENT
    extra_key: Raw = ABSENT
    lora_path: Raw = ABSENT


class Limits(Struct, gc=False):
    """Top-level limits on the output as they stand in the body."""

    max_tokens: Raw = ABSENT
    max_completion_tokens: Raw = ABSENT
    max_output_tokens: Raw = ABSENT


CHAT: Final = msgspec.json.Decoder(ChatBody)
COMPLETIONS: Final = msgspec.json.Decoder(CompletionsBody)
EMBEDDINGS: Final = msgspec.json.Decoder(EmbeddingsBody)
RESPONSES: Final = msgspec.json.Decoder(ResponsesBody)
NAMES: Final = msgspec.json.Decoder(Names)
LIMITS: Final = msgspec.json.Decoder(Limits)
NUMBER: Final = msgspec.json.Decoder(Number, strict=False)
"""Also of a number that is written as text."""
TEXT: Final = msgspec.json.Decoder(str)
TEXTS: Final = msgspec.json.Decoder(list[str])
CONTENT: Final = msgspec.json.Decoder(Content)
PARTS: Final = msgspec.json.Decoder(list[Part])

_Shape = TypeVar("_Shape", ChatBody, CompletionsBody, EmbeddingsBody, ResponsesBody)
_LENIENT: Final[Mapping[object, msgspec.json.Decoder[object]]] = {
    decoder: msgspec.json.Decoder(decoder.type, strict=False) for decoder in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES)
}


def leniently(decoder: msgspec.json.Decoder[_Shape], body: bytes, error: msgspec.ValidationError) -> _Shape:
    """The body that a decoder has refused with `error`, with numbers, true and false also where they are written as
    text (`"stream": "True"`, `"max_tokens": "64"`) and 1 and 0 for true and false: engines written in Python take them.
    Raises `error` where that is not all.
    """
    try:
        return _LENIENT[decoder].decode(body)  # type: ignore[return-value]
    except msgspec.DecodeError:
        raise error from None
