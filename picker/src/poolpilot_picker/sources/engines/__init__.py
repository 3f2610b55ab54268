"""The engines whose metric names are known. A new engine is one new file here and one line below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.engines.mapping import Engine, PageReader
from poolpilot_picker.sources.engines.vllm import VLLM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BUILTIN", "Engine", "PageReader", "engine_named", "engines_with"]

BUILTIN: Final[Mapping[str, Engine]] = {engine.name: engine for engine in (VLLM,)}


def engines_with(custom: Iterable[Engine] = ()) -> dict[str, Engine]:
    """The built-in engines and a user's own, which may replace them by name."""
    return {**BUILTIN, **{engine.name: engine for engine in custom}}


def engine_named(name: str, engines: Mapping[str, Engine] = BUILTIN, *, where: str = "engine") -> Engine:
    """The engine of that name; raises ConfigurationError that lists the names."""
    engine = engines.get(name)
    if engine is None:
        raise ConfigurationError(f"{where}: unknown engine {name!r}; one of {', '.join(sorted(engines))}")
    return engine
