"""What the rest of the picker knows of a request: made once from headers and body, then only read."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RequestKind(StrEnum):
    """Which API a request speaks. Everything but OTHER is an inference call with a JSON body."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    OTHER = "other"
    """Upgrades, gRPC, multipart, unknown paths, encoded bodies: routed by load, never refused for their form."""


class PrefixChain(msgspec.Struct, frozen=True):
    """Chained hashes of a prompt's leading blocks: equal hash = equal block with equal prefix.

    `hashes[i]` covers tokens `[i·block_tokens, (i+1)·block_tokens)` (estimated tokens); only full blocks are hashed.
    The chain is seeded by target model, adapter and cache salt, so chains of different seeds never meet.
    """

    hashes: tuple[int, ...] | list[int] = ()
    block_tokens: float = 16.0


NO_PREFIX = PrefixChain()


class InferenceRequest(msgspec.Struct, kw_only=True):
    """One request as the decision sees it. Token counts are estimates until usage corrects them."""

    request_id: str
    path: str = ""
    kind: RequestKind = RequestKind.OTHER
    model: str = ""
    """As the client asked; empty when it cannot be known."""
    target_model: str = ""
    """What the engine is asked for: `model` unless a rewrite changed it."""
    stream: bool = False
    prompt_tokens: int = 0
    max_tokens: int | None = None
    """Limit per sequence, None when the client set none."""
    sequences: int = 1
    """Sequences the engine runs: prompts × n."""
    prefix: PrefixChain = NO_PREFIX
    tenant: str = ""
    priority: int = 0
    objective: str = ""
    routing_key: str = ""
    """Groups the fan-out of an agent or session; never derived from the client's address."""
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    subset: tuple[str, ...] | None = None
    """Addresses the data plane allows; None = no hint, empty = nothing allowed."""
    body_bytes: int = 0
    complete: bool = True
    """False when only a prefix of the body was seen (BUFFERED_PARTIAL above the buffer limit)."""
    receipt_wanted: bool = False

    @property
    def is_inference(self) -> bool:
        """True when the body is a JSON inference call: these are learned from."""
        return self.kind is not RequestKind.OTHER
