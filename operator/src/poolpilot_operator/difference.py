"""Whether an object already is as wanted, so that nothing is written.

An API server fills in defaults and writes quantities in its own way; both are no difference.
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUANTITY: Final = re.compile(r"^([+-]?[0-9.]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$")
_SUFFIX: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    **{f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)},
}
_PLAIN: Final = re.compile(r"^[\w-]+$")

Path: TypeAlias = tuple[str | int, ...]
"""Names and places in lists, from the outermost."""

_QUANTITIES: Final = frozenset({"requests", "limits"})


def covers(live: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there. Maps may hold more; lists must be as long, in the same order."""
    return next(differences(live, wanted), None) is None


def differences(live: Any, wanted: Any, path: Path = ()) -> Iterator[Path]:
    """Fields that are not as wanted; `path` is where the two stand."""
    if live is None and not wanted:
        # An API server leaves out what is empty.
        return
    if isinstance(wanted, dict) and isinstance(live, dict):
        for name, value in wanted.items():
            look = _quantities if name in _QUANTITIES else differences
            yield from look(live.get(name), value, (*path, name))
    elif isinstance(wanted, list | tuple) and isinstance(live, list | tuple) and len(live) == len(wanted):
        for index, (one, other) in enumerate(zip(live, wanted, strict=True)):
            yield from differences(one, other, (*path, index))
    elif live != wanted:
        yield path


def _quantities(live: Any, wanted: Any, path: Path) -> Iterator[Path]:
    if not isinstance(wanted, dict):
        yield from differences(live, wanted, path)
    elif not isinstance(live, dict) or live.keys() != wanted.keys():
        if wanted or live:
            yield path
    else:
        for name, value in wanted.items():
            if _quantity(live[name]) != _quantity(value):
                yield (*path, name)


def path_text(path: Path) -> str:
    """As a person writes it: `spec.containers[0].image`, `metadata.labels['app.example/name']`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.match(step):
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def _quantity(value: Any) -> Any:
    match = _QUANTITY.match(str(value))
    if match is None:
        return value
    number, suffix = match.groups()
    if suffix and suffix[0] in "eE" and len(suffix) > 1 and suffix[1:] != "i":
        return Decimal(number + suffix)
    return Decimal(number) * _SUFFIX.get(suffix or "", Decimal(1))


def digest(value: Any) -> str:
    """A short name of a value, the same for the same value in every process."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]
