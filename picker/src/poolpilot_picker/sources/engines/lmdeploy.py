"""LMDeploy's names: one series per `engine` rank; requests wait in the API server and in the engine."""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import Engine, add, highest, histogram, latest, total

LMDEPLOY: Final = Engine(
    name="lmdeploy",
    needs="shows none with --disable-metrics",
    readings={
        "running": total("lmdeploy:num_requests_running"),
        "waiting": add(total("lmdeploy:num_requests_waiting"), total("lmdeploy:num_api_requests_waiting")),
        "kv_usage": highest("lmdeploy:gpu_cache_usage_perc"),
        "prompt_tokens": total("lmdeploy:prompt_tokens_total"),
        "generated_tokens": total("lmdeploy:generation_tokens_total"),
        "cached_prompt_tokens": total("lmdeploy:cached_tokens_total"),
        "cache_queried_tokens": total("lmdeploy:prompt_tokens_total"),
        "requests_succeeded": total("lmdeploy:request_success_total", "lmdeploy:num_requests_succeeded"),
        "ttft": histogram("lmdeploy:time_to_first_token_seconds"),
        "inter_token": histogram("lmdeploy:time_per_output_token_seconds", "lmdeploy:iter_token_latency"),
        "queue_time": histogram("lmdeploy:request_queue_time_seconds"),
        "prefill_time": histogram("lmdeploy:request_prefill_time_seconds"),
        "started_unix_s": latest("process_start_time_seconds"),
    },
    rarely=frozenset(
        {
            "prompt_tokens",
            "cached_prompt_tokens",
            "cache_queried_tokens",
            "requests_succeeded",
            "ttft",
            "inter_token",
            "queue_time",
            "prefill_time",
            "started_unix_s",
        }
    ),
)
