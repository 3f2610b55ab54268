"""Whose metrics page is it, if it has none of the families that were looked for? For the log, said once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.sources.asking import CORE
from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.sources.exposition import find

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.sources.engines.mapping import Engine

_LOOKED_AT: Final = 262_144
"""Bytes of the page."""
_SHOWN: Final = 80


def what_it_has(page: bytes, engine: Engine, engines: Mapping[str, Engine] = BUILTIN) -> str:
    """What a page without the load of `engine` has instead, in a few words."""
    text = page[:_LOOKED_AT]
    text = text[: text.rfind(b"\n") + 1]
    if not page.strip():
        return "the page is empty; engines that write metrics as they come do so until the first request"
    for family in _load(engine):
        header = f"# TYPE {family} ".encode()
        if text.startswith(header) or b"\n" + header in text:
            return f"the page announces {family} without a value, as before an engine's first request"
    others = [
        other.name
        for other in engines.values()
        if other is not engine and (names := _load(other)) and find(text, names).series
    ]
    if others:
        return f"the page has those of engine {' or '.join(others)}: is the endpoint's engine named rightly?"
    first = next((line for line in text.split(b"\n") if line.strip() and not line.startswith(b"#")), b"")
    name = first.split(b"{")[0].split(b" ")[0].decode("ascii", "backslashreplace")[:_SHOWN]
    return f"the first name on the page is {name!r}" if name else "the page has no series"


def _load(engine: Engine) -> list[str]:
    """The families of an engine's load."""
    return [family for field in CORE if (reading := engine.readings.get(field)) for family in reading.families]
