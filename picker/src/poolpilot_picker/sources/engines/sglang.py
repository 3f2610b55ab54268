"""SGLang's names (`--enable-metrics`, 0.5): one series per `dp_rank`, retractions are its preemptions.

Its gauges change with the decode log interval and can be seconds old: the pushed load channel (`sglang_load`) is
fresher and goes first where the engine has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.sources.engines.mapping import (
    Engine,
    either,
    highest,
    histogram,
    info_label,
    info_total,
    label_int,
    latest,
    product,
    total,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_CACHE: Final = "sglang:cache_config_info"


def _capacity(labels: Mapping[str, str]) -> int | None:
    """Tokens one rank's KV cache holds."""
    pages, size = label_int(labels, "num_pages"), label_int(labels, "page_size")
    return None if pages is None or size is None else pages * size


SGLANG: Final = Engine(
    name="sglang",
    needs="needs --enable-metrics",
    readings={
        "running": total("sglang:num_running_reqs"),
        "waiting": total("sglang:num_queue_reqs"),
        "kv_usage": highest("sglang:token_usage"),
        "preemptions": total("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
        "prompt_tokens": total("sglang:prompt_tokens_total"),
        "generated_tokens": total("sglang:generation_tokens_total"),
        "cached_prompt_tokens": total("sglang:cached_tokens_total"),
        "cache_queried_tokens": total("sglang:prompt_tokens_total"),
        "requests_succeeded": total("sglang:num_requests_total"),
        "max_adapters": whole("sglang:lora_pool_slots_total"),
        "block_tokens": either(info_label(_CACHE, "page_size"), whole("sglang:page_size")),
        "kv_capacity_tokens": either(
            whole(total("sglang:max_total_num_tokens")),
            info_total(_CACHE, _capacity),
            product(whole("sglang:page_size"), whole(total("sglang:num_pages"))),
        ),
        "ttft": histogram("sglang:time_to_first_token_seconds"),
        "inter_token": histogram("sglang:inter_token_latency_seconds"),
        "queue_time": histogram("sglang:queue_time_seconds"),
        "started_unix_s": latest("process_start_time_seconds"),
    },
    rarely=frozenset(
        {
            "prompt_tokens",
            "cached_prompt_tokens",
            "cache_queried_tokens",
            "requests_succeeded",
            "max_adapters",
            "block_tokens",
            "kv_capacity_tokens",
            "ttft",
            "inter_token",
            "queue_time",
            "started_unix_s",
        }
    ),
)
