"""What the endpoints of an engine are asked for, and what is looked at in their answers: once for all of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from poolpilot_picker.sources.engines.mapping import FACTS, Engine
from poolpilot_picker.sources.restart import COUNTERS

CORE: Final = ("running", "waiting", "kv_usage")


class Asking(msgspec.Struct, frozen=True):
    """Of one engine whose metrics page is at one path. Pairs are for polls of the load only, and of everything."""

    selective: tuple[str, str]
    """Targets that ask for the wanted families only."""
    counters: tuple[list[str], list[str]]
    """Fields of which a restart is told."""
    rarely: tuple[str, ...]
    """Fields told by the polls that ask for everything only, and kept until the next of them."""
    core: frozenset[str]
    """Families of the load: a page with none of them is another engine's."""


@lru_cache(maxsize=64)
def asking(engine: Engine, path: str) -> Asking:
    """What is asked; the result is shared."""

    def selective(everything: bool) -> str:
        return f"{path.rstrip('/')}/?" + "&".join(f"name[]={family}" for family in engine.families(everything))

    def counters(everything: bool) -> list[str]:
        fields = engine.fields(everything)
        return [name for name in COUNTERS if name in fields]

    return Asking(
        selective=(selective(False), selective(True)),
        counters=(counters(False), counters(True)),
        rarely=tuple(field for field in (*FACTS, "resident_adapters") if field in engine.rarely),
        core=frozenset(
            family for field in CORE if (reading := engine.readings.get(field)) for family in reading.families
        ),
    )
