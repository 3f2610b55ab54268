"""Triton with the TensorRT-LLM backend: one family of requests and one of KV blocks, told apart by a label."""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import Engine, highest, product, total, whole
from poolpilot_picker.sources.metric_spec import MetricSpec


def _requests(kind: str) -> MetricSpec:
    return MetricSpec("nv_trt_llm_request_metrics", (("request_type", kind),))


def _blocks(kind: str) -> MetricSpec:
    return MetricSpec("nv_trt_llm_kv_cache_block_metrics", (("kv_cache_block_type", kind),))


TRITON_TENSORRT_LLM: Final = Engine(
    name="triton-tensorrt-llm",
    readings={
        "running": total(_requests("scheduled")),
        "waiting": total(_requests("waiting")),
        "kv_usage": highest(_blocks("fraction")),
        "max_sequences": whole(total(_requests("max"))),
        "block_tokens": whole(_blocks("tokens_per")),
        "kv_capacity_tokens": product(whole(_blocks("tokens_per")), whole(total(_blocks("max")))),
        "requests_succeeded": total("nv_inference_request_success"),
    },
)
