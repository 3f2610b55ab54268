"""vLLM's names (0.6 to 0.33): counters carry `_total`, one series per `engine` rank, LoRA information by newest value.

Sources: recordings of vLLM 0.32; names before 0.12 (`gpu_cache_usage_perc`, `gpu_prefix_cache_*`,
`time_per_output_token_seconds`) are read where the newer are absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.sources.engines.mapping import (
    Engine,
    Found,
    Reading,
    either,
    highest,
    histogram,
    info_flag,
    info_label,
    info_total,
    label_int,
    latest,
    names_in,
    newest_labels,
    one_per_rank,
    readable,
    total,
    total_except,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_CACHE: Final = "vllm:cache_config_info"
_LORA: Final = "vllm:lora_requests_info"
_LOADED: Final = "vllm:lora_adapter_loaded"


def _capacity(labels: Mapping[str, str]) -> int | None:
    """Tokens one rank's KV cache holds: what the engine computed, else blocks × block size."""
    tokens = label_int(labels, "kv_cache_size_tokens")
    if tokens is not None:
        return tokens
    blocks, size = label_int(labels, "num_gpu_blocks"), label_int(labels, "block_size")
    return None if blocks is None or size is None else blocks * size


def _resident() -> Reading:
    """Adapters in GPU slots, from engines that export residency (`level` GPU, value 1)."""

    def compute(found: Found) -> tuple[str, ...] | None:
        series = found.get(_LOADED)
        if not series:
            return None
        names = {
            labels["adapter_name"]
            for one in one_per_rank(series)
            if one.value > 0
            and (labels := readable(one)) is not None
            and "adapter_name" in labels
            and labels.get("level", "gpu").lower() == "gpu"
        }
        return tuple(sorted(names))

    return Reading((_LOADED,), compute)


VLLM: Final = Engine(
    name="vllm",
    needs="shows none with --disable-log-stats",
    selects_by_name=True,
    growing=frozenset({_LORA}),
    readings={
        "running": total("vllm:num_requests_running"),
        "waiting": total("vllm:num_requests_waiting"),
        "kv_usage": highest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "cache_queried_tokens": total("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "cached_prompt_tokens": total("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "preemptions": total("vllm:num_preemptions_total"),
        "prompt_tokens": total("vllm:prompt_tokens_total"),
        "generated_tokens": total("vllm:generation_tokens_total"),
        "requests_succeeded": total_except("vllm:request_success_total", "finished_reason", ("abort", "error")),
        "active_adapters": newest_labels(_LORA, lambda labels: names_in(labels.get("running_lora_adapters"))),
        "waiting_adapters": newest_labels(_LORA, lambda labels: names_in(labels.get("waiting_lora_adapters"))),
        "max_adapters": either(
            newest_labels(_LORA, lambda labels: label_int(labels, "max_lora")), whole("vllm:max_gpu_lora_adapters")
        ),
        "resident_adapters": _resident(),
        "block_tokens": info_label(_CACHE, "block_size"),
        "kv_capacity_tokens": info_total(_CACHE, _capacity),
        "prefix_caching": info_flag(_CACHE, "enable_prefix_caching"),
        "ttft": histogram("vllm:time_to_first_token_seconds"),
        "inter_token": histogram("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "queue_time": histogram("vllm:request_queue_time_seconds"),
        "prefill_time": histogram("vllm:request_prefill_time_seconds"),
        "started_unix_s": latest("process_start_time_seconds"),
    },
    rarely=frozenset(
        {
            "cache_queried_tokens",
            "cached_prompt_tokens",
            "prompt_tokens",
            "requests_succeeded",
            "max_adapters",
            "resident_adapters",
            "block_tokens",
            "kv_capacity_tokens",
            "prefix_caching",
            "ttft",
            "inter_token",
            "queue_time",
            "prefill_time",
            "started_unix_s",
        }
    ),
)
