"""Predicts wait, prefill and step time of a request on every endpoint, and what placing it there costs.

`CostModel` is the reference, and the place where the reasons are; `compiled/_cost.pyx` does the same.

All arrays have one element per slot, all times are ms. Symbols: B sequences at the endpoint, K their context tokens,
P prompt tokens, u uncached prompt tokens, E expected output tokens, R expected rest of the answers in flight.

A decision is a few dozen operations on short arrays, so what matters rarely (full caches and batches, adapters,
penalties) is computed only where some endpoint needs it; a term that is not computed is 0 everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Protocol

import msgspec
import numpy as np

from poolpilot_picker.routing.decision import Forecast

if TYPE_CHECKING:
    import random

    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.columns import Floats, Mask
    from poolpilot_picker.state.load import LoadEstimate

LEAST_CHUNK: Final = 256.0
"""Prompt tokens that fit into a step however many sequences decode in it."""
KV_ROOM: Final = 0.9
"""Share of the KV cache that a predicted peak may fill without cost."""
CACHE_ROOM: Final = 0.95
"""Share of the KV cache that resident prefixes may fill without an eviction being likely."""
MOST_BACKLOG: Final = 20.0
"""Of times that `backlog_ms` counts: beyond, the difference of two waits must still weigh against the work."""
TIE_MS: Final = 1e-9
"""Costs this close are equal."""


class CostParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Constants of the cost, each with the range in which a sweep found no harm. Weights have no unit."""

    own_decode_weight: float = 0.5
    """Of the request's own decode time, as far as it counts: E × step. 0.4–0.8."""
    decode_horizon: Annotated[float, msgspec.Meta(gt=0.0)] = 2_000.0
    """Tokens that long answers count for at most, and of which an answer of so many counts for half: what is unequal
    now does not last until they end. 800–4,000."""
    others_weight: float = 0.3
    """Of the delay that its prefill causes to each sequence decoding there. 0.25–0.5."""
    backlog_ms: Annotated[float, msgspec.Meta(gt=0.0)] = 100.0
    """Of the least prefill queue there is, for which that delay weighs once more: while nobody could begin at once,
    work is what is short, and all that come later wait for it. 50–200."""
    fleet_share: float = 0.3
    """Share of the fleet's mean batch, instead of the endpoint's own, in that delay. 0–0.4."""
    wait_weight: float = 4.0
    """Of the wait for the prefill queue: the tail of TTFT is where prompts meet while others are free. 3–10."""
    hit_wait_weight: float = 1.0
    """Of that wait as far as a cache hit makes up for it: who waits no longer than the prefill saved there takes does
    not start later for it, and could only avoid it by work that delays others. 0.5–1; at most wait_weight."""
    slow_start_weight: float = 3.0
    """Of the part of TTFT above slow_start_ms. 1–6."""
    slow_start_ms: float = 300.0
    """A quarter of the request's own TTFT objective where it has one. 250–1,000."""
    eviction_weight: float = 3.0
    """Of what it costs to compute the cached tokens again that the placement evicts, as far as they are likely asked
    for. 2–4."""
    adapter_load_ms: float = 500.0
    """Of a cold adapter, which stalls the whole batch."""
    adapter_slot_weight: float = 3.0
    """Of the delay that requests waiting for a GPU slot have when the adapter takes one more. 1–3."""
    adapter_eviction_weight: float = 0.25
    """Of the load that the adapter it displaces will need, where no slot is free."""
    kv_barrier_ms: float = 1_000.0
    """Scale of the barrier on the predicted peak of KV use."""
    kv_barrier_most_ms: float = 30_000.0
    """Where the barrier ends: it steers, and where all are full the other terms still count."""
    # Switches for ablations: each removes one term.
    use_wait: bool = True
    use_cache: bool = True


class Cost(Protocol):
    """The terms of one decision, one element per slot; a term that is not listed is 0 everywhere."""

    @property
    def terms(self) -> dict[str, Floats]:
        """Name → ms."""
        ...

    @property
    def total(self) -> Floats:
        """Their sum: what the policy minimises."""
        ...

    def forecast(self, slot: int) -> Forecast:
        """What is predicted for the request on one endpoint."""
        ...

    def cheapest(self, mask: Mask, rng: random.Random) -> int:
        """The slot of the smallest cost among at least one candidate; ties at random."""
        ...


class CostModel:
    """The terms of one decision. Built once per request.

    Keeps no reference to its view: the view refers to the model, and in a cycle every decision's arrays would be left
    to the garbage collector.
    """

    __slots__ = (
        "_adapter_ms",
        "_others_weight",
        "_output",
        "_prefill_ms",
        "_slot_ms",
        "_step_ms",
        "_uncached",
        "_wait_ms",
        "terms",
        "total",
    )

    def __init__(self, view: DecisionView, parameters: CostParameters) -> None:
        table, request, load, now = view.table, view.request, view.expected_load, view.now
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
        mean = float(batch.dot(table.mean_weight))
        # Of an endpoint that has just joined, what it will soon have.
        soon = batch if view.lent is None else np.maximum(batch, view.lent * mean)
        step = (step_now + (sequences + (soon - batch)) * each) * table.interference

        uncached = np.maximum(prompt - view.likely_tokens * table.cache_trust, 1.0)
        if not parameters.use_cache:
            uncached[:] = max(prompt, 1.0)
        # token·u + token2·(u² + 2·u·p) with p = P − u
        work = uncached * (table.token_ms + table.token2_ms * (2.0 * prompt - uncached))
        chunks = np.ceil(uncached / np.maximum(table.token_budget - batch, LEAST_CHUNK))
        prefill = work + chunks * step_now
        # A prefill starts when a step ends: half a step, and half of the chunk that is being prefilled.
        wait = np.minimum(0.5 * batch, 0.5) * step_now
        queue = np.maximum(table.free_at_ms - now, 0.0)
        if parameters.use_wait:
            wait += queue + np.minimum(queue, table.half_chunk_ms)
        # What the prefill would take here beyond what it does, if no more were cached than where least is.
        most = uncached.max(where=table.mean_weight > 0.0, initial=1.0)
        saved = (most - uncached) * (table.token_ms + table.token2_ms * (2.0 * prompt - most - uncached))
        made_up = np.minimum(wait, np.maximum(saved, 0.0))
        hit_wait_weight = min(parameters.hit_wait_weight, parameters.wait_weight)

        fleet = parameters.fleet_share * mean
        least = queue.min(where=view.mask, initial=MOST_BACKLOG * parameters.backlog_ms)
        self._others_weight = parameters.others_weight * (1.0 + float(least) / parameters.backlog_ms)
        delayed = self._others_weight * (fleet + (1.0 - parameters.fleet_share) * soon)
        counted = output * (parameters.decode_horizon / (parameters.decode_horizon + output))
        self._output = output
        self._step_ms: Floats = step
        self._uncached: Floats = uncached
        self._prefill_ms: Floats = prefill
        self._wait_ms: Floats = wait
        self._adapter_ms: Floats | None = None
        self._slot_ms: Floats | None = None
        self.terms: dict[str, Floats] = {
            "wait": parameters.wait_weight * (wait - made_up) + hit_wait_weight * made_up,
            "prefill": prefill,
            "decode": (parameters.own_decode_weight * counted) * step,
            "delay_prefill": delayed * work,
        }
        self._add_capacity(view, parameters, load, generated, decoding, mean)
        if view.adapter:
            self._add_adapter(view, parameters, batch)
        self._add_slow_start(request, parameters)
        failures = table.failure_ms
        if failures[failures.argmax()] > 0.0:
            self.terms["failures"] = failures
        first, second, *others = self.terms.values()
        self.total: Floats = first + second
        for term in others:
            self.total += term

    def _add_capacity(
        self,
        view: DecisionView,
        parameters: CostParameters,
        load: LoadEstimate,
        generated: Floats,
        decoding: Floats,
        mean: float,
    ) -> None:
        """What full batches and KV caches cost: waiting for departures, preemption at the peak, evicted prefixes."""
        table, uncached = view.table, self._uncached
        batch, output, rest = load.sequences, view.expected_output, view.expected_rest
        sequences = float(view.request.sequences)
        in_use = table.kv_in_use(load.other_kv, generated) + uncached
        peak = (in_use + (sequences * output + (0.5 * rest) * batch)) / table.kv_tokens
        over = batch + sequences - table.max_sequences
        if peak[peak.argmax()] > KV_ROOM:
            barrier = parameters.kv_barrier_ms * (peak - KV_ROOM) / np.maximum(1.05 - peak, 0.02)
            self.terms["kv_peak"] = np.minimum(np.maximum(barrier, 0.0), parameters.kv_barrier_most_ms)
            over = np.where(in_use > 0.98 * table.kv_tokens, np.maximum(over, table.queued + 1.0), over)
        if over[over.argmax()] > 0.0:
            waits = np.maximum(over, 0.0) * rest * self._step_ms / np.maximum(decoding, 1.0)
            waits[batch <= 0.0] = 0.0
            self._wait_ms = self._wait_ms + waits
            # Twice: once as part of the time to the first token, once for the others it makes wait.
            self.terms["admission"] = 2.0 * waits
        fill = (view.indexed_tokens + generated + uncached + output) / table.kv_tokens
        if fill[fill.argmax()] > CACHE_ROOM:
            share = np.minimum(np.maximum(10.0 * (fill - CACHE_ROOM), 0.0), 1.0)
            # What goes will be asked for wherever it is cheapest then: recomputed at the fleet's mean speed, beside its
            # mean batch. With their own, fast endpoints would take more than their caches hold.
            token_ms, token2_ms = (each.dot(table.mean_weight) for each in (table.token_ms, table.token2_ms))
            again = uncached * (token_ms + token2_ms * (2.0 * view.request.prompt_tokens - uncached))
            late = np.maximum(again - parameters.slow_start_ms, 0.0)
            value = again * (1.0 + self._others_weight * mean) + parameters.slow_start_weight * late
            if view.reuse is not None:
                share = share * view.reuse
            self.terms["eviction"] = (parameters.eviction_weight * view.hit_share) * share * value

    def _add_adapter(self, view: DecisionView, parameters: CostParameters, batch: Floats) -> None:
        """The load of a cold adapter stalls the batch; where the batch needs all GPU slots it waits for one, and others
        wait for the one that it takes."""
        adapters = view.adapters
        cold = ~adapters.resident_mask(view.adapter)
        self._adapter_ms = load = np.where(cold, parameters.adapter_load_ms, 0.0)
        home, hope = view.adapter_home
        if home >= 0:
            load[home] *= 1.0 - hope
        displaced = parameters.adapter_eviction_weight * (adapters.loaded_slots() >= adapters.adapter_slots())
        self.terms["adapter"] = load * (1.0 + displaced + batch)
        until, taken = adapters.scarcity(view.adapter)
        self._slot_ms = slot_ms = (until * view.expected_rest) * self._step_ms
        taken = (parameters.adapter_slot_weight * view.expected_output) * taken
        self.terms["adapter_slot"] = slot_ms + taken * self._step_ms

    def _add_slow_start(self, request: InferenceRequest, parameters: CostParameters) -> None:
        """What of the time to the first token is beyond the target weighs more."""
        late = self._wait_ms + self._prefill_ms
        if self._adapter_ms is not None:
            late += self._adapter_ms
        if self._slot_ms is not None:
            late += self._slot_ms
        late -= parameters.slow_start_ms if request.slo_ttft_ms is None else 0.25 * request.slo_ttft_ms
        if late[late.argmax()] > 0.0:
            self.terms["slow_start"] = parameters.slow_start_weight * np.maximum(late, 0.0)

    def cheapest(self, mask: Mask, rng: random.Random) -> int:
        """The slot of the smallest cost among at least one candidate; ties at random."""
        candidates = mask.nonzero()[0]
        costs = self.total[candidates]
        best = int(costs.argmin())
        ties = (costs <= costs[best] + TIE_MS).nonzero()[0]
        return int(candidates[ties[rng.randrange(len(ties))] if len(ties) > 1 else best])

    def forecast(self, slot: int) -> Forecast:
        """What is predicted for the request on one endpoint."""
        return Forecast(
            wait_ms=float(self._wait_ms[slot]),
            prefill_ms=float(self._prefill_ms[slot]),
            adapter_ms=0.0 if self._adapter_ms is None else float(self._adapter_ms[slot]),
            step_ms=float(self._step_ms[slot]),
            output_tokens=self._output,
            uncached_tokens=float(self._uncached[slot]),
            slot_ms=0.0 if self._slot_ms is None else float(self._slot_ms[slot]),
        )
