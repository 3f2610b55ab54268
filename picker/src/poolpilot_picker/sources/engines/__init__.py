"""The engines whose metric names are known. A new engine is one new file here and one line below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.engines.llamacpp import LLAMACPP
from poolpilot_picker.sources.engines.lmdeploy import LMDEPLOY
from poolpilot_picker.sources.engines.mapping import Engine
from poolpilot_picker.sources.engines.sglang import SGLANG
from poolpilot_picker.sources.engines.tgi import TGI
from poolpilot_picker.sources.engines.triton import TRITON
from poolpilot_picker.sources.engines.triton_tensorrt_llm import TRITON_TENSORRT_LLM
from poolpilot_picker.sources.engines.trtllm_serve import TRTLLM_SERVE
from poolpilot_picker.sources.engines.vllm import VLLM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BUILTIN", "Engine", "engine_named", "engines_with"]

BUILTIN: Final[Mapping[str, Engine]] = {
    engine.name: engine for engine in (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TENSORRT_LLM, TRITON, TGI, LMDEPLOY, LLAMACPP)
}


def engines_with(custom: Iterable[Engine] = ()) -> dict[str, Engine]:
    """The built-in engines and a user's own, which may replace them by name."""
    return {**BUILTIN, **{engine.name: engine for engine in custom}}


def engine_named(name: str, engines: Mapping[str, Engine] = BUILTIN, *, where: str = "engine") -> Engine:
    """The engine of that name; raises ConfigurationError that lists the names."""
    engine = engines.get(name)
    if engine is None:
        raise ConfigurationError(f"{where}: unknown engine {name!r}; one of {', '.join(sorted(engines))}")
    return engine
