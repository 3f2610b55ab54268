"""Where a top-level field's value stands in a JSON body, and replacing it there: all other bytes stay as received."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from poolpilot_picker.requests.request import RequestKind
from poolpilot_picker.requests.shapes import ABSENT, BOM, LIMITS, NAMES, NUMBER

LIMITS_OF: Final = {
    RequestKind.CHAT: ("max_tokens", "max_completion_tokens"),
    RequestKind.RESPONSES: ("max_output_tokens",),
}
"""Names of the limit on a request's output; of all other kinds it is `max_tokens`."""


def value_span(body: bytes, value: msgspec.Raw) -> tuple[int, int]:
    """[start, end) of a raw value within the body that it was decoded from.

    The decoder's raw values are views of its input, so their address tells their place, without a scanner of our own
    that would have to agree with the decoder about escapes, nesting and repeated keys.
    """
    inner = np.frombuffer(value, dtype=np.uint8)
    start = int(inner.ctypes.data) - int(np.frombuffer(body, dtype=np.uint8).ctypes.data)
    if start < 0 or body[start : start + len(inner)] != bytes(value):
        raise ValueError("the value is not a view of this body")
    return start, start + len(inner)


def rewrite_model(body: bytes, new_model: str) -> bytes:
    """The body with its top-level `model` value replaced, or put in where it has none; the rest byte for byte.

    Only for bodies that were seen whole. Of a repeated key the last value is replaced: the one that counts for us and
    for the engines. Raises ValueError when the body is no JSON object.
    """
    json = body.removeprefix(BOM)
    try:
        value = NAMES.decode(json).model
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    mark, model = body[: len(body) - len(json)], msgspec.json.encode(new_model)
    return mark + (_inserted(json, b'"model":' + model) if value is ABSENT else _replaced(json, value, model))


def _replaced(json: bytes, value: msgspec.Raw, by: bytes) -> bytes:
    start, end = value_span(json, value)
    return b"".join((json[:start], by, json[end:]))


def _inserted(json: bytes, member: bytes) -> bytes:
    """As the first member of the object."""
    inside = json.index(b"{") + 1
    comma = b"" if json[inside:].lstrip(b" \t\r\n").startswith(b"}") else b","
    return b"".join((json[:inside], member, comma, json[inside:]))


def limit_tokens(body: bytes, kind: RequestKind, most: int) -> bytes:
    """The body with every top-level limit on its output at most `most`, and with one where it has none; the rest byte
    for byte. Only for bodies that were seen whole and parsed. Raises ValueError when the body is no JSON object.
    """
    json = body.removeprefix(BOM)
    mark, number = body[: len(body) - len(json)], b"%d" % most
    found = False
    for name in LIMITS_OF.get(kind, ("max_tokens",)):
        value: msgspec.Raw = getattr(LIMITS.decode(json), name)
        limit = None if value is ABSENT else NUMBER.decode(value)
        if limit is None:
            continue
        found = True
        if limit > most or limit < 0:  # some engines take -1 for no limit, as `parse` does
            json = _replaced(json, value, number)
    if found:
        return mark + json
    name = LIMITS_OF.get(kind, ("max_tokens",))[0]
    null: msgspec.Raw = getattr(LIMITS.decode(json), name)
    return mark + (
        _inserted(json, b'"%s":%s' % (name.encode(), number)) if null is ABSENT else _replaced(json, null, number)
    )
