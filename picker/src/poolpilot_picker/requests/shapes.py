"""Shapes of the JSON bodies that `parse` decodes: only the fields it needs; all others are skipped by the decoder.

Every field may be null: clients send it, and a mended partial body (`requests.partial`) has it at the cut.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

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
    lora_path: Raw = ABSENT


CHAT: Final = msgspec.json.Decoder(ChatBody)
COMPLETIONS: Final = msgspec.json.Decoder(CompletionsBody)
EMBEDDINGS: Final = msgspec.json.Decoder(EmbeddingsBody)
RESPONSES: Final = msgspec.json.Decoder(ResponsesBody)
NAMES: Final = msgspec.json.Decoder(Names)
TEXT: Final = msgspec.json.Decoder(str)
TEXTS: Final = msgspec.json.Decoder(list[str])
CONTENT: Final = msgspec.json.Decoder(Content)
