"""Where a top-level field's value stands in a JSON body, and replacing it there: all other bytes stay as received."""

from __future__ import annotations

import msgspec
import numpy as np

from poolpilot_picker.requests.shapes import ABSENT, BOM, NAMES


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
    if value is ABSENT:
        inside = json.index(b"{") + 1
        comma = b"" if json[inside:].lstrip(b" \t\r\n").startswith(b"}") else b","
        return b"".join((mark, json[:inside], b'"model":', model, comma, json[inside:]))
    start, end = value_span(json, value)
    return b"".join((mark, json[:start], model, json[end:]))
