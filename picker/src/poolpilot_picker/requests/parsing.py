"""(head, body) → InferenceRequest: the requests room's main step, between the exchange and `flow.place`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.errors import BadRequest
from poolpilot_picker.requests import shapes
from poolpilot_picker.requests.bodies import READERS
from poolpilot_picker.requests.chain import chain_seed, prefix_chain, settled
from poolpilot_picker.requests.head import BodyUse, RequestHead
from poolpilot_picker.requests.partial import Mended, mend
from poolpilot_picker.requests.refusals import NO_MODEL, explain
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.requests.shapes import ABSENT, BOM, Body
from poolpilot_picker.requests.splice import value_span
from poolpilot_picker.requests.tokens import estimate, text_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_picker.requests.prompt import Prompt

TOKENS_PER_ENCODED_BYTE: Final = 0.7
"""Of a compressed inference body: text shrinks to about a third, and a token has about four bytes."""

TOKENS_PER_FORM_BYTE: Final = 25.0 / 16_000.0
"""Of a form, which mostly uploads audio: as for audio in a prompt (requests.media)."""

MOST_UNSEEN: Final = 64.0
"""A content length that is this many times what was seen is not believed further."""

_INFERENCE: Final = BodyUse.INFERENCE
_SPACE: Final = b" \t\r\n"
_NO_KEY: Final = (b"null", b'""')
"""An extra key that is none."""
_FORM_FIELD: Final = re.compile(
    rb'\ncontent-disposition:[^\r\n]{0,256}?[; \t]name=(?:"model"|model)(?=[;\r \t])', re.IGNORECASE
)
"""The part of a form whose name is exactly that: not `filename="model.wav"`, not `name="model_size"`. Bounded, as all
that is done with a form: a hostile one must not cost time of other requests."""
_FORM_WINDOW: Final = 65_536
"""Bytes at the begin and at the end of a form that are searched."""
_PART_HEAD: Final = 1_024
_LONGEST_NAME: Final = 512


def no_rewrite(model: str) -> str:
    """No rule: the engine is asked for what the client, or its header, asked for."""
    return ""


def unscaled(model: str) -> float:
    """No correction of the token estimate."""
    return 1.0


def parse(
    head: RequestHead,
    body: bytes,
    *,
    complete: bool = True,
    target_of: Callable[[str], str] = no_rewrite,
    token_scale: Callable[[str], float] = unscaled,
) -> InferenceRequest:
    """What the decision needs to know of a request.

    `complete` is False when `body` is only the beginning (BUFFERED_PARTIAL above the buffer limit): then nothing is
    refused, the model may be missing, and the prompt's length is extrapolated by the content length.
    `target_of` maps the asked model ("" where the body names none) to the one the engine is asked for, "" where no rule
    says so; it wins over a rewrite header. `token_scale` maps the target model to its learned factor on text tokens.
    A body that is not seen whole, or is no inference call, cannot be rewritten: its target is the model itself.

    Raises BadRequest when a JSON inference body seen whole is malformed, lacks the model or its prompt, or has a wrong
    type where we read it. Bodies of other kinds are never refused.
    """
    request = InferenceRequest(
        request_id=head.request_id, path=head.path, kind=head.kind, body_bytes=len(body), complete=complete
    )
    if not head.plain:
        _take_seldom(request, head)
    if head.use is not _INFERENCE:
        request.kind = RequestKind.OTHER
        _peek(request, head, body)
        request.target_model = request.model
        return request
    body = body.removeprefix(BOM)
    if not complete:
        _read_beginning(request, head, body, token_scale)
        return request
    try:
        prompt, fields = READERS[head.kind](request, head, body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise explain(error, request.kind, body) from None
    model = request.model = fields.model or ""
    target = request.target_model = target_of(model) or head.model_rewrite or model
    if not target:
        detail = "" if fields.model is None else ": model must be a non-empty string"
        raise BadRequest(NO_MODEL + detail, param="model")
    _measure(request, prompt, fields, token_scale(target))
    return request


def _take_seldom(request: InferenceRequest, head: RequestHead) -> None:
    request.tenant = head.tenant
    request.objective = head.objective
    request.routing_key = head.routing_key
    request.slo_ttft_ms = head.slo_ttft_ms
    request.slo_tpot_ms = head.slo_tpot_ms
    request.queue_ttl_ms = head.queue_ttl_ms
    request.only_if_cached = head.only_if_cached
    request.test_selection = head.test_selection
    request.receipt_wanted = head.receipt_wanted


def _read_beginning(
    request: InferenceRequest,
    head: RequestHead,
    body: bytes,
    token_scale: Callable[[str], float],
) -> None:
    mended = mend(body)
    for candidate in mended.candidates:
        try:
            prompt, fields = READERS[request.kind](request, head, candidate)
        except (BadRequest, msgspec.ValidationError):
            request.model = _model_in(candidate, mended.cut_at)  # the engine, which sees all of it, will refuse it
            break
        except (msgspec.DecodeError, RecursionError):
            continue
        if mended.cut_at is not None:
            _forget_cut(fields, candidate, mended.cut_at)
        request.target_model = request.model = fields.model or head.model_hint
        _measure(request, prompt, fields, token_scale(request.target_model))
        break
    if not request.target_model:
        request.target_model = request.model = request.model or head.model_hint
    request.text_tokens = 0.0
    if not request.prompt_tokens:
        request.prompt_tokens = estimate(text_units(body))
    if head.content_length and head.content_length > len(body) > 0:
        request.prompt_tokens = int(request.prompt_tokens * min(head.content_length / len(body), MOST_UNSEEN))


def _measure(request: InferenceRequest, prompt: Prompt, fields: Body, scale: float) -> None:
    text = prompt.joined()
    units = request.text_tokens = 0.0 if prompt.ids else text_units(text)
    fixed = request.fixed_tokens = prompt.media_tokens + prompt.ids
    tokens = request.prompt_tokens = round(units * scale + fixed) or 1
    path = fields.lora_path
    if path is not ABSENT and path is not None:
        request.adapter = _adapter(bytes(path))
    extra = b"" if fields.extra_key is ABSENT or (key := bytes(fields.extra_key)) in _NO_KEY else key
    seed = chain_seed(request.target_model, request.adapter, fields.cache_salt or "", extra)
    chain = prefix_chain(text, seed, tokens=tokens, marks=prompt.marks)
    request.prefix = chain if request.complete else settled(chain, len(text))


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
    if _is_cut(candidate, values.model, cut_at):
        fields.model = None
    if _is_cut(candidate, values.cache_salt, cut_at):
        fields.cache_salt = None
    if _is_cut(candidate, values.extra_key, cut_at):
        fields.extra_key = ABSENT
    if _is_cut(candidate, values.lora_path, cut_at):
        fields.lora_path = ABSENT


def _is_cut(body: bytes, value: msgspec.Raw, cut_at: int) -> bool:
    return value is not ABSENT and value_span(body, value)[1] == cut_at + 1


def _model_in(body: bytes, cut_at: int | None) -> str:
    try:
        value = shapes.NAMES.decode(body).model
        if value is ABSENT or (cut_at is not None and _is_cut(body, value, cut_at)):
            return ""
        return shapes.TEXT.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return ""


def _peek(request: InferenceRequest, head: RequestHead, body: bytes) -> None:
    """The model of a body that is no inference call, where it shows itself."""
    if head.content_type == "multipart/form-data" and not head.content_encoding:
        request.model = _form_model(body[:_FORM_WINDOW]) or _form_model(body[-_FORM_WINDOW:])
    elif body[:256].lstrip(BOM + _SPACE).startswith(b"{") and not head.content_encoding:
        mended = Mended((body,), None) if request.complete else mend(body)
        for candidate in mended.candidates:
            if model := _model_in(candidate, mended.cut_at):
                request.model = model
                break
    request.model = request.model or head.model_hint
    if head.kind is not RequestKind.OTHER and head.content_encoding:
        request.prompt_tokens = int(len(body) * TOKENS_PER_ENCODED_BYTE)
    elif head.content_type == "multipart/form-data":
        request.prompt_tokens = int(len(body) * TOKENS_PER_FORM_BYTE)


def _form_model(window: bytes) -> str:
    for found in _FORM_FIELD.finditer(window):
        start = window.find(b"\r\n\r\n", found.end(), found.end() + _PART_HEAD) + 4
        end = window.find(b"\r\n", start, start + _LONGEST_NAME + 2) if start >= 4 else -1
        if end > start:
            return window[start:end].decode("utf-8", "replace").strip()
    return ""
