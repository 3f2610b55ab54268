"""Which models a server answers to: the base model's names, and LoRA adapters loaded at start or at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from poolpilot_lab.engine.errors import InvalidBodyError, InvalidUserInputError, NotFoundError


@dataclass(frozen=True, slots=True)
class Adapter:
    """A registered adapter."""

    name: str
    path: str


class LoadBody(msgspec.Struct, kw_only=True):
    """`POST /v1/load_lora_adapter`."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False


class UnloadBody(msgspec.Struct, kw_only=True):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: str = ""
    lora_int_id: int | None = None


@dataclass(slots=True)
class Registry:
    """The front end's list of models. What is registered is servable; whether it is resident is the engine's affair."""

    names: tuple[str, ...]
    """names of the base model; the first one is reported"""
    root: str
    max_model_len: int
    created: int
    adapters: dict[str, Adapter] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The base model's first name."""
        return self.names[0]

    def resolve(self, model: str | None) -> str | None:
        """The adapter that a request's model means, None for the base model; raises NotFoundError."""
        if model is None or model == "" or model in self.names:
            return None
        if model in self.adapters:
            return model
        aliases = ", ".join(self.names)
        raise NotFoundError(f"The model `{model}` does not exist. Valid aliases: {aliases}.", "model")

    def load(self, body: LoadBody) -> bool:
        """Registers an adapter; True when it is new. Raises InvalidUserInputError."""
        if not body.lora_name or not body.lora_path:
            raise InvalidUserInputError("Both 'lora_name' and 'lora_path' must be provided.")
        if body.lora_name in self.names:
            raise InvalidUserInputError(f"The lora adapter '{body.lora_name}' has the name of the base model.")
        known = body.lora_name in self.adapters
        if known and not body.load_inplace:
            raise InvalidUserInputError(
                f"The lora adapter '{body.lora_name}' has already been loaded. "
                "If you want to load the adapter in place, set 'load_inplace' to True."
            )
        self.adapters[body.lora_name] = Adapter(body.lora_name, body.lora_path)
        return not known

    def unload(self, body: UnloadBody) -> None:
        """Drops an adapter from the list; its weights stay in their slot. Raises ApiError."""
        if not body.lora_name:
            raise InvalidUserInputError("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self.adapters.pop(body.lora_name, None) is None:
            raise NotFoundError(f"The lora adapter '{body.lora_name}' cannot be found.")

    def listing(self) -> bytes:
        """`GET /v1/models`."""
        cards = [self._card(name, self.root, None) for name in self.names]
        cards += [self._card(adapter.name, adapter.path, self.base) for adapter in self.adapters.values()]
        return msgspec.json.encode({"object": "list", "data": cards})

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{name}",
            "object": "model_permission",
            "created": self.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": self.max_model_len if parent is None else None,
            "permission": [permission],
        }


def parse_lora_module(text: str) -> Adapter:
    """Reads `name=path` or vLLM's JSON form; raises InvalidBodyError that says what is allowed."""
    if text.startswith("{"):
        try:
            body = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise InvalidBodyError(f"--lora-modules {text!r}: {error}") from None
        name, path = body.get("name"), body.get("path")
    else:
        name, _, path = text.partition("=")
    if not isinstance(name, str) or not isinstance(path, str) or not name or not path:
        raise InvalidBodyError(f"--lora-modules {text!r}: expected name=path or " + '{"name": …, "path": …}')
    return Adapter(name, path)
