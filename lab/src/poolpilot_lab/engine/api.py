"""Request bodies of the OpenAI endpoints: typed reading, checks, and the text that the engine computes."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
import xxhash

from poolpilot_lab.engine import tokens
from poolpilot_lab.engine.errors import BadRequestError, InvalidBodyError

COMPLETION_MAX_TOKENS = 16
"""What `/v1/completions` generates when the client does not say, as in vLLM."""

IMAGE_TOKENS = 576
MAX_CHOICES = 128

_LETTERS = str.maketrans("0123456789", "ghijklmnop")

# Control characters mark turns: one token each, like the special tokens of a chat template.
_TURN, _TURN_END = "\x01", "\x02"


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(msgspec.Struct):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Sampling(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common; every other field is accepted and has no effect."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = 0
    n: int | None = 1
    seed: int | None = None
    ignore_eos: bool | None = False
    cache_salt: str | None = None


class ChatBody(_Sampling, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")


class CompletionBody(_Sampling, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any] | None = None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`."""

    model: str | None = None
    input: str | list[Any]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`POST /tokenize`, in its two forms."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None


Body = TypeVar("Body", bound=msgspec.Struct)

_LOCATION = re.compile(r" - at `\$\.?(.*)`$")


def read(body: bytes, kind: type[Body]) -> Body:
    """Decodes a body; raises InvalidBodyError that names the field and what is allowed."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        where = _LOCATION.search(text)
        location = f"body.{where.group(1)}" if where else "body"
        raise invalid(location, _LOCATION.sub("", text)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid("body", f"JSON decode error: {error}") from None


def invalid(location: str, message: str, value: object = None) -> InvalidBodyError:
    """The answer to a body with one wrong field."""
    detail = {"type": "value_error", "loc": location, "msg": message, "input": str(value)}
    return InvalidBodyError(f"1 validation error:\n  {detail}", location)


class Kind(msgspec.Struct, frozen=True):
    """An endpoint that generates."""

    id_prefix: str
    chat: bool = False


CHAT = Kind("chatcmpl-", chat=True)
COMPLETION = Kind("cmpl-")
EMBEDDING = Kind("embd-")


class Generation(msgspec.Struct, kw_only=True):
    """What a client wants generated, whatever the endpoint."""

    kind: Kind
    model: str | None
    prompts: list[tokens.Prompt]
    choices: int
    """answers per prompt"""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    default_max_tokens: int | None
    """applies when the client gave no limit"""
    min_tokens: int
    ignore_eos: bool
    cache_salt: str | None
    seed: int


def chat_generation(body: bytes) -> Generation:
    """Reads a chat request; raises ApiError."""
    request = read(body, ChatBody)
    if not request.messages:
        raise invalid("body.messages", "List should have at least 1 item", "[]")
    prompt = tokens.tokenize(render_chat(request.messages, bytes(request.tools)))
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    return _generation(request, [prompt], limit, None, CHAT)


def embedding_request(body: bytes) -> Generation:
    """Reads an embedding request, which computes its prompts and generates nothing worth telling; raises ApiError."""
    request = read(body, EmbeddingBody)
    prompts = read_prompts(request.input, "body.input")
    return _generation(_Sampling(model=request.model), prompts, 1, None, EMBEDDING)


def completion_generation(body: bytes) -> Generation:
    """Reads a text completion request; raises ApiError."""
    request = read(body, CompletionBody)
    if request.prompt is None:
        raise invalid("body.prompt", "Field required")
    prompts = read_prompts(request.prompt, "body.prompt")
    return _generation(request, prompts, request.max_tokens, COMPLETION_MAX_TOKENS, COMPLETION)


def _generation(
    request: _Sampling, prompts: list[tokens.Prompt], limit: int | None, default: int | None, kind: Kind
) -> Generation:
    options = request.stream_options or StreamOptions()
    choices = 1 if request.n is None else request.n
    if not 1 <= choices <= MAX_CHOICES:
        raise BadRequestError(
            f"n must be between 1 and {MAX_CHOICES}, got {choices}. (parameter=n, value={choices})", "n"
        )
    if limit is not None and limit < 1:
        raise BadRequestError(
            f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})", "max_tokens"
        )
    minimum = request.min_tokens or 0
    if minimum < 0 or (limit is not None and minimum > limit):
        raise BadRequestError(
            f"min_tokens must be between 0 and max_tokens={limit}, got {minimum}. "
            f"(parameter=min_tokens, value={minimum})",
            "min_tokens",
        )
    return Generation(
        kind=kind,
        model=request.model,
        prompts=prompts,
        choices=choices,
        stream=bool(request.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        max_tokens=limit,
        default_max_tokens=default,
        min_tokens=minimum,
        ignore_eos=bool(request.ignore_eos),
        cache_salt=request.cache_salt,
        seed=request.seed or 0,
    )


def read_prompts(value: str | list[Any], location: str) -> list[tokens.Prompt]:
    """Prompts as one text, several texts, token ids, or several lists of token ids."""
    if isinstance(value, str):
        return [_text(value, location)]
    if value and all(type(item) is int for item in value):
        return [_ids(value, location)]
    if not value:
        raise invalid(location, "List should have at least 1 item", value)
    prompts: list[tokens.Prompt] = []
    for position, item in enumerate(value):
        where = f"{location}.{position}"
        if isinstance(item, str):
            prompts.append(_text(item, where))
        elif isinstance(item, list) and all(type(entry) is int for entry in item):
            prompts.append(_ids(item, where))
        else:
            raise invalid(where, "Input should be a string, an integer or a list of integers", item)
    return prompts


def _text(value: str, location: str) -> tokens.Prompt:
    if not value:
        raise invalid(location, "Prompt should have at least 1 character", value)
    return tokens.tokenize(value.encode())


def _ids(value: list[int], location: str) -> tokens.Prompt:
    if not value or not all(0 <= token < 2**32 for token in value):
        raise invalid(location, "Token ids should be a non-empty list of non-negative integers", value[:4])
    return tokens.from_ids(value)


def tokenize_prompt(body: TokenizeBody) -> tokens.Prompt:
    """The prompt of a `/tokenize` body; raises InvalidBodyError."""
    if body.messages is not None:
        return tokens.tokenize(render_chat(body.messages, b""))
    if body.prompt is None:
        raise invalid("body.prompt", "Field required")
    return tokens.tokenize(body.prompt.encode())


def render_chat(messages: list[Message], tools: bytes) -> bytes:
    """The chat template: every turn is marked, and the answer's turn is opened."""
    parts: list[str] = []
    if tools and tools != b"null":
        parts.append(f"{_TURN}tools\n{tools.decode()}{_TURN_END}\n")
    parts.extend(f"{_TURN}{message.role}\n{_content(message)}{_TURN_END}\n" for message in messages)
    parts.append(f"{_TURN}assistant\n")
    return "".join(parts).encode()


def _content(message: Message) -> str:
    calls = bytes(message.tool_calls).decode()
    calls = "" if calls == "null" else calls
    if message.content is None:
        return calls
    if isinstance(message.content, str):
        return message.content + calls
    return "".join(map(_part, message.content)) + calls


def _part(part: dict[str, Any]) -> str:
    text = part.get("text")
    if isinstance(text, str):
        return text
    # Images, audio and files cost a fixed number of tokens that depend on their contents.
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode(part)).translate(_LETTERS)
    return f" {digest[:7]}" * IMAGE_TOKENS
