"""Whether an object already is as wanted, so that nothing is written.

An API server fills in defaults and writes quantities in its own way; both are no difference.
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from typing import Any, Final

import msgspec

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
_QUANTITIES: Final = frozenset({"requests", "limits"})


def covers(live: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there. Maps may hold more; lists must be as long, in the same order."""
    if live is None and not wanted:
        # An API server leaves out what is empty.
        return True
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            (_same_quantities if name in _QUANTITIES else covers)(live.get(name), value)
            for name, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(live, list | tuple)
            and len(live) == len(wanted)
            and all(covers(one, other) for one, other in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)


def _same_quantities(live: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return covers(live, wanted)
    if not isinstance(live, dict) or live.keys() != wanted.keys():
        return not wanted and not live
    return all(_quantity(live[name]) == _quantity(value) for name, value in wanted.items())


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
