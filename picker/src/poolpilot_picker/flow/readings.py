"""What an engine tells of itself, written into the state: gauges, facts, adapters, preemptions; lessons for learners.

Called by the pool for every telemetry sample.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from poolpilot_picker.state.columns import NEVER, gauge

if TYPE_CHECKING:
    from poolpilot_picker.flow.learners import Learners
    from poolpilot_picker.state.adapters import AdapterResidency
    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable
    from poolpilot_picker.state.ledger import Ledger
    from poolpilot_picker.state.prefix import PrefixIndex
    from poolpilot_picker.state.samples import EngineSample

PREEMPTING_FOR_MS: Final = 5_000.0
"""How long an engine counts as preempting after its counter grew."""


class Readings:
    """Takes in samples, newest first served: one that is older than what is known is dropped."""

    def __init__(
        self,
        table: EndpointTable,
        ledger: Ledger,
        prefixes: PrefixIndex,
        adapters: AdapterResidency,
        learners: Learners,
    ) -> None:
        self._table = table
        self._ledger = ledger
        self._prefixes = prefixes
        self._adapters = adapters
        self._learners = learners
        self._preemptions: dict[Endpoint, float] = {}
        """By the engine's counter, when it last told."""

    def apply(self, endpoint: Endpoint, sample: EngineSample, now: float) -> bool:
        """A telemetry sample arrived. False: it was dropped."""
        table, slot = self._table, endpoint.slot
        if not table.holds(endpoint) or sample.taken_ms < table.sample_ms[slot]:
            return False
        self._learners.advance(endpoint, now)
        # A fact once told stays true when a later sample does not repeat it.
        if sample.prefix_caching is False:
            self._prefixes.set_capacity(slot, 0.0)
        elif sample.kv_capacity_tokens:
            self._prefixes.set_capacity(slot, float(sample.kv_capacity_tokens))
        waiting = table.columns.tell(slot, sample, self._ledger.explained(endpoint, sample.taken_ms))
        if waiting >= 0.0:
            if self._adapters.full:
                waiting = self._adapters.not_deferred(slot, waiting)
            self._ledger.reconcile_queue(endpoint, sample.taken_ms, waiting, now)
        self._adapters.apply_sample(slot, sample)
        if sample.preemptions is not None:
            if sample.preemptions > self._preemptions.get(endpoint, math.inf):
                table.preempting_until_ms[slot] = now + PREEMPTING_FOR_MS
            self._preemptions[endpoint] = sample.preemptions
        self._learners.sampled(endpoint, sample, now)
        return True

    def apply_report(self, endpoint: Endpoint, report: EngineSample, now: float) -> None:
        """A load report that came with an answer. It names a gauge or two: the others stay as the last sample told."""
        table, slot = self._table, endpoint.slot
        if not table.holds(endpoint) or report.taken_ms < table.sample_ms[slot]:
            return
        usage, waiting = gauge(report.kv_usage), gauge(report.waiting)
        if not math.isnan(usage):
            table.columns.tell_usage(slot, usage)
        if not math.isnan(waiting):
            if self._adapters.full:
                waiting = self._adapters.not_deferred(slot, waiting)
            self._ledger.reconcile_queue(endpoint, report.taken_ms, waiting, now)

    def restarted(self, endpoint: Endpoint, now: float) -> None:
        """The engine restarted: its caches are empty and its counters begin again."""
        table, slot = self._table, endpoint.slot
        if not table.holds(endpoint):
            return
        self._prefixes.forget(slot)
        self._adapters.restarted(slot)
        self._learners.restarted(endpoint, now)
        self._preemptions.pop(endpoint, None)
        # Its load is unknown until it tells. The time of the last sample stays: older ones are of the old process.
        table.running[slot] = table.waiting[slot] = table.kv_usage[slot] = np.nan
        table.load_ms[slot] = table.preempting_until_ms[slot] = NEVER
        table.foreign[slot] = table.foreign_mean[slot] = table.other_kv_tokens[slot] = table.queued[slot] = 0.0

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self._preemptions.pop(endpoint, None)
