"""Statuses for older definitions (CRDs): Helm never upgrades those in `crds/`, so an operator may be newer.

A server-side apply with a field that the definition does not know is refused as a whole. What was refused is left out
from then on, and a condition tells who is to do what.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final

from poolpilot_operator.conditions import Condition, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from poolpilot_kube.errors import RefusedError

log: Final = logging.getLogger(__name__)

CONDITION: Final = "CRDOutdated"
AGAIN_S: Final = 300.0
"""So long it is believed that a definition does not know a field."""
_REFUSED: Final = re.compile(r"(?:^|\s)\.(status[^\s:]*(?:\[[^\]]*\][^\s:]*)*): field not declared in schema")
_KEYS: Final = re.compile(r"\[[^\]]*\]")


def unknown_field(error: RefusedError) -> bool:
    """Whether an apply was refused for a field that the server does not know."""
    return "field not declared in schema" in str(error)


def undeclared(error: RefusedError) -> frozenset[str]:
    """Fields of the status that the server does not know: `status.advice`, `status.conditions[].reason`."""
    return frozenset(_KEYS.sub("[]", path) for path in _REFUSED.findall(str(error)))


class Definitions:
    """What was learned of the cluster's definitions, by kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unknown: dict[str, tuple[float, frozenset[str]]] = {}
        self._logged: dict[str, frozenset[str]] = {}

    def unknown(self, kind: str) -> frozenset[str]:
        """Fields that are left out now."""
        learned, paths = self._unknown.get(kind, (0.0, frozenset()))
        return paths if paths and self._clock() - learned < AGAIN_S else frozenset()

    def learn(self, kind: str, error: RefusedError) -> bool:
        """Whether the refusal is of fields that were not known to be unknown."""
        known, paths = self.unknown(kind), undeclared(error)
        if paths <= known:
            return False
        self._unknown[kind] = self._clock(), known | paths
        if self._logged.get(kind) != known | paths:
            self._logged[kind] = known | paths
            log.warning("%s: %s", CONDITION, self.message(kind))
        return True

    def message(self, kind: str) -> str:
        """For a person; empty where the definition knows everything."""
        unknown = self.unknown(kind)
        if not unknown:
            return ""
        return (
            f"the CustomResourceDefinition of {kind} in the cluster does not know {', '.join(sorted(unknown))}, which "
            "this operator writes: apply the CRDs of its version (helm upgrade --install poolpilot-crds "
            "./charts/poolpilot-crds --take-ownership --force-conflicts); until then the status is without"
        )

    def fitted(
        self, kind: str, status: Mapping[str, Any], before: Mapping[str, Any], generation: int, now: datetime
    ) -> dict[str, Any]:
        """`status` without what its definition does not know, and with a condition that says so."""
        unknown = self.unknown(kind)
        if not unknown:
            return dict(status)
        told = Condition(CONDITION, "True", "FieldsUnknown", self.message(kind))
        conditions = [
            *(status.get("conditions") or ()),
            *merged(before.get("conditions") or [], [told], generation, now),
        ]
        whole: Any = {**status, "conditions": conditions}
        for path in unknown:
            whole = _without(whole, path.split(".")[1:])
        return dict(whole)


def _without(value: Any, path: list[str]) -> Any:
    """A copy; `path` has `name[]` where it leads through a list."""
    name, rest = path[0].removesuffix("[]"), path[1:]
    if not isinstance(value, dict) or name not in value:
        return value
    if not rest:
        return {key: one for key, one in value.items() if key != name}
    inner = value[name]
    if path[0].endswith("[]"):
        inner = [_without(one, rest) for one in inner]
    else:
        inner = _without(inner, rest)
    return {**value, name: inner}
