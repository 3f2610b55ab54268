"""Triton with any other backend: it tells how many requests wait, not how many run, and has no KV cache.

`nv_inference_exec_count`, which other pickers read as running requests, counts executions since the start: as a load
it would grow for ever.
"""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import Engine, total

TRITON: Final = Engine(
    name="triton",
    readings={
        "waiting": total("nv_inference_pending_request_count"),
        "requests_succeeded": total("nv_inference_request_success"),
    },
)
