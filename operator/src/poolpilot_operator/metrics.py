"""The operator's metrics: taken when the page is read, from counts that are kept anyway."""

from __future__ import annotations

import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from poolpilot_operator.app import Operator

_PREFIX: Final = "poolpilot_operator_"


def page(operator: Operator) -> bytes:
    """In Prometheus' text format."""
    return generate_latest(_Collector(operator))


class _Collector:
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def collect(self) -> Iterator[Metric]:
        """All families."""
        one = self._operator
        yield _gauge("info", "The program", ["version"], [([_version()], 1)])
        yield _gauge("leader", "Whether this process writes", [], [([], one.leading)])
        yield _gauge("synced", "Whether every watched kind has been listed", [], [([], one.synced.is_set())])
        yield from self._queues()
        yield from self._watches()
        yield _counter("reconciles", "Looks at one object", ["kind"], [([k], n) for k, n in one.reconciled.items()])
        writes = one.world.writer.writes
        yield _counter("writes", "Writes to the API server", ["kind", "verb"], [([*k], n) for k, n in writes.items()])
        yield _counter("events", "Events posted", [], [([], one.world.events.posted)])
        changes = one.adapter_reconciler.changes
        yield _counter(
            "adapter_changes", "What was done to adapters", ["change"], [([k], n) for k, n in changes.items()]
        )
        yield from self._pools()

    def _queues(self) -> Iterator[Metric]:
        queues = self._operator.queues
        rows = [(queue.name, queue) for queue in queues]
        yield _gauge("queue_depth", "Keys that wait for a worker", ["queue"], [([n], len(q)) for n, q in rows])
        yield _gauge("queue_delayed", "Keys that wait for their time", ["queue"], [([n], q.delayed) for n, q in rows])
        yield _counter("queue_adds", "Keys taken into the queue", ["queue"], [([n], q.added) for n, q in rows])
        yield _counter("queue_retries", "Failures that come again", ["queue"], [([n], q.retries) for n, q in rows])

    def _watches(self) -> Iterator[Metric]:
        now = time.monotonic()
        stores = [(str(store.resource), store, store.status) for store in self._operator.stores]
        yield _gauge("objects", "Objects known", ["resource"], [([n], len(s)) for n, s, _ in stores])
        ages = [
            ([n], max((now - w.heard_s if w.heard_s is not None else now - self._operator.started_s) for w in ws))
            for n, _, ws in stores
        ]
        yield _gauge("watch_age_seconds", "Since the API server last said anything", ["resource"], ages)
        for name, text, field in (
            ("watch_lists", "Lists made", "lists"),
            ("watch_failures", "Lists and watches that failed", "failures"),
            ("watch_undecodable", "Objects that cannot be read", "undecodable"),
        ):
            yield _counter(name, text, ["resource"], [([n], sum(getattr(w, field) for w in ws)) for n, _, ws in stores])

    def _pools(self) -> Iterator[Metric]:
        counts: Counter[tuple[str, str, str]] = Counter()
        for state in list(self._operator.world.states.values()):
            picker = state.picker or ("", "")
            counts[(*picker, "unhealthy" if state.reason else "healthy")] += 1
        labels = ["picker_namespace", "picker", "state"]
        yield _gauge("pools", "Pools that ask for a Picker", labels, [([*k], n) for k, n in counts.items()])
        pods = list(self._operator.world.health.pods.values())
        heard = sum(1 for pod in pods if pod.pools is not None and not pod.problem)
        yield _gauge("picker_pods", "Picker pods followed", ["heard"], [(["yes"], heard), (["no"], len(pods) - heard)])


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def _counter(name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, float(value))
    return family


def _version() -> str:
    try:
        return version("poolpilot")
    except PackageNotFoundError:
        return "unknown"
