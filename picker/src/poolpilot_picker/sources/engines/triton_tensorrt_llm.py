"""Triton with the TensorRT-LLM backend: one family of requests and one of KV blocks, told apart by a label.

Until the end of 2023 both were named `…_statistics`. The share of blocks in use and the waiting requests came later
than the other labels: without them the share is used over all blocks, and what waits is not known.
"""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import Engine, either, highest, latest, product, ratio, total, whole
from poolpilot_picker.sources.metric_spec import MetricSpec

_REQUESTS: Final = ("nv_trt_llm_request_metrics", "nv_trt_llm_request_statistics")
_BLOCKS: Final = ("nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_kv_cache_block_statistics")


def _requests(kind: str) -> tuple[MetricSpec, ...]:
    return tuple(MetricSpec(name, (("request_type", kind),)) for name in _REQUESTS)


def _blocks(kind: str) -> tuple[MetricSpec, ...]:
    return tuple(MetricSpec(name, (("kv_cache_block_type", kind),)) for name in _BLOCKS)


TRITON_TENSORRT_LLM: Final = Engine(
    name="triton-tensorrt-llm",
    readings={
        "running": total(*_requests("scheduled")),
        "waiting": total(*_requests("waiting")),
        "kv_usage": either(highest(*_blocks("fraction")), ratio(total(*_blocks("used")), total(*_blocks("max")))),
        "max_sequences": whole(total(*_requests("max"))),
        "block_tokens": whole(latest(*_blocks("tokens_per"))),
        "kv_capacity_tokens": product(whole(latest(*_blocks("tokens_per"))), whole(total(*_blocks("max")))),
        "requests_succeeded": total("nv_inference_request_success"),
    },
)
