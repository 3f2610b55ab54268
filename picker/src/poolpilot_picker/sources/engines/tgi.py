"""Text Generation Inference: no KV usage, so the tokens its batch may grow to over those it may hold stand for it."""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import Engine, histogram, ratio, total, whole

_HELD: Final = "tgi_batch_max_total_tokens"

TGI: Final = Engine(
    name="tgi",
    readings={
        "running": total("tgi_batch_current_size"),
        "waiting": total("tgi_queue_size"),
        "kv_usage": ratio(total("tgi_batch_current_max_tokens"), total(_HELD)),
        "kv_capacity_tokens": whole(total(_HELD)),
        "requests_succeeded": total("tgi_request_success"),
        "queue_time": histogram("tgi_request_queue_duration"),
    },
    rarely=frozenset({"queue_time"}),
)
