"""One reader per API: decoded JSON body → prompt and limits. Called by `parse`; a new API is one reader and one row.

A reader fills in the request's stream, max_tokens and sequences, and returns the prompt with the fields all APIs share.
It raises what the decoder raises (msgspec.DecodeError, RecursionError), and BadRequest for what only it can know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.requests import media, shapes
from poolpilot_picker.requests.prompt import BODY, MESSAGE, Prompt
from poolpilot_picker.requests.refusals import SHOWN_BYTES, invalid, shown
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.requests.shapes import ABSENT, Body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolpilot_picker.errors import BadRequest
    from poolpilot_picker.requests.head import RequestHead

MOST: Final = 2**31 - 1
"""Larger counts mean the same: no limit."""

MOST_SEQUENCES: Final = 16_384
"""vLLM refuses more; a booking must not believe them."""

_FOR_THE_ACCOUNT: Final = "x-anthropic-billing-header"
_IDS: Final = b"0123456789-,"
_SPACE: Final = b" \t\r\n"


def read_chat(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    """`/v1/chat/completions` and `/v1/messages`."""
    try:
        fields = shapes.CHAT.decode(body)
    except msgspec.ValidationError as error:
        fields = shapes.leniently(shapes.CHAT, body, error)
    if not fields.messages and request.complete:
        raise _missing(request.kind, "messages", "a non-empty array of objects", fields.messages)
    if fields.stream:
        request.stream = True
    if fields.max_completion_tokens is not None:
        request.max_tokens = _count(request.kind, "max_completion_tokens", fields.max_completion_tokens)
        request.unlimited = fields.max_completion_tokens < 0
    elif fields.max_tokens is not None:
        request.max_tokens = _count(request.kind, "max_tokens", fields.max_tokens)
        request.unlimited = fields.max_tokens < 0
    if fields.n is not None:
        request.sequences = _sequences(request.kind, "n", fields.n)
    prompt = Prompt(head.video)
    if fields.tools is not ABSENT or fields.functions is not ABSENT:
        prompt.tools(fields.tools, fields.functions)
    if fields.system:
        prompt.head("system")
        prompt.content(fields.system if isinstance(fields.system, str) else _shown_to_the_model(fields.system))
    prompt.messages(fields.messages or ())
    return prompt, fields


def read_completions(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    """`/v1/completions`."""
    try:
        fields = shapes.COMPLETIONS.decode(body)
    except msgspec.ValidationError as error:
        fields = shapes.leniently(shapes.COMPLETIONS, body, error)
    request.stream = bool(fields.stream)
    request.max_tokens = _count(request.kind, "max_tokens", fields.max_tokens)
    request.unlimited = fields.max_tokens is not None and fields.max_tokens < 0
    prompt = Prompt(head.video)
    prompts = 1
    if not _is_null(fields.prompt_embeds):
        embeds = bytes(fields.prompt_embeds)
        prompt.attach(embeds, media.embeds_tokens(embeds))
    if not _is_null(fields.prompt):
        prompts = _texts_or_ids(prompt, request, "prompt", bytes(fields.prompt))
    elif _is_null(fields.prompt_embeds) and request.complete:
        raise _missing(request.kind, "prompt", "a string, an array of strings or token ids", None)
    if fields.suffix:
        prompt.raw(BODY)
        prompt.text(fields.suffix)
    each = max(_sequences(request.kind, "n", fields.n), _sequences(request.kind, "best_of", fields.best_of))
    request.sequences = min(prompts * each, MOST_SEQUENCES)
    return prompt, fields


def read_embeddings(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    """`/v1/embeddings`."""
    try:
        fields = shapes.EMBEDDINGS.decode(body)
    except msgspec.ValidationError as error:
        fields = shapes.leniently(shapes.EMBEDDINGS, body, error)
    prompt = Prompt(head.video)
    if not _is_null(fields.input):
        raw = bytes(fields.input)
        items = _items(raw)
        request.sequences = _texts_or_ids(prompt, request, "input", raw) if items is None else prompt.items(items)
    elif fields.messages:
        prompt.messages(fields.messages)
    elif request.complete:
        raise _missing(request.kind, "input", "a string, an array of strings or token ids", None)
    request.max_tokens = 0
    return prompt, fields


def read_responses(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    """`/v1/responses`."""
    try:
        fields = shapes.RESPONSES.decode(body)
    except msgspec.ValidationError as error:
        fields = shapes.leniently(shapes.RESPONSES, body, error)
    if fields.input is None and request.complete:
        raise _missing(request.kind, "input", "a string or an array of items", None)
    request.stream = bool(fields.stream)
    request.max_tokens = _count(request.kind, "max_output_tokens", fields.max_output_tokens)
    request.unlimited = fields.max_output_tokens is not None and fields.max_output_tokens < 0
    prompt = Prompt(head.video)
    prompt.tools(fields.tools)
    if fields.instructions:
        prompt.head("system")
        prompt.text(fields.instructions)
    if isinstance(fields.input, str):
        prompt.head("user")
        prompt.text(fields.input)
    else:
        prompt.messages(fields.input or ())
    return prompt, fields


READERS: Final[Mapping[RequestKind, Callable[[InferenceRequest, RequestHead, bytes], tuple[Prompt, Body]]]] = {
    RequestKind.CHAT: read_chat,
    RequestKind.MESSAGES: read_chat,
    RequestKind.COMPLETIONS: read_completions,
    RequestKind.EMBEDDINGS: read_embeddings,
    RequestKind.RESPONSES: read_responses,
}


def _shown_to_the_model(system: list[str | shapes.Part]) -> list[str | shapes.Part]:
    """System text without the block in front of it that Claude Code writes for the account, another in every request.

    vLLM leaves it out of the prompt too. Hashed, it would hide that all the rest is the same.
    """
    return [part for part in system if isinstance(part, str) or not (part.text or "").startswith(_FOR_THE_ACCOUNT)]


def _texts_or_ids(prompt: Prompt, request: InferenceRequest, field: str, raw: bytes) -> int:
    """Adds a prompt given as text, texts, token ids or lists of token ids; returns how many prompts that are."""
    if raw.startswith(b'"'):
        prompt.text(shapes.TEXT.decode(raw))
        return 1
    if raw.startswith(b"["):
        inner = raw[1:].lstrip(_SPACE)
        if inner.startswith(b'"'):
            return _texts(prompt, request, field, raw)
        return _ids(prompt, request, field, raw)
    raise _missing(request.kind, field, "a string, an array of strings or token ids", msgspec.json.decode(raw))


def _items(raw: bytes) -> list[shapes.Part] | None:
    """Inputs of multimodal embeddings (SGLang): objects with text, an image or both; None: it is something else."""
    if not raw.startswith(b"[") or not raw[1:].lstrip(_SPACE).startswith(b"{"):
        return None
    try:
        return shapes.PARTS.decode(raw)
    except msgspec.ValidationError:
        return None


def _texts(prompt: Prompt, request: InferenceRequest, field: str, raw: bytes) -> int:
    try:
        texts = shapes.TEXTS.decode(raw)
    except msgspec.ValidationError:
        raise invalid(request.kind, field, f"{field} must be strings or token ids throughout") from None
    between = b""
    for text in texts:
        prompt.raw(between + text.encode())
        between = MESSAGE
    return len(texts)


def _ids(prompt: Prompt, request: InferenceRequest, field: str, raw: bytes) -> int:
    digits = raw.translate(None, _SPACE)
    if not request.complete:
        digits = digits.replace(b",[]", b"")  # the list that the cut left empty
        if not digits.strip(b"[]"):
            return 1
    frame = digits.translate(None, _IDS)
    lists = len(frame) // 2 - 1
    flat = frame == b"[]" and digits != b"[]"
    nested = (
        lists > 0
        and frame == b"[" + b"[]" * lists + b"]"
        and digits.startswith(b"[[")
        and digits.endswith(b"]]")
        and digits.count(b"],[") == lists - 1
        and b"[]" not in digits
    )
    if not flat and not nested:
        allowed = "a string, a non-empty array of strings or token ids, or arrays of token ids"
        raise invalid(
            request.kind,
            field,
            f"{field} must be {allowed}, got {shown(msgspec.json.decode(raw) if len(raw) < SHOWN_BYTES else '...')}",
        )
    prompt.raw(digits)
    prompt.ids = digits.count(b",") + 1
    return 1 if flat else lists


def _is_null(raw: msgspec.Raw) -> bool:
    return raw is ABSENT or bytes(raw) == b"null"


def _missing(kind: RequestKind, field: str, allowed: str, value: object) -> BadRequest:
    got = "" if value is None else f", got {shown(value)}"
    return invalid(kind, field, f"{field} must be {allowed}{got}")


def _count(kind: RequestKind, field: str, value: float | None) -> int | None:
    """A limit in tokens. What is negative means no limit (llama.cpp's −1); judging ranges is the engine's business."""
    if value is None:
        return None
    if not -MOST <= value <= MOST:
        return None
    whole = int(value)
    if whole != value:
        raise invalid(kind, field, f"{field} must be an integer or null, got {shown(value)}")
    return whole if whole >= 0 else None


def _sequences(kind: RequestKind, field: str, value: float | None) -> int:
    return min(max(_count(kind, field, value) or 1, 1), MOST_SEQUENCES)
