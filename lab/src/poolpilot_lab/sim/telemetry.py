"""An engine's metrics as the picker's sources read them: gauges always, histograms and facts every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.state.samples import EngineSample, HistogramTotals

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Engine, Histogram

EVERYTHING_MS: Final = 5_000.0
"""Between two readings with histograms (`sources.cadence`)."""
IDLE_FACTOR: Final = 7.5
"""An idle endpoint is read so much less often (`sources.cadence`: 200 ms and 1,500 ms)."""
JITTER: Final = 0.1
"""Share by which a pause is varied."""


def read(engine: Engine, now: float, *, everything: bool, tokens_per_step: float = 1.0) -> EngineSample:
    """A sample of vLLM's fields. tokens_per_step: by which generated tokens are counted more than steps; the time
    between tokens stays the time between steps, as vLLM tells it."""
    told, loras = engine.telemetry, engine.settings.max_loras
    gauges = told.gauges
    sample = EngineSample(
        taken_ms=now,
        running=float(gauges.running),
        waiting=float(gauges.waiting),
        kv_usage=gauges.kv_usage,
        preemptions=float(told.preemptions),
    )
    if loras:
        active = dict.fromkeys(s.adapter for s in engine.running if s.adapter)
        waiting = dict.fromkeys(s.adapter for s in engine.waiting if s.adapter and s.adapter not in active)
        sample.max_adapters = loras
        sample.active_adapters, sample.waiting_adapters = tuple(active), tuple(waiting)
    if everything:
        sample.block_tokens = engine.settings.block_size
        sample.kv_capacity_tokens = engine.blocks.total * engine.settings.block_size
        sample.prefix_caching = engine.settings.enable_prefix_caching
        sample.generated_tokens = tokens_per_step * told.generation_tokens
        sample.prompt_tokens = float(told.prompt_tokens)
        sample.cached_prompt_tokens = float(told.prefix_hits)
        sample.cache_queried_tokens = float(told.prefix_queries)
        sample.requests_succeeded = float(told.finished["stop"] + told.finished["length"])
        sample.ttft, sample.inter_token = _totals(told.ttft), _totals(told.inter_token)
    return sample


def _totals(histogram: Histogram) -> HistogramTotals:
    return HistogramTotals(histogram.sum, float(histogram.count))
