"""Which pools select a pod: asked for every pod that changes, also where there are thousands of pools. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_kube.objects import Key, Pod

_Label = tuple[str, str]


class SelectorIndex:
    """Pools by one of the labels that they ask for: a pod is compared only with those that it has that label for."""

    def __init__(self) -> None:
        self._selectors: dict[Key, Mapping[str, str]] = {}
        self._by_label: defaultdict[tuple[str, _Label], dict[Key, None]] = defaultdict(dict)

    def set(self, pool: Key, labels: Mapping[str, str] | None) -> None:
        """A pool selects pods of its namespace by these labels; None or no labels: it selects none."""
        before = self._selectors.pop(pool, None)
        if before:
            place = (pool[0], self._first(before))
            del self._by_label[place][pool]
            if not self._by_label[place]:
                del self._by_label[place]
        if labels:
            self._selectors[pool] = labels
            self._by_label[pool[0], self._first(labels)][pool] = None

    def matching(self, pod: Pod | None) -> list[Key]:
        """The pools that select a pod."""
        if pod is None:
            return []
        namespace, has = pod.metadata.namespace, pod.metadata.labels
        return [
            pool
            for label in has.items()
            for pool in self._by_label.get((namespace, label), ())
            if self._selectors[pool].items() <= has.items()
        ]

    @staticmethod
    def _first(labels: Mapping[str, str]) -> _Label:
        return min(labels.items())
