"""Counts and distributions that every request writes, rendered by prometheus_client only when the page is read.

Only the event loop's thread writes, so nothing is locked; the page may be written in another thread, from copies that
the interpreter makes in one step.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import Metric


class Tally:
    """One number: of a counter or a gauge. Who writes it often adds to `value` itself."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self) -> None:
        """One more."""
        self.value += 1


class Spread:
    """How often values fell up to each of some bounds, ascending, and above the last; and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[int], float]:
        """(counts of values up to each bound and of all, their sum)."""
        total = self._sum
        return list(accumulate(list(self._counts))), total


Child = TypeVar("Child", Tally, Spread)


class _Family(Collector, Generic[Child]):
    """All children of one name, by their label values."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        make: Callable[[], Child],
    ) -> None:
        self._about = name, documentation
        self._labels = labels
        self._make: Callable[[], Child] = make
        self._children: dict[tuple[str, ...], Child] = {}
        if not labels:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """The child of these label values; to be kept by who writes it often."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._about[0]} has the labels {', '.join(self._labels)}, got {values}")
            child = self._children[values] = self._make()
        return child

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """One family with a sample, or a set of them, for each child."""

    def describe(self) -> Iterable[Metric]:
        """Names, for the registry to see that no two are alike."""
        return self.collect()


class _Numbers(_Family[Tally]):
    """Children that are one number each."""

    _metric: ClassVar[type[CounterMetricFamily | GaugeMetricFamily]]

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, documentation, labels, registry, Tally)

    def collect(self) -> Iterable[Metric]:
        family = self._metric(*self._about, labels=self._labels)
        for values, child in list(self._children.items()):
            family.add_metric(values, child.value)
        return [family]


class Tallies(_Numbers):
    """A counter."""

    _metric = CounterMetricFamily


class Gauges(_Numbers):
    """A gauge."""

    _metric = GaugeMetricFamily


class Spreads(_Family[Spread]):
    """A histogram."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        bounds: Sequence[float],
    ) -> None:
        self._names = [*map(floatToGoString, bounds), "+Inf"]
        super().__init__(name, documentation, labels, registry, lambda: Spread(bounds))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        for values, child in list(self._children.items()):
            counts, total = child.read()
            family.add_metric(values, list(zip(self._names, counts, strict=True)), total)
        return [family]
