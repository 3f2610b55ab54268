"""Families that grow while an engine runs, and what is asked of an engine once one has grown. Pure.

vLLM's `lora_requests_info` keeps one series for every combination of adapters that ever ran and waited together; only
the newest says something. A server with a few dozen adapters gets thousands of them, and every page with them costs
both sides milliseconds, until it is larger than a page may be. The load must not be lost for that.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.sources.engines.mapping import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.sources.engines.mapping import Engine
    from poolpilot_picker.sources.series import Series

MANY: Final = 64
"""Series of one family from which on it is asked for rarely: with 96 wanted lines a page has no short way."""
_NONE: Final = ("active_adapters", "waiting_adapters")


class Asked(IntEnum):
    """How often what depends on growing families is asked for."""

    OFTEN = 0
    RARELY = 1
    """Only by the polls that ask for everything."""
    NEVER = 2


@lru_cache(maxsize=64)
def asked_for(engine: Engine, how: Asked) -> Engine:
    """The engine with growing families asked for so often; the result is shared."""
    fields = {name for name, reading in engine.readings.items() if not engine.growing.isdisjoint(reading.families)}
    match how:
        case Asked.OFTEN:
            return engine
        case Asked.RARELY:
            return msgspec.structs.replace(engine, rarely=engine.rarely | fields)
        case Asked.NEVER:
            readings = {name: reading for name, reading in engine.readings.items() if name not in fields}
            # What was read last must not stay true for ever.
            readings |= {name: Reading((), lambda _: ()) for name in _NONE if name in fields}
            return msgspec.structs.replace(engine, readings=readings)


def grown(engine: Engine, series: Mapping[str, list[Series]]) -> str | None:
    """A growing family that has many series, if there is one."""
    return next((family for family in engine.growing if len(series.get(family, ())) > MANY), None)
