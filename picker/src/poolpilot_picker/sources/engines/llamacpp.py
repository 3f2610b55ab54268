"""llama.cpp's server (`--metrics`): KV usage only in old versions."""

from __future__ import annotations

from typing import Final

from poolpilot_picker.sources.engines.mapping import Engine, highest, total

LLAMACPP: Final = Engine(
    name="llamacpp",
    needs="needs --metrics",
    readings={
        "running": total("llamacpp:requests_processing"),
        "waiting": total("llamacpp:requests_deferred"),
        "kv_usage": highest("llamacpp:kv_cache_usage_ratio"),
        "prompt_tokens": total("llamacpp:prompt_tokens_total"),
        "generated_tokens": total("llamacpp:tokens_predicted_total"),
    },
)
