"""Metrics pages of several workers → one page. Counters and histograms are summed and never fall when a worker dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SUMMED_GAUGES: Final = frozenset(
    {"poolpilot_endpoint_inflight", "llm_d_epp_request_running", "llm_d_epp_extproc_streams_inflight"}
)
"""Each worker tells its share. Other gauges tell of the pool: the first worker that has one speaks for all."""
SUMMED_PARTS: Final = frozenset({("poolpilot_pool_queue_size", ("at", "picker"))})
"""The same of some series only: (family, label)."""
GAUGES_BY_WORKER: Final = frozenset({"poolpilot_max_resident_bytes"})
STREAMS: Final = "llm_d_epp_extproc_streams_total"

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


class _Family:
    """One family of the page: name, help, type, and its series in the order in which they were first seen."""

    __slots__ = ("kind", "series", "text")

    def __init__(self, text: str, kind: str) -> None:
        self.text = text
        self.kind = kind
        self.series: dict[Series, float] = {}


Page = dict[str, _Family]


def _parsed(text: str) -> Page:
    page: Page = {}
    for metric in text_string_to_metric_families(text):
        family = page[metric.name] = _Family(metric.documentation, metric.type)
        for sample in metric.samples:
            family.series[sample.name, tuple(sample.labels.items())] = sample.value
    return page


def _summed(name: str, labels: Labels) -> bool:
    return name in SUMMED_GAUGES or any((name, label) in SUMMED_PARTS for label in labels)


def _add(total: Page, page: Page, *, worker: int | None) -> None:
    """Adds a page to the total; `worker` None: of a life that is over, whose gauges mean nothing any more."""
    for name, family in page.items():
        gauge = family.kind == "gauge"
        if gauge and worker is None:
            continue
        into = total.setdefault(name, _Family(family.text, family.kind))
        for (series, labels), value in family.series.items():
            key = (series, (*labels, ("worker", str(worker)))) if name in GAUGES_BY_WORKER else (series, labels)
            if gauge and not _summed(name, labels):
                into.series.setdefault(key, value)
            else:
                into.series[key] = into.series.get(key, 0.0) + value


class MetricsBook:
    """Takes the workers' pages, and is a collector for prometheus_client's encoders.

    A worker that starts again counts from zero. What its former life was last seen to have counted stays in the sums:
    else they would fall, and a rate would read the whole rest as new.
    """

    def __init__(self) -> None:
        self._lives: dict[int, tuple[int, Page]] = {}
        self._over: Page = {}
        self._here: frozenset[int] = frozenset()
        self._states: list[tuple[int, bool, int]] = []

    def take(self, pages: Mapping[int, tuple[int, str]], states: Iterable[tuple[int, bool, int]]) -> None:
        """`pages`: (pid, text of the page) by worker that answered; `states`: (worker, ready, restarts) of all."""
        for worker, (pid, text) in pages.items():
            known = self._lives.get(worker)
            if known is not None and known[0] != pid:
                _add(self._over, known[1], worker=None)
            self._lives[worker] = pid, _parsed(text)
        self._here = frozenset(pages)
        self._states = list(states)

    def collect(self) -> Iterator[Metric]:
        """The families of the merged page."""
        total: Page = {}
        for worker in sorted(self._lives):
            # Who does not answer now has still counted what it was last seen to have.
            _add(total, self._lives[worker][1], worker=worker if worker in self._here else None)
        _add(total, self._over, worker=None)
        for name, family in total.items():
            metric = Metric(name, family.text, family.kind)
            for (series, labels), value in family.series.items():
                metric.add_sample(series, dict(labels), value)
            yield metric
        yield from self._workers()

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("poolpilot_worker_up", "1 while the worker is ready", labels=["worker"])
        restarts = CounterMetricFamily("poolpilot_worker_restarts", "Starts after the first", labels=["worker"])
        streams = CounterMetricFamily(
            "poolpilot_worker_streams", "ext_proc streams that have ended, since the worker's start", labels=["worker"]
        )
        for worker, ready, times in self._states:
            up.add_metric([str(worker)], float(ready))
            restarts.add_metric([str(worker)], times)
            if worker in self._lives:
                ended = self._lives[worker][1].get(STREAMS.removesuffix("_total"))
                streams.add_metric([str(worker)], sum(ended.series.values()) if ended is not None else 0.0)
        yield from (up, restarts, streams)
