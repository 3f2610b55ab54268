"""`GET /v1/models` → ServedModels: an entry with a `parent` is an adapter of it, all others are base models.

Only `data` and its `id` are needed. What else an entry says is taken where it is of the usual kind: a front end that
writes `"max_model_len": "None"` serves its models all the same. `"data": null` is no list: servers that answer so may
serve models that they do not list.
"""

from __future__ import annotations

from typing import Any

import msgspec

from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.state.samples import ServedModels


class _Model(msgspec.Struct):
    id: str
    parent: Any = None
    max_model_len: Any = None


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_served_models(body: bytes) -> ServedModels:
    """The body of the OpenAI model list. Raises FetchError (content) where it is something else."""
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FetchError(ErrorKind.CONTENT, f"not an OpenAI list of models: {error}") from None
    base = tuple(model.id for model in models if _parent(model) is None)
    adapters = {model.id: parent for model in models if (parent := _parent(model)) is not None}
    lengths = [length for model in models if (length := _length(model)) is not None]
    return ServedModels(base=base, adapters=adapters, max_model_len=max(lengths, default=None))


def _parent(model: _Model) -> str | None:
    """The base of an adapter; a model that names itself is none."""
    parent = model.parent
    return parent if isinstance(parent, str) and parent not in ("", "None", model.id) else None


def _length(model: _Model) -> int | None:
    length = model.max_model_len
    usable = isinstance(length, int | float) and not isinstance(length, bool) and 1 <= length < 2**63
    return int(length) if usable else None
