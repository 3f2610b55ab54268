"""What a refused client is told: field, value and what is allowed; as an exception and as an OpenAI error object.

The texts before the first colon after the protocol's words are the Endpoint Picker Protocol's (error mapping).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.errors import BadRequest, RequestRefused
from poolpilot_picker.requests.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import Mapping

MALFORMED: Final = "error unmarshaling request bodyMap"
NO_MODEL: Final = "model not found in request body"

REQUEST_NAMES: Final[Mapping[RequestKind, str]] = {
    RequestKind.CHAT: "chat completions",
    RequestKind.COMPLETIONS: "completions",
    RequestKind.EMBEDDINGS: "embeddings",
    RequestKind.RESPONSES: "responses",
    RequestKind.MESSAGES: "messages",
    RequestKind.OTHER: "inference",
}

MUST_HAVE: Final[Mapping[tuple[RequestKind, str], str]] = {
    (RequestKind.CHAT, "messages"): "must have valid messages field",
    (RequestKind.MESSAGES, "messages"): "must have valid messages field",
    (RequestKind.COMPLETIONS, "prompt"): "must have prompt field",
    (RequestKind.EMBEDDINGS, "input"): "must have input field",
    (RequestKind.RESPONSES, "input"): "must have input field",
}

WORDS: Final[Mapping[str, str]] = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

_WRONG_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_PLACE: Final = re.compile(r" - at `\$([^`]*)`$")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
SHOWN_BYTES: Final = 1 << 18
"""Of larger bodies the offending value is not looked up: refusing must not cost more than serving."""


def invalid(kind: RequestKind, field: str, detail: str) -> BadRequest:
    """BadRequest about one field; `field` is a path such as `messages[0].content`."""
    top = re.split(r"[.\[]", field, maxsplit=1)[0]
    if top == "model":
        start = NO_MODEL
    else:
        start = f"invalid {REQUEST_NAMES[kind]} request"
        if words := MUST_HAVE.get((kind, top)):
            start = f"{start}: {words}"
    return BadRequest(f"{start}: {detail}", param=field)


def malformed(detail: str) -> BadRequest:
    """BadRequest for a body that is not a JSON object."""
    return BadRequest(f"{MALFORMED}: {detail}")


def explain(error: Exception, kind: RequestKind, body: bytes) -> BadRequest:
    """What the decoder found wrong, in the protocol's and the client's terms."""
    if isinstance(error, RecursionError):
        return malformed("the JSON is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return malformed(_syntax(str(error), body))
    text = str(error)
    place = _PLACE.search(text)
    path = place.group(1) if place else ""
    field = path.removeprefix(".")
    wrong = _WRONG_TYPE.search(text)
    if not field:
        got = WORDS.get(wrong.group(2), wrong.group(2)) if wrong else text
        return malformed(f"the body must be a JSON object, got {got}")
    if wrong is None:
        return invalid(kind, field, f"{field} must be a number in range, got {_value(body, path)}")
    allowed = [WORDS.get(name, name) for name in wrong.group(1).split(" | ")]
    if "an integer" in allowed and "a number" in allowed:
        allowed.remove("a number")
    got = _value(body, path) or WORDS.get(wrong.group(2), wrong.group(2))
    return invalid(kind, field, f"{field} must be {' or '.join(allowed)}, got {got}")


def shown(value: object) -> str:
    """A value as the client wrote it, shortened."""
    try:
        text = msgspec.json.encode(value).decode("utf-8", "replace")
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError):
        text = str(type(value).__name__)
    return text if len(text) <= 48 else f"{text[:45]}..."


def error_body(refused: RequestRefused) -> bytes:
    """The OpenAI error object of an ImmediateResponse; its message starts with the protocol's text."""
    return msgspec.json.encode(
        {
            "error": {
                "message": refused.text,
                "type": refused.error_type,
                "param": refused.param,
                "code": refused.status,
            }
        }
    )


def _syntax(text: str, body: bytes) -> str:
    if not body.strip():
        return "unexpected end of JSON input (the body is empty)"
    if "truncated" in text:
        # The decoder reports a lone surrogate the same way.
        return "unexpected end of JSON input, or an escape that is half of a surrogate pair"
    return text


def _value(body: bytes, path: str) -> str:
    if len(body) > SHOWN_BYTES:
        return ""
    try:
        value: Any = msgspec.json.decode(body)
        for key, index in _STEP.findall(path):
            value = value[key] if key else value[int(index)]
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError):
        return ""
    return shown(value)
