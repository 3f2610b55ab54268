"""TensorRT-LLM's own server, `trtllm-serve`: its page is `/prometheus/metrics` and needs `return_perf_metrics` and
`enable_iter_perf_stats`.

Its time per output token is one value per request, so the time between tokens is made of the decode times and token
counts of finished requests.
"""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import (
    Engine,
    highest,
    histogram,
    intervals,
    latest,
    product,
    total,
    whole,
)

_GENERATED: Final = "trtllm_generation_tokens_total"
_SUCCEEDED: Final = "trtllm_request_success_total"
_BLOCK: Final = "trtllm_kv_cache_tokens_per_block"

TRTLLM_SERVE: Final = Engine(
    name="trtllm-serve",
    needs="needs return_perf_metrics and enable_iter_perf_stats",
    path="/prometheus/metrics",
    readings={
        "running": total("trtllm_num_requests_running"),
        "waiting": total("trtllm_num_requests_waiting"),
        "kv_usage": highest("trtllm_kv_cache_utilization"),
        "prompt_tokens": total("trtllm_prompt_tokens_total"),
        "generated_tokens": total(_GENERATED),
        "cached_prompt_tokens": total("trtllm_prompt_cached_tokens_total"),
        "cache_queried_tokens": total("trtllm_prompt_tokens_total"),
        "requests_succeeded": total(_SUCCEEDED),
        "max_sequences": whole("trtllm_max_num_active_requests"),
        "block_tokens": whole(_BLOCK),
        "kv_capacity_tokens": product(whole(_BLOCK), whole(total("trtllm_kv_cache_max_blocks"))),
        "ttft": histogram("trtllm_time_to_first_token_seconds"),
        "inter_token": intervals(total("trtllm_request_decode_time_seconds_sum"), total(_GENERATED), total(_SUCCEEDED)),
        "queue_time": histogram("trtllm_request_queue_time_seconds"),
        "prefill_time": histogram("trtllm_request_prefill_time_seconds"),
        "started_unix_s": latest("process_start_time_seconds"),
    },
    rarely=frozenset(
        {
            "prompt_tokens",
            "cached_prompt_tokens",
            "cache_queried_tokens",
            "requests_succeeded",
            "max_sequences",
            "block_tokens",
            "kv_capacity_tokens",
            "ttft",
            "inter_token",
            "queue_time",
            "prefill_time",
            "started_unix_s",
        }
    ),
)
