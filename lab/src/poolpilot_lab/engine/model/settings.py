"""Limits of one engine, and the error of a sequence that exceeds them for ever."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of one engine; names and defaults are vLLM's where it has one. `num_gpu_blocks` includes vLLM's unused
    null block."""

    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 32768
    enable_prefix_caching: bool = True
    max_loras: int = 0
    lora_load_ms: float = 500.0
    priority_scheduling: bool = False
    """Waiting sequences go by priority (the lower value first), then by arrival; else by arrival alone."""


class SequenceTooLongError(ValueError):
    """The sequence can never fit: longer than the context or than the whole KV cache."""
