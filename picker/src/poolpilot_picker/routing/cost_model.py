"""Predicts wait, prefill and step time of a request on every endpoint, and what placing it there costs.

All arrays have one element per slot, all times are ms. Symbols: B sequences at the endpoint, K their context tokens,
P prompt tokens, u uncached prompt tokens, E expected output tokens, R expected rest of the answers in flight.

A decision is a few dozen operations on short arrays, so what matters rarely (full caches and batches, adapters,
penalties) is computed only where some endpoint needs it; a term that is not computed is 0 everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from poolpilot_picker.routing.decision import Forecast

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats

LEAST_CHUNK: Final = 256.0
"""Prompt tokens that fit into a step however many sequences decode in it."""
KV_ROOM: Final = 0.9
"""Share of the KV cache that a predicted peak may fill without cost."""
CACHE_ROOM: Final = 0.95
"""Share of the KV cache that resident prefixes may fill without an eviction being likely."""


class CostParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Constants of the cost, each with the range in which a sweep found no harm. Weights have no unit."""

    own_decode_weight: float = 0.25
    """Of the request's own decode time, E × step: imbalance does not last for E tokens. 0.1–0.3."""
    others_weight: float = 0.3
    """Of the delay that its prefill causes to each sequence decoding there. 0.25–0.5; never below own_decode_weight."""
    fleet_share: float = 0.3
    """Share of the fleet's mean batch, instead of the endpoint's own, in that delay. 0–0.4."""
    others_decode_weight: float = 0.25
    """Of the delay that its decode causes to the others' decode."""
    slow_start_weight: float = 3.0
    """Of the part of TTFT above slow_start_ms. 1–6."""
    slow_start_ms: float = 300.0
    """A quarter of the request's own TTFT objective where it has one. 250–1,000."""
    eviction_weight: float = 0.75
    """Of the value of the cached tokens that the placement evicts. 0.5–1."""
    adapter_load_ms: float = 500.0
    """Of a cold adapter, which stalls the whole batch."""
    adapter_eviction_weight: float = 0.25
    """Of the load that the adapter it displaces will need, where no slot is free."""
    kv_barrier_ms: float = 1_000.0
    """Scale of the barrier on the predicted peak of KV use."""
    kv_barrier_most_ms: float = 30_000.0
    """Where the barrier ends: it steers, and where all are full the other terms still count."""
    preempting_ms: float = 1_000.0
    """Cost of an endpoint that was seen preempting in the last seconds."""
    # Switches for ablations: each removes one term.
    use_wait: bool = True
    use_cache: bool = True


class CostModel:
    """The terms of one decision. Built once per request; `total` is what the policy minimises."""

    __slots__ = (
        "_adapter_ms",
        "_parameters",
        "_view",
        "expected_output",
        "prefill_ms",
        "step_ms",
        "terms",
        "total",
        "uncached",
        "wait_ms",
    )

    def __init__(self, view: DecisionView, parameters: CostParameters) -> None:
        self._view, self._parameters = view, parameters
        table, request, load, now = view.table, view.request, view.load, view.now
        prompt, sequences, output = float(request.prompt_tokens), float(request.sequences), view.expected_output
        batch = load.sequences
        # Context of a sequence like this one, halfway through its output: what each that joins adds to a step.
        midway = prompt + 0.5 * output
        each = table.sequence_ms + table.context_ms * midway

        generated = table.generated_tokens(now)
        context = table.prompt_tokens + generated
        if load.any_foreign:
            context += load.foreign * midway
        decoding = np.minimum(batch, table.max_sequences)
        step_now = table.step_ms + table.sequence_ms * decoding + table.context_ms * context
        step = (step_now + sequences * each) * table.interference

        if parameters.use_cache:
            uncached = np.maximum(prompt - view.cached_tokens * table.cache_trust, 1.0)
        else:
            uncached = np.full(len(table), max(prompt, 1.0))
        # token·u + token2·(u² + 2·u·p) with p = P − u
        work = uncached * (table.token_ms + table.token2_ms * (2.0 * prompt - uncached))
        chunks = np.ceil(uncached / np.maximum(LEAST_CHUNK, table.token_budget - batch))
        prefill = work + chunks * step_now
        # A prefill starts when a step ends: half a step, and half of the chunk that is being prefilled.
        wait = np.minimum(0.5 * batch, 0.5) * step_now
        if parameters.use_wait:
            queue = np.maximum(table.free_at_ms - now, 0.0)
            wait += queue + np.minimum(queue, table.half_chunk_ms)

        fleet = parameters.fleet_share * float(batch.dot(table.mean_weight))
        delayed = parameters.others_weight * (fleet + (1.0 - parameters.fleet_share) * batch)
        slowed = parameters.others_decode_weight * sequences * min(output, view.expected_rest)
        self.expected_output = output
        self.step_ms: Floats = step
        self.uncached: Floats = uncached
        self.prefill_ms: Floats = prefill
        self.wait_ms: Floats = wait
        self._adapter_ms: Floats | None = None
        self.terms: dict[str, Floats] = {
            "wait": wait,
            "prefill": prefill,
            "decode": (parameters.own_decode_weight * output) * step,
            "delay_prefill": delayed * work,
            "delay_decode": slowed * batch * each,
        }
        self._add_capacity(generated, decoding)
        if view.adapter:
            self._add_adapter()
        target = parameters.slow_start_ms if request.slo_ttft_ms is None else 0.25 * request.slo_ttft_ms
        late = self.ttft_ms - target
        if late[late.argmax()] > 0.0:
            self.terms["slow_start"] = parameters.slow_start_weight * np.maximum(late, 0.0)
        self._add_penalties()
        values = iter(self.terms.values())
        total: Floats = next(values) + next(values)
        for value in values:
            total += value
        self.total: Floats = total

    @property
    def ttft_ms(self) -> Floats:
        """Until the first token."""
        ttft: Floats = self.wait_ms + self.prefill_ms
        return ttft if self._adapter_ms is None else ttft + self._adapter_ms

    def _add_capacity(self, generated: Floats, decoding: Floats) -> None:
        """What full batches and KV caches cost: waiting for departures, preemption at the peak, evicted prefixes."""
        view, parameters = self._view, self._parameters
        table, load, uncached = view.table, view.load, self.uncached
        batch, output, rest = load.sequences, view.expected_output, view.expected_rest
        sequences = float(view.request.sequences)
        in_use = table.new_kv_tokens + np.maximum(load.other_kv, generated)
        peak = (in_use + uncached + (sequences * output + (0.5 * rest) * batch)) / table.kv_tokens
        room = table.max_sequences - batch
        over: Floats | None = None
        if room[room.argmin()] < sequences:
            over = np.maximum(sequences - room, 0.0)
        if peak[peak.argmax()] > KV_ROOM:
            barrier = parameters.kv_barrier_ms * (peak - KV_ROOM) / np.maximum(0.02, 1.05 - peak)
            self.terms["kv_peak"] = np.minimum(np.maximum(barrier, 0.0), parameters.kv_barrier_most_ms)
            full = in_use + uncached > 0.98 * table.kv_tokens
            if full.any():
                queued = np.where(np.isnan(table.waiting), 0.0, table.waiting) + 1.0
                over = np.maximum(np.where(full, queued, 0.0), 0.0 if over is None else over)
        if over is not None:
            admission = np.where(batch > 0.0, over * rest * self.step_ms / np.maximum(1.0, decoding), 0.0)
            self.wait_ms = self.wait_ms + admission
            # Twice: once as part of the time to the first token, once for the others it makes wait.
            self.terms["admission"] = 2.0 * admission
        fill = (view.indexed_tokens + generated + (uncached + output)) / table.kv_tokens
        if fill[fill.argmax()] > CACHE_ROOM:
            share = np.minimum(np.maximum((fill - CACHE_ROOM) / 0.1, 0.0), 1.0)
            value = (parameters.eviction_weight * view.hit_share) * table.token_ms
            self.terms["eviction"] = share * uncached * value * (1.0 + parameters.others_weight * batch)

    def _add_adapter(self) -> None:
        """The load of a cold adapter stalls the batch; where all slots are in use it waits for one."""
        view, parameters = self._view, self._parameters
        batch, adapters = view.load.sequences, view.adapters
        cold = ~adapters.resident_mask(view.adapter)
        busy, slots = adapters.busy_slots(), adapters.adapter_slots()
        load = np.where(cold, parameters.adapter_load_ms, 0.0)
        answers = (busy - slots + 1.0) * view.expected_output * self.step_ms / np.maximum(1.0, busy)
        self._adapter_ms = load
        displaces = parameters.adapter_eviction_weight * (adapters.loaded_slots() >= slots)
        self.terms["adapter"] = load * (1.0 + displaces + batch) + np.where(cold & (busy >= slots), answers, 0.0)

    def _add_penalties(self) -> None:
        view, table = self._view, self._view.table
        until, failures = table.preempting_until_ms, table.failure_ms
        if until[until.argmax()] > view.now:
            self.terms["preempting"] = np.where(until > view.now, self._parameters.preempting_ms, 0.0)
        if failures[failures.argmax()] > 0.0:
            self.terms["failures"] = failures

    def forecast(self, slot: int) -> Forecast:
        """What is predicted for the request on one endpoint."""
        return Forecast(
            wait_ms=float(self.wait_ms[slot]),
            prefill_ms=float(self.prefill_ms[slot]),
            adapter_ms=0.0 if self._adapter_ms is None else float(self._adapter_ms[slot]),
            step_ms=float(self.step_ms[slot]),
            output_tokens=self.expected_output,
            uncached_tokens=float(self.uncached[slot]),
        )
