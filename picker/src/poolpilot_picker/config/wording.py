"""How messages word values, alternatives and what a field accepts. Used by the loader and by `poolpilot config`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN_ALTERNATIVES: Final = 12


def show(value: object) -> str:
    """A value as the user wrote it, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "…"


def alternatives(value: str, allowed: Iterable[str]) -> str:
    """`Allowed: …`, the closest match first."""

    def closeness(name: str) -> float:
        return difflib.SequenceMatcher(None, value.lower(), name.lower()).ratio()

    # A set has another order in every process.
    names = sorted(allowed) if isinstance(allowed, AbstractSet) else allowed
    ordered = sorted(names, key=closeness, reverse=True)
    if not ordered:
        return "Nothing is allowed here"
    more = len(ordered) - SHOWN_ALTERNATIVES
    return f"Allowed: {', '.join(ordered[:SHOWN_ALTERNATIVES])}" + (f" and {more} more" if more > 0 else "")


def wanted(kind: inspect.Type) -> str:
    """What a field accepts, in words: for messages, for the list of plugins and for the documentation."""
    match kind:
        case inspect.Metadata():
            return wanted(kind.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _range(kind)
        case inspect.FloatType():
            return "a number" + _range(kind)
        case inspect.StrType():
            return "text" + (
                f" that matches {kind.pattern}" if kind.pattern else " (not empty)" * bool(kind.min_length)
            )
        case inspect.LiteralType() | inspect.EnumType():
            return "one of " + ", ".join(choices(kind))
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list of {wanted(kind.item_type)}"
        case inspect.DictType():
            return f"a mapping of {wanted(kind.value_type)}"
        case inspect.StructType():
            return "a mapping"
        case inspect.UnionType():
            return " or ".join(wanted(option) for option in kind.types if not isinstance(option, inspect.NoneType))
        case _:
            return "any value"


def choices(kind: inspect.LiteralType | inspect.EnumType) -> list[str]:
    """The values of a closed set."""
    values = kind.values if isinstance(kind, inspect.LiteralType) else [member.value for member in kind.cls]
    return [str(value) for value in values]


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in (("≥", kind.ge), (">", kind.gt), ("≤", kind.le), ("<", kind.lt))
        if bound is not None
    ]
    return f" {' and '.join(bounds)}" if bounds else ""
