"""What the stand-in servers tell of themselves: a metrics page of vLLM's shape and size, and a model list."""

from __future__ import annotations

import asyncio
from typing import Final

from poolpilot_lab.engine.frontend import Frontend
from poolpilot_lab.engine.options import read_config

BASE_MODEL: Final = "Qwen/Qwen2.5-32B-Instruct"
ADAPTERS: Final = tuple(f"adapter-{index}" for index in range(8))
MODELS: Final = (BASE_MODEL, *ADAPTERS)


def _frontend() -> Frontend:
    flags = ["--port", "0", "--served-model-name", BASE_MODEL, "--enable-lora", "--max-loras", "8", "--lora-modules"]
    config = read_config([*flags, *(f"{adapter}=/adapters/{adapter}" for adapter in ADAPTERS)])
    return Frontend(config, asyncio.get_running_loop(), lambda _: None)


def metrics_page() -> bytes:
    """An idle engine's page as the lab's engine renders it, all families: about 57 KB. Needs a running event loop."""
    frontend = _frontend()
    for path in ("/v1/chat/completions", "/v1/models", "/metrics"):
        frontend.metrics.count_http(path, "POST", 200)
    return frontend.metrics.render()


def model_list() -> bytes:
    """The answer to /v1/models: the base model and its adapters."""
    return _frontend().registry.listing()
