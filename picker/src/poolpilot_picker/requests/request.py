"""What the rest of the picker knows of a request: made once from headers and body, then only read."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class RequestKind(StrEnum):
    """Which API a request speaks. Everything but OTHER is an inference call with a JSON body."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    """Anthropic's `/v1/messages`."""
    OTHER = "other"
    """Upgrades, gRPC, multipart, unknown paths, encoded bodies: routed by load, never refused for their form."""


_OTHER: Final = RequestKind.OTHER


class PrefixChain(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Chained hashes of a prompt's leading blocks: equal hash = equal block with equal prefix.

    The first k blocks cover `ends[k-1]` estimated tokens, at most prompt tokens − 1: an engine always computes the last
    token. Blocks grow with their distance from the start (`requests.chain`); only full blocks are hashed. The chain is
    seeded by target model, adapter and cache salt, so chains of different seeds never meet.
    """

    hashes: list[int] | tuple[int, ...] = ()
    ends: list[float] | tuple[float, ...] = ()

    def covered(self, blocks: int) -> float:
        """Estimated tokens in the first `blocks` blocks."""
        return self.ends[blocks - 1] if blocks else 0.0


NO_PREFIX = PrefixChain()


class InferenceRequest(msgspec.Struct, kw_only=True, gc=False):
    """One request as the decision sees it. Token counts are estimates until usage corrects them."""

    request_id: str
    client_id: str = ""
    """Its request id, where the client has chosen it."""
    idempotency_key: str = ""
    client_retries: int = 0
    """How often the client says that it has sent the request before."""
    path: str = ""
    kind: RequestKind = RequestKind.OTHER
    model: str = ""
    """As the client asked; empty when it cannot be known."""
    target_model: str = ""
    """What the engine is asked for: `model` unless a rewrite changed it."""
    adapter: str = ""
    """LoRA adapter where the body names it apart from the model (SGLang's `lora_path`); else the model may be one."""
    stream: bool = False
    prompt_tokens: int = 0
    text_tokens: float = 0.0
    """Text in `prompt_tokens` before the model's correction: what that is learned against; 0 when the body was cut."""
    fixed_tokens: float = 0.0
    """The rest of `prompt_tokens`, which is never corrected: images, audio and video by their size, token ids."""
    max_tokens: int | None = None
    """Limit per sequence, None when the client set none."""
    unlimited: bool = False
    """The client asked for no limit in so many words: −1."""
    ceiling: int | None = None
    """What `max_tokens` is to be lowered to in the body; None: it stays as it came."""
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
    queue_ttl_ms: float | None = None
    """How long it may wait in the queue; None: as the configuration says."""
    queued_ms: float = 0.0
    """How long it has waited there when it was placed."""
    queued_for: str = ""
    """What it waited for."""
    subset: tuple[str, ...] | None = None
    """Addresses the data plane allows; None = no hint, empty = nothing allowed."""
    only_if_cached: bool = False
    """`prefer: if-available`: 412 when the chosen endpoint holds nothing of the prefix."""
    test_selection: tuple[str, ...] = ()
    """Addresses of the test header `test-epp-endpoint-selection`; only the header-based testing filter reads them."""
    body_bytes: int = 0
    complete: bool = True
    """False when only a prefix of the body was seen (BUFFERED_PARTIAL above the buffer limit)."""
    receipt_wanted: bool = False

    @property
    def is_inference(self) -> bool:
        """True when the body is a JSON inference call: these are learned from."""
        return self.kind is not _OTHER
