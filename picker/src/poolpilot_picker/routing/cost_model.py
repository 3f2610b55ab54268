"""Predicts wait, prefill and step time of a request on every endpoint, and what placing it there costs. Used by the default policy.

All arrays have one element per slot, all times are ms. Symbols: B sequences at the endpoint, K their context tokens,
P prompt tokens, u uncached prompt tokens, E expected output tokens, R expected rest of the answers in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from poolpilot_picker.routing.decision import Forecast

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats


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
    kv_barrier_ms: float = 1_000.0
    """Scale of the barrier on the predicted peak of KV use."""
    preempting_ms: float = 1_000.0
    """Cost of an endpoint that was seen preempting in the last seconds."""
    # Switches for ablations: each removes one term.
    use_wait: bool = True
    use_cache: bool = True


class CostModel:
    """The terms of one decision. Built once per request; `total` is what the policy minimises."""

    __slots__ = ("adapter_ms", "expected_output", "prefill_ms", "step_ms", "terms", "total", "ttft_ms", "uncached", "wait_ms")

    def __init__(self, view: DecisionView, parameters: CostParameters) -> None:
        table, request, load = view.table, view.request, view.load
        now, rest = view.now, view.expected_rest
        prompt = float(request.prompt_tokens)
        sequences = float(request.sequences)
        output = view.expected_output
        batch = load.sequences
        busy = batch > 0
        limit = np.where(np.isnan(table.max_sequences), table.model_sequences, table.max_sequences)
        decoding = np.minimum(batch, limit)

        step_base, step_sequence, step_context = table.step_ms, table.sequence_ms, table.context_ms
        generated = table.generated_tokens(now)
        context = table.prompt_tokens + generated + load.foreign * (prompt + 0.5 * output)
        step_now = step_base + step_sequence * decoding + step_context * context

        cached = view.cached_tokens * table.cache_trust if parameters.use_cache else np.zeros(len(table))
        uncached = np.maximum(prompt - cached, 1.0)
        held = prompt - uncached
        work = table.token_ms * uncached + table.token2_ms * (uncached * uncached + 2.0 * uncached * held)

        queue = np.maximum(table.free_at_ms - now, 0.0) if parameters.use_wait else np.zeros(len(table))
        # A prefill starts at a step's end: half a step, and half a full chunk when others are being prefilled.
        wait = queue + np.where(busy, 0.5 * (step_now + np.where(queue > 0, table.token_budget * table.token_ms, 0.0)), 0.0)
        chunks = np.ceil(uncached / np.maximum(256.0, table.token_budget - batch))
        prefill = work + chunks * step_now
        grown = step_base + step_sequence * np.minimum(batch + sequences, limit)
        step = (grown + step_context * (context + sequences * (prompt + 0.5 * output))) / (1.0 - table.prefill_share)

        capacity = table.kv_tokens()
        in_use = table.kv_in_use(context)
        # max_num_seqs or the KV cache is full: the request waits for departures.
        over = np.maximum(batch + sequences - limit, 0.0)
        over = np.where(in_use + uncached > 0.98 * capacity, np.maximum(over, load.waiting + 1.0), over)
        admission = np.where(busy, over * rest * step / np.maximum(1.0, decoding), 0.0)
        adapter_ms, slots_full = self._adapter_terms(view, parameters, step, output, batch)

        ttft = wait + prefill + admission + adapter_ms
        target = parameters.slow_start_ms if request.slo_ttft_ms is None else 0.25 * request.slo_ttft_ms
        mean_batch = float(batch[table.eligible].mean()) if table.eligible.any() else 0.0
        share = parameters.fleet_share
        mixed = share * mean_batch + (1.0 - share) * batch
        peak = (in_use + 0.5 * batch * rest + uncached + sequences * output) / capacity
        barrier = np.where(peak > 0.9, parameters.kv_barrier_ms * (peak - 0.9) / np.maximum(0.02, 1.05 - peak), 0.0)
        fill = (view.indexed_tokens + generated + uncached + output) / capacity
        evicts = np.clip((fill - 0.95) / 0.1, 0.0, 1.0) * uncached * view.hit_share * table.token_ms
        terms: dict[str, Floats] = {
            "wait": wait,
            "prefill": prefill,
            "admission": 2.0 * admission,
            "adapter": adapter_ms * (1.0 + batch) + slots_full,
            "slow_start": parameters.slow_start_weight * np.maximum(ttft - target, 0.0),
            "decode": parameters.own_decode_weight * output * step,
            "delay_prefill": parameters.others_weight * mixed * work,
            "delay_decode": parameters.others_decode_weight
            * batch
            * min(output, rest)
            * sequences
            * (step_sequence + step_context * (prompt + 0.5 * output)),
            "eviction": parameters.eviction_weight * evicts * (1.0 + parameters.others_weight * batch),
            "kv_peak": barrier,
            "preempting": np.where(table.preempting_until_ms > now, parameters.preempting_ms, 0.0),
            "failures": table.failure_ms,
        }
        self.terms = terms
        self.total: Floats = np.sum(list(terms.values()), axis=0)
        self.wait_ms: Floats = wait + admission
        self.prefill_ms: Floats = prefill
        self.adapter_ms: Floats = adapter_ms
        self.step_ms: Floats = step
        self.ttft_ms: Floats = ttft
        self.uncached: Floats = uncached
        self.expected_output = output

    @staticmethod
    def _adapter_terms(
        view: DecisionView, parameters: CostParameters, step: Floats, output: float, batch: Floats
    ) -> tuple[Floats, Floats]:
        """(load time where the adapter is cold, wait for a slot where all are busy), shape (slots,) each."""
        if not view.adapter:
            nothing = np.zeros(len(view.table))
            return nothing, nothing
        cold = ~view.adapters.resident_mask(view.adapter)
        busy, slots = view.adapters.busy_slots(), view.adapters.adapter_slots()
        load = np.where(cold, parameters.adapter_load_ms, 0.0)
        full = cold & (busy >= slots)
        return load, np.where(full, (busy - slots + 1.0) * output * step / np.maximum(1.0, busy), 0.0)

    def forecast(self, slot: int) -> Forecast:
        """What is predicted for the request on one endpoint."""
        return Forecast(
            wait_ms=float(self.wait_ms[slot]),
            prefill_ms=float(self.prefill_ms[slot]),
            adapter_ms=float(self.adapter_ms[slot]),
            step_ms=float(self.step_ms[slot]),
            output_tokens=self.expected_output,
            uncached_tokens=float(self.uncached[slot]),
        )
