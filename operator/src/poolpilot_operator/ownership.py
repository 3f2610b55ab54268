"""Which Picker serves which pool. Pure: what is wanted, what there is, and who has it now.

A pool is served only when it asks (label), or when a Picker takes every pool of namespaces that it names. Who serves it
goes on serving it as long as it may: a new Picker never moves a served pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_kube.names import OPERATOR_LABEL, PICKER_LABEL
from poolpilot_kube.objects import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolpilot_kube.objects import InferencePool
    from poolpilot_operator.models import Picker

ALL: Final = "All"


class Home(msgspec.Struct, frozen=True):
    """Where the operator lives and works."""

    namespace: str
    watched: tuple[str, ...] = ()
    """Empty is every namespace."""
    default_picker: str = "default"
    """Who is meant by a label without a value."""

    def watches(self, namespace: str) -> bool:
        """Whether the operator may work there."""
        return not self.watched or namespace in self.watched


class Claim(msgspec.Struct, frozen=True):
    """Who serves a pool, who would too, and what a person should know if nobody does."""

    picker: Key | None = None
    losers: tuple[Key, ...] = ()
    problem: str = ""
    """A reason in CamelCase; empty if a Picker serves it, or if it does not ask."""
    message: str = ""


def runs(picker: Picker, home: Home) -> bool:
    """Whether the Picker is for this operator to run."""
    return picker.metadata.labels.get(OPERATOR_LABEL, home.namespace) == home.namespace


def asked(pool: InferencePool, home: Home) -> str | None:
    """The name of the Picker that the pool asks for; None if it does not ask."""
    label = pool.metadata.labels.get(PICKER_LABEL)
    return label if label is None else label or home.default_picker


def reaches(picker: Picker, namespace: str, home: Home) -> bool:
    """Whether pools of this namespace are the Picker's business."""
    if not home.watches(namespace):
        return False
    named = picker.spec.pools.namespaces
    if named and namespace not in named:
        return False
    return picker.metadata.namespace in {home.namespace, namespace}


def too_far(picker: Picker, home: Home) -> tuple[str, ...]:
    """Namespaces that the Picker names and may not serve."""
    return tuple(name for name in picker.spec.pools.namespaces if not reaches(picker, name, home))


def served_namespaces(picker: Picker, home: Home) -> tuple[str, ...]:
    """Where the Picker may serve; empty is everywhere."""
    if picker.spec.pools.namespaces:
        return tuple(sorted(name for name in picker.spec.pools.namespaces if reaches(picker, name, home)))
    if picker.metadata.namespace != home.namespace:
        return (picker.metadata.namespace,)
    return tuple(sorted(home.watched))


def claim(pool: InferencePool, pickers: Mapping[Key, Picker], holder: Key | None, home: Home) -> Claim:
    """`holder` is the Picker whose Service the pool has now."""
    wanted = asked(pool, home)
    namespace = pool.metadata.namespace
    candidates = list(_candidates(wanted, namespace, pickers, home))
    willing = [
        key
        for key, picker in candidates
        if picker.metadata.deletion_timestamp is None
        and runs(picker, home)
        and _takes(picker, wanted)
        and reaches(picker, namespace, home)
    ]
    if not willing and wanted is not None and any(not runs(picker, home) for _, picker in candidates):
        # Another operator's business.
        return Claim()
    if not willing:
        return Claim() if wanted is None else Claim(problem="PickerNotFound", message=_why(pool, wanted, pickers, home))
    if holder in willing:
        first = holder
    else:
        # The nearest, then the oldest.
        first = min(willing, key=lambda key: (key[0] != namespace, pickers[key].metadata.creation_timestamp or "", key))
    return Claim(picker=first, losers=tuple(key for key in willing if key != first))


def _candidates(
    wanted: str | None, namespace: str, pickers: Mapping[Key, Picker], home: Home
) -> Iterable[tuple[Key, Picker]]:
    if wanted is None:
        return list(pickers.items())
    keys = {(namespace, wanted), (home.namespace, wanted)}
    return [(key, pickers[key]) for key in sorted(keys) if key in pickers]


def _takes(picker: Picker, wanted: str | None) -> bool:
    return picker.spec.pools.select == ALL if wanted is None else picker.metadata.name == wanted


def _why(pool: InferencePool, wanted: str, pickers: Mapping[Key, Picker], home: Home) -> str:
    namespace = pool.metadata.namespace
    there = [key for key, _ in _candidates(wanted, namespace, pickers, home)]
    if there:
        named = ", ".join("/".join(key) for key in there)
        return f"label {PICKER_LABEL} is {wanted!r}, but Picker {named} does not serve namespace {namespace}"
    places = " or ".join(sorted({namespace, home.namespace}))
    return f"label {PICKER_LABEL} is {wanted!r}, but there is no Picker of that name in namespace {places}"
