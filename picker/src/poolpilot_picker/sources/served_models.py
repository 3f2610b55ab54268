"""`GET /v1/models` → ServedModels: an entry with a `parent` is an adapter of it, all others are base models."""

from __future__ import annotations

import msgspec

from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.state.samples import ServedModels


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | float | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_served_models(body: bytes) -> ServedModels:
    """The body of the OpenAI model list. Raises FetchError (content) where it is something else."""
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FetchError(ErrorKind.CONTENT, f"not an OpenAI list of models: {error}") from None
    base = tuple(model.id for model in models if not model.parent)
    adapters = {model.id: model.parent for model in models if model.parent}
    lengths = [int(model.max_model_len) for model in models if model.max_model_len and model.max_model_len > 0]
    return ServedModels(base=base, adapters=adapters, max_model_len=max(lengths, default=None))
