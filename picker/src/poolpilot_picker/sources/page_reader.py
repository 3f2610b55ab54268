"""Telemetry, steps 2 and 3 for one endpoint: its pages → samples, computed anew only where a page has changed.

`compiled/_pages.pyx` does what `reference_update` does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

from poolpilot_picker import compiled
from poolpilot_picker.sources.engines.mapping import Engine, Found, Reading
from poolpilot_picker.sources.exposition import Needle, Page, Turns, Wanted, in_one_turn, needles
from poolpilot_picker.state.samples import EngineSample

_ByFamily = dict[str, list[tuple[str, Callable[[float], Any] | None]]]


class _Asked(msgspec.Struct, frozen=True):
    """What one kind of poll asks of an engine, the same for all its endpoints."""

    readings: dict[str, Reading]
    by_family: _ByFamily
    """Which fields a family is for, and what it says of each where it has one series."""
    needles: list[Needle]


@lru_cache(maxsize=64)
def _asked(engine: Engine, everything: bool) -> _Asked:
    readings = {field: engine.readings[field] for field in engine.fields(everything)}
    by_family: _ByFamily = {}
    for field, reading in readings.items():
        for family in reading.families:
            alone = reading.alone if family == reading.families[0] else None
            by_family.setdefault(family, []).append((field, alone))
    return _Asked(readings, by_family, needles(engine.families(everything)))


def reference_update(
    sample: EngineSample, changed: list[tuple[str, float]], found: Found, by_family: _ByFamily
) -> list[str]:
    """Sets the fields that depend on what has changed, where one series tells them; returns those that are to be
    computed."""
    others = []
    for family, value in changed:
        one = len(found[family]) == 1
        for field, alone in by_family[family]:
            told = alone(value) if one and alone is not None else None
            if told is None:
                others.append(field)
            else:
                setattr(sample, field, told)
    return others


update: Final = reference_update if compiled.in_force is None else compiled.in_force.update


class _Fields:
    """The fields of one kind of poll, computed anew only where the page differs from the one before."""

    __slots__ = ("_asked", "_last", "facts", "wanted")

    def __init__(self, engine: Engine, everything: bool) -> None:
        self._asked = _asked(engine, everything)
        self.wanted = Wanted(self._asked.needles)
        self.facts: dict[str, Any] = {}
        self._last = EngineSample(taken_ms=0.0)
        """What the last page told; nobody else has it."""

    def sample(self, page: Page, taken_ms: float) -> EngineSample:
        """What the page tells."""
        changed, last, series = page.changed, self._last, page.series
        if changed is None:
            values = {field: reading.compute(series) for field, reading in self._asked.readings.items()}
            for field, value in self.facts.items():
                values.setdefault(field, value)
            last = self._last = EngineSample(taken_ms=taken_ms, **values)
        elif changed:
            for field in update(last, changed, series, self._asked.by_family):
                setattr(last, field, self._asked.readings[field].compute(series))
        return msgspec.structs.replace(last, taken_ms=taken_ms)


class PageReader:
    """Reads the pages of one endpoint: one engine's names, and the places where that endpoint's pages have them."""

    __slots__ = ("_all", "_often", "engine")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._often = _Fields(engine, False)
        self._all = _Fields(engine, True)

    def keep(self, facts: dict[str, Any]) -> None:
        """Fields that the samples have of which the poll did not ask for them, from now on."""
        self._often.facts = facts
        self._often.wanted.forget()

    def read(self, body: bytes, taken_ms: float, *, everything: bool = True) -> tuple[EngineSample, Page]:
        """One page → (sample, what was found). `taken_ms`: when the poll began."""
        again = self.again(body, 0, len(body), taken_ms, everything)
        return again if again is not None else in_one_turn(self.steps(body, taken_ms, everything=everything))

    def again(
        self, buffer: bytes | bytearray, start: int, end: int, taken_ms: float, everything: bool
    ) -> tuple[EngineSample, Page] | None:
        """As `read`, for a page at `buffer[start:end]` that looks like the one before; None if it needs `steps`."""
        fields = self._all if everything else self._often
        page = fields.wanted.again(buffer, start, end)
        return None if page is None else (fields.sample(page, taken_ms), page)

    def steps(self, body: bytes, taken_ms: float, *, everything: bool) -> Turns[tuple[EngineSample, Page]]:
        """A page that `again` did not know, in turns of about half a millisecond: yields after each, returns the
        result."""
        fields = self._all if everything else self._often
        page = yield from fields.wanted.search(body)
        return fields.sample(page, taken_ms), page
