"""(head, body) → InferenceRequest: the requests room's main step, between the exchange and `flow.place`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from poolpilot_picker.errors import BadRequest
from poolpilot_picker.requests import shapes
from poolpilot_picker.requests.chain import chain_seed, prefix_chain
from poolpilot_picker.requests.head import BodyUse, RequestHead, body_use
from poolpilot_picker.requests.partial import mend
from poolpilot_picker.requests.prompt import BODY, MESSAGE, Prompt
from poolpilot_picker.requests.refusals import NO_MODEL, explain, invalid, shown
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.requests.shapes import ABSENT, Body
from poolpilot_picker.requests.splice import value_span
from poolpilot_picker.requests.tokens import estimate, text_units

if TYPE_CHECKING:
    from collections.abc import Callable

BOM: Final = b"\xef\xbb\xbf"
"""Engines written in Python accept one before JSON."""

MOST: Final = 2**31 - 1
"""Larger counts mean the same: no limit."""

_IDS: Final = b"0123456789-, \t\r\n"
_SPACE: Final = b" \t\r\n"
_FORM_MODEL: Final = re.compile(rb'name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,512})\r\n')

B = TypeVar("B", bound=Body)


def same_model(model: str) -> str:
    """No rewrite: the engine is asked for what the client asked for."""
    return model


def unscaled(model: str) -> float:
    """No correction of the token estimate."""
    return 1.0


def parse(
    head: RequestHead,
    body: bytes,
    *,
    complete: bool = True,
    target_of: Callable[[str], str] = same_model,
    token_scale: Callable[[str], float] = unscaled,
) -> InferenceRequest:
    """What the decision needs to know of a request.

    `complete` is False when `body` is only the beginning (BUFFERED_PARTIAL above the buffer limit): then nothing is
    refused, the model may be missing, and the prompt's length is extrapolated by the content length.
    `target_of` maps the asked model to the one the engine is asked for (a rewrite header wins over it), `token_scale`
    the target model to its learned factor on text tokens.

    Raises BadRequest when a JSON inference body seen whole is malformed, lacks the model or its prompt, or has a wrong
    type where we read it. Bodies of other kinds are never refused.
    """
    request = InferenceRequest(
        request_id=head.request_id,
        path=head.path,
        tenant=head.tenant,
        objective=head.objective,
        routing_key=head.routing_key,
        slo_ttft_ms=head.slo_ttft_ms,
        slo_tpot_ms=head.slo_tpot_ms,
        only_if_cached=head.only_if_cached,
        test_selection=head.test_selection,
        receipt_wanted=head.receipt_wanted,
        body_bytes=len(body),
        complete=complete,
    )
    if body_use(head, end_of_stream=False) is not BodyUse.INFERENCE:
        _peek(request, head, body)
        _retarget(request, head, target_of)
        return request
    request.kind = head.kind
    body = body.removeprefix(BOM)
    if complete:
        _read_whole(request, head, body, target_of, token_scale)
    else:
        _read_beginning(request, head, body, target_of, token_scale)
    return request


def _read_whole(
    request: InferenceRequest,
    head: RequestHead,
    body: bytes,
    target_of: Callable[[str], str],
    token_scale: Callable[[str], float],
) -> None:
    try:
        prompt, fields = _READERS[request.kind](request, head, body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise explain(error, request.kind, body) from None
    if not fields.model:
        detail = "" if fields.model is None else ": model must be a non-empty string"
        raise BadRequest(NO_MODEL + detail, param="model")
    request.model = fields.model
    _retarget(request, head, target_of)
    _measure(request, prompt, fields, token_scale(request.target_model))


def _read_beginning(
    request: InferenceRequest,
    head: RequestHead,
    body: bytes,
    target_of: Callable[[str], str],
    token_scale: Callable[[str], float],
) -> None:
    mended = mend(body)
    for candidate in mended.candidates:
        try:
            prompt, fields = _READERS[request.kind](request, head, candidate)
        except (BadRequest, msgspec.ValidationError):
            break
        except (msgspec.DecodeError, RecursionError):
            continue
        if mended.cut_at is not None:
            _forget_cut(fields, candidate, mended.cut_at)
        request.model = fields.model or head.model_hint
        _retarget(request, head, target_of)
        _measure(request, prompt, fields, token_scale(request.target_model))
        break
    else:
        request.model = head.model_hint
        _retarget(request, head, target_of)
    if not request.prompt_tokens:
        request.prompt_tokens = estimate(text_units(body))
    if head.content_length and head.content_length > len(body) > 0:
        request.prompt_tokens = int(request.prompt_tokens * (head.content_length / len(body)))


def _measure(request: InferenceRequest, prompt: Prompt, fields: Body, scale: float) -> None:
    text = prompt.joined()
    request.text_tokens = 0.0 if prompt.ids else text_units(text)
    request.fixed_tokens = prompt.media_tokens + prompt.ids
    tokens = request.text_tokens * scale + request.fixed_tokens
    request.prompt_tokens = max(estimate(tokens), 1)
    path = fields.lora_path
    if path is not ABSENT and path is not None:
        request.adapter = _adapter(bytes(path))
    seed = chain_seed(request.target_model, request.adapter, fields.cache_salt or "")
    request.prefix = prefix_chain(text, seed, tokens=tokens, marks=prompt.marks)


def _retarget(request: InferenceRequest, head: RequestHead, target_of: Callable[[str], str]) -> None:
    if head.model_rewrite:
        request.target_model = head.model_rewrite
    elif request.model:
        request.target_model = target_of(request.model)


def _adapter(path: bytes) -> str:
    # A list names one adapter per prompt of a batch; such a request belongs to none of them alone.
    try:
        return shapes.TEXT.decode(path)
    except (msgspec.DecodeError, RecursionError):
        return ""


def _forget_cut(fields: Body, candidate: bytes, cut_at: int) -> None:
    # A name of which only the beginning was seen is another name.
    try:
        values = shapes.NAMES.decode(candidate)
    except (msgspec.DecodeError, RecursionError):
        return
    if values.model is not ABSENT and value_span(candidate, values.model)[1] == cut_at + 1:
        fields.model = None
    if values.cache_salt is not ABSENT and value_span(candidate, values.cache_salt)[1] == cut_at + 1:
        fields.cache_salt = None


def _peek(request: InferenceRequest, head: RequestHead, body: bytes) -> None:
    """The model of a body that is no inference call, where it shows itself."""
    if head.content_type == "multipart/form-data" and not head.content_encoding:
        if found := _FORM_MODEL.search(body[:65_536]) or _FORM_MODEL.search(body[-65_536:]):
            request.model = found.group(1).decode("utf-8", "replace").strip()
    elif body[:256].lstrip(BOM + _SPACE).startswith(b"{") and not head.content_encoding:
        candidates = (body,) if request.complete else mend(body).candidates
        for candidate in candidates:
            try:
                values = shapes.NAMES.decode(candidate)
                request.model = shapes.TEXT.decode(values.model) if values.model is not ABSENT else ""
            except (msgspec.DecodeError, RecursionError):
                continue
            request.stream = bytes(values.stream) == b"true"
            break
    request.model = request.model or head.model_hint


def _chat(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    fields = shapes.CHAT.decode(body)
    if not fields.messages and request.complete:
        raise _missing(request.kind, "messages", "a non-empty array of objects", fields.messages)
    request.stream = bool(fields.stream)
    limit, name = fields.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, name = fields.max_tokens, "max_tokens"
    request.max_tokens = _count(request.kind, name, limit)
    request.sequences = _sequences(request.kind, "n", fields.n)
    prompt = Prompt(head.video)
    prompt.tools(fields.tools, fields.functions)
    if fields.system:
        prompt.head("system")
        prompt.content(fields.system)
    prompt.messages(fields.messages or ())
    return prompt, fields


def _completions(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    fields = shapes.COMPLETIONS.decode(body)
    request.stream = bool(fields.stream)
    request.max_tokens = _count(request.kind, "max_tokens", fields.max_tokens)
    prompt = Prompt(head.video)
    prompts = 1
    if fields.prompt_embeds is not ABSENT:
        prompt.json(fields.prompt_embeds)
    if not _is_null(fields.prompt):
        prompts = _texts_or_ids(prompt, request, "prompt", bytes(fields.prompt))
    elif fields.prompt_embeds is ABSENT and request.complete:
        raise _missing(request.kind, "prompt", "a string, an array of strings or token ids", None)
    if fields.suffix:
        prompt.raw(BODY)
        prompt.text(fields.suffix)
    each = max(_sequences(request.kind, "n", fields.n), _sequences(request.kind, "best_of", fields.best_of))
    request.sequences = min(prompts * each, MOST)
    return prompt, fields


def _embeddings(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    fields = shapes.EMBEDDINGS.decode(body)
    prompt = Prompt(head.video)
    if not _is_null(fields.input):
        request.sequences = _texts_or_ids(prompt, request, "input", bytes(fields.input))
    elif fields.messages:
        prompt.messages(fields.messages)
    elif request.complete:
        raise _missing(request.kind, "input", "a string, an array of strings or token ids", None)
    request.max_tokens = 0
    return prompt, fields


def _responses(request: InferenceRequest, head: RequestHead, body: bytes) -> tuple[Prompt, Body]:
    fields = shapes.RESPONSES.decode(body)
    if fields.input is None and request.complete:
        raise _missing(request.kind, "input", "a string or an array of items", None)
    request.stream = bool(fields.stream)
    request.max_tokens = _count(request.kind, "max_output_tokens", fields.max_output_tokens)
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


_READERS: Final = {
    RequestKind.CHAT: _chat,
    RequestKind.MESSAGES: _chat,
    RequestKind.COMPLETIONS: _completions,
    RequestKind.EMBEDDINGS: _embeddings,
    RequestKind.RESPONSES: _responses,
}


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
    frame = raw.translate(None, _IDS)
    lists = len(frame) // 2 - 1
    digits = raw.translate(None, _SPACE)
    if frame == b"[]" and digits != b"[]":
        prompts = 1
        ids = digits.count(b",") + 1
    elif lists > 0 and frame == b"[" + b"[]" * lists + b"]" and b"[]" not in digits:
        prompts = lists
        ids = digits.count(b",") + 1
    elif not request.complete:
        return 1
    else:
        allowed = "a string, a non-empty array of strings or token ids, or arrays of token ids"
        raise invalid(request.kind, field, f"{field} must be {allowed}, got {shown(msgspec.json.decode(raw))}")
    prompt.raw(digits)
    prompt.ids = ids
    return prompts


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
    return max(_count(kind, field, value) or 1, 1)
