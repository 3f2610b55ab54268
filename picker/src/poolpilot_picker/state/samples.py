"""One reading of an engine's telemetry: what a source hands to the state. Missing is None, never zero."""

from __future__ import annotations

import msgspec


class HistogramTotals(msgspec.Struct):
    """Running sum (seconds) and count of one engine histogram; differences of two readings give a window's mean."""

    sum_s: float = 0.0
    count: float = 0.0


class EngineSample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Gauges, counters and facts read from one engine at one moment. `taken_ms`: monotonic clock when the read began.

    Histograms, and the counters that are compared with them, are told by every few readings only: None says nothing
    about them. A gauge that is None was looked for and is unknown; facts once told stay true until a restart.
    """

    taken_ms: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """0..1; maximum over data-parallel ranks; referenced blocks only."""
    block_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    prefix_caching: bool | None = None
    max_adapters: int | None = None
    """GPU adapter slots (vLLM `max_lora`)."""
    active_adapters: tuple[str, ...] | None = None
    """Adapters with a running request now: activity, not residency."""
    waiting_adapters: tuple[str, ...] | None = None
    resident_adapters: tuple[str, ...] | None = None
    """Only from engines that export residency."""
    preemptions: float | None = None
    """Counter since engine start (SGLang: retractions)."""
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    cached_prompt_tokens: float | None = None
    """Counter of prompt tokens found in the prefix cache (vLLM prefix_cache_hits)."""
    cache_queried_tokens: float | None = None
    requests_succeeded: float | None = None
    ttft: HistogramTotals | None = None
    inter_token: HistogramTotals | None = None
    queue_time: HistogramTotals | None = None
    prefill_time: HistogramTotals | None = None
    started_unix_s: float | None = None
    """process_start_time_seconds or an equivalent: a change means a restart."""
    max_sequences: int | None = None
    waiting_tokens: float | None = None
    """Uncached prompt tokens of the waiting requests (SGLang's load channel)."""
    prefilled_tokens: float | None = None
    """Counter of uncached prompt tokens that were prefilled (SGLang's load channel)."""
    prefill_busy_s: float | None = None
    """Counter of the time that took: the two together are the engine's own prefill speed."""
    attributes: dict[str, float] | None = None
    """A user's own metrics, by the name the configuration gives them."""


class ServedModels(msgspec.Struct, frozen=True):
    """What `/v1/models` lists: base models, and adapters with their base. The authority on what an engine can serve."""

    base: tuple[str, ...] = ()
    adapters: dict[str, str] = {}
    """adapter name → base model id"""
    max_model_len: int | None = None
