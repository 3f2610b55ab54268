"""Anything in any order: after every step the pool's arrays equal what a plain list of open placements says."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from core_pools import START, make_pool, request
from poolpilot_picker import compiled
from poolpilot_picker.errors import NoEndpoints
from poolpilot_picker.flow.outcome import Outcome
from poolpilot_picker.flow.pool import LOST_AFTER_MS, PoolSettings
from poolpilot_picker.requests.request import RequestKind
from poolpilot_picker.routing.cost_model import CostParameters
from poolpilot_picker.routing.pricing import Pricing
from poolpilot_picker.state.columns import COLUMNS
from poolpilot_picker.state.endpoints import EndpointSpec
from poolpilot_picker.state.load import LoadEstimate
from poolpilot_picker.state.prefix import ASSUMED_TOKENS
from poolpilot_picker.state.samples import EngineSample, HistogramTotals, ServedModels

HOSTS = tuple(f"10.0.0.{index}" for index in range(1, 6))
ADAPTERS = ("a", "b", "c", "d")
MAY_BE_NAN = {"running", "waiting", "kv_usage", "kv_capacity"}
MAY_BE_NEVER = {"sample_ms", "load_ms", "preempting_until_ms"}
OF_THE_PROFILE = {
    *("kv_tokens", "max_sequences", "token_budget", "step_ms", "sequence_ms", "context_ms", "token_ms", "token2_ms"),
    *("half_chunk_ms", "prefill_speed", "decode_speed", "mean_weight"),
}

specs = st.dictionaries(st.sampled_from(HOSTS), st.sampled_from(("", "one", "two")), max_size=5).map(
    lambda chosen: [
        EndpointSpec(host=host, port=8000, uid=f"{host}-{uid}" if uid else "") for host, uid in chosen.items()
    ]
)
gauges = st.none() | st.just(0.0) | st.sampled_from((math.nan, math.inf, -1.0)) | st.floats(0, 300)
totals = st.none() | st.builds(HistogramTotals, st.floats(0, 1e6) | st.just(math.nan), st.floats(0, 1e6))
counters = st.none() | st.floats(0, 1e9)
asked = st.fixed_dictionaries(
    {
        "tokens": st.sampled_from((500, 2_000, 90_000, 400_000, 0, 1)),
        "limit": st.none() | st.integers(0, 5_000),
        "sequences": st.sampled_from((1, 1, 4)),
        "model": st.sampled_from((*ADAPTERS, "base", "unknown", "")),
        "head": st.sampled_from("xyz"),
        "kind": st.sampled_from((RequestKind.CHAT, RequestKind.CHAT, RequestKind.EMBEDDINGS, RequestKind.OTHER)),
        "subset": st.sampled_from((None,) * 6)
        | st.lists(st.sampled_from([*HOSTS, f"{HOSTS[0]}:8000", "1.2.3.4"]), max_size=3).map(tuple),
    }
)
names = st.none() | st.lists(st.sampled_from(ADAPTERS), max_size=5).map(tuple)


class PoolMachine(RuleBasedStateMachine):
    """`open` is the model: placements not finished, each at its endpoint object."""

    placements = Bundle("placements")

    core = compiled.load()

    def __init__(self):
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(compiled, "in_force", self.core)
        self.now = START
        self.open = {}
        self.wanted = {}
        self.ever = []
        self.steps = 0

    @initialize(initial=specs.filter(len), listed=st.booleans(), seed=st.integers(0, 9))
    def begin(self, initial, listed, seed):
        self.pool = make_pool([], seed=seed, settings=PoolSettings(receipt_share=0.5))
        self.table = self.pool.table
        self._apply(initial)
        for endpoint in self.table:
            self.pool.apply_served_models(
                endpoint, ServedModels(base=("base",), adapters=dict.fromkeys(ADAPTERS, "base")) if listed else None
            )

    def _apply(self, wanted):
        before = set(self.table)
        added, removed = self.pool.apply_endpoints(wanted)
        kept = {item.key for item in wanted} & set(self.wanted)
        assert {e.spec.key for e in added} == {item.key for item in wanted} - kept
        assert {e.spec.key for e in removed} == set(self.wanted) - {item.key for item in wanted}
        self.wanted = {item.key: item for item in wanted}
        for endpoint in (endpoint for endpoint in self.table if endpoint not in before):
            assert not any(endpoint is other for other in self.ever)
            self.ever.append(endpoint)
            self._starts_cold(endpoint)

    def _starts_cold(self, endpoint):
        slot, pool = endpoint.slot, self.pool
        for name in set(COLUMNS) - OF_THE_PROFILE:
            value, start = getattr(self.table, name)[slot], COLUMNS[name][0]
            assert value == start or (math.isnan(value) and math.isnan(start)), name
        assert pool.prefixes.tokens()[slot] == 0 and pool.prefixes.capacity(slot) == ASSUMED_TOKENS
        assert pool.adapters.served(slot) is None and pool.adapters.resident(slot) == ()
        assert pool.adapters.active(slot) == pool.adapters.waiting(slot) == ()
        assert not pool.adapters.inflight(slot) and not pool.adapters.told_mask()[slot]

    @precondition(lambda self: self.steps % 5 == 0)
    @rule(wanted=specs)
    def discover(self, wanted):
        self._apply(wanted)

    @rule(ms=st.sampled_from((0.0, 1.0, 40.0, 800.0, 6_000.0, 40_000.0, 700_000.0)))
    def wait(self, ms):
        self.now += ms

    @rule(target=placements, burst=st.lists(asked, min_size=1, max_size=6))
    def place(self, burst):
        placed = [self._place(**values) for values in burst]
        return multiple(*(placement for placement in placed if placement is not None))

    def _place(self, *, tokens, limit, sequences, model, head, kind, subset):
        wanted = request(
            tokens,
            model=model,
            max_tokens=limit,
            sequences=sequences,
            prefix=[(head, min(tokens, 4_000) // 2), (len(self.ever) % 3, min(tokens, 4_000) // 2)],
            kind=kind,
            subset=subset,
        )
        allowed = {
            item.address
            for item in self.wanted.values()
            if subset is None or item.host in subset or item.address in subset
        }
        if not allowed:
            with pytest.raises(NoEndpoints):
                self.pool.place(wanted, self.now)
            return None
        placement = self.pool.place(wanted, self.now)
        booking = placement.booking
        destinations = placement.destination.split(",")
        assert destinations[0] == booking.endpoint.address
        assert len(set(destinations)) == len(destinations)
        assert set(destinations) <= allowed
        assert booking.endpoint.spec == self.wanted[booking.endpoint.spec.key]
        if kind is not RequestKind.EMBEDDINGS:
            assert 0 <= booking.expected_output <= (math.inf if limit is None else limit)
        assert 1 <= booking.uncached_tokens <= max(1, tokens)
        assert booking.first_ms >= self.now
        assert 0 <= placement.predicted.ttft_ms < math.inf
        self.open[id(placement)] = placement
        return placement

    @rule(placement=placements, host=st.sampled_from([*HOSTS, "9.9.9.9"]), attempts=st.integers(1, 3))
    def served(self, placement, host, attempts):
        before = placement.booking.endpoint
        finished = id(placement) not in self.open
        moved = self.pool.served(placement, f"{host}:8000", self.now, attempts=attempts)
        after = placement.booking.endpoint
        assert moved is (after is not before)
        if finished or before.address == f"{host}:8000":
            assert not moved
        if moved:
            assert after.address == f"{host}:8000"

    @rule(placement=placements)
    def first_token(self, placement):
        self.pool.first_token(placement, self.now)

    @rule(placement=placements, prompt=st.none() | st.integers(0, 10_000), output=st.none() | st.integers(0, 10_000))
    def usage(self, placement, prompt, output):
        self.pool.usage(placement, prompt, output)

    @rule(placement=placements, outcome=st.sampled_from(Outcome))
    def finish(self, placement, outcome):
        assert self.pool.finish(placement, outcome, self.now) is (self.open.pop(id(placement), None) is not None)

    @rule(placement=consumes(placements), outcome=st.sampled_from(Outcome))
    def finish_for_good(self, placement, outcome):
        self.finish(placement, outcome)

    @precondition(lambda self: self.ever)
    @rule(
        which=st.integers(0, 100),
        late=st.sampled_from((0.0, 5.0, 300.0, 20_000.0)),
        running=gauges,
        waiting=gauges,
        usage=st.none() | st.sampled_from((math.nan, 0.0, 0.3, 0.97, 1.0)),
        facts=st.fixed_dictionaries(
            {},
            optional={
                "kv_capacity_tokens": st.sampled_from((2_000, 50_000, 400_000)),
                "max_sequences": st.sampled_from((2, 256)),
                "prefix_caching": st.booleans(),
                "max_adapters": st.integers(1, 4),
                "active_adapters": names,
                "waiting_adapters": names,
                "resident_adapters": names,
                "preemptions": counters,
                "generated_tokens": counters,
                "requests_succeeded": counters,
                "cached_prompt_tokens": counters,
                "ttft": totals,
                "inter_token": totals,
            },
        ),
    )
    def sample(self, which, late, running, waiting, usage, facts):
        endpoint = self.ever[which % len(self.ever)]
        sample = EngineSample(taken_ms=self.now - late, running=running, waiting=waiting, kv_usage=usage, **facts)
        self.pool.apply_sample(endpoint, sample, self.now)
        # The backstop: an idle engine does not have what was placed there more than ten minutes before.
        for key, placement in list(self.open.items()):
            booking = placement.booking
            old = booking.placed_ms < self.now - late - LOST_AFTER_MS
            if running == 0 and not waiting and booking.endpoint is endpoint and booking.inference and old:
                assert booking.released
                del self.open[key]

    @precondition(lambda self: self.ever)
    @rule(
        which=st.integers(0, 100),
        served=st.none()
        | st.builds(
            ServedModels,
            base=st.just(("base",)),
            adapters=st.lists(st.sampled_from(ADAPTERS)).map(lambda listed: dict.fromkeys(listed, "base")),
        ),
    )
    def models(self, which, served):
        self.pool.apply_served_models(self.ever[which % len(self.ever)], served)

    @precondition(lambda self: self.ever)
    @rule(which=st.integers(0, 100))
    def restart(self, which):
        self.pool.restarted(self.ever[which % len(self.ever)], self.now)

    # ---- what must hold after each

    def _at(self, endpoint):
        return [p.booking for p in self.open.values() if p.booking.endpoint is endpoint]

    @invariant()
    def count(self):
        self.steps += 1

    @invariant()
    def the_table_holds_who_is_wanted_and_who_still_has_bookings(self):
        table = self.table
        assert len(table) == 0 or table.slots[-1] is not None
        assert {e.spec.key for e in table.wanted()} == set(self.wanted)
        for slot, endpoint in enumerate(table.slots):
            if endpoint is None:
                assert not table.eligible[slot]
                for name, (start, _) in COLUMNS.items():
                    value = getattr(table, name)[slot]
                    assert value == start or (math.isnan(value) and math.isnan(start)), name
                continue
            assert endpoint.slot == slot
            assert table.eligible[slot] == (not endpoint.draining)
            assert endpoint.draining == (self.wanted.get(endpoint.spec.key) is None)
            assert not endpoint.draining or self._at(endpoint)
        held = set(table)
        assert all(placement.booking.endpoint in held for placement in self.open.values())
        for item in self.wanted.values():
            found = table.find(item.address)
            assert found is not None and found.spec == item
        assert table.mean_weight.sum() == pytest.approx(1.0 if self.wanted else 0.0)

    @invariant()
    def the_columns_are_the_sums_over_the_open_bookings(self):
        table = self.table
        assert len(self.pool.ledger) == len(self.open)
        for endpoint in table:
            slot, held = endpoint.slot, self._at(endpoint)
            assert set(self.pool.ledger.at(endpoint)) == set(held)
            prefilling = [b for b in held if not b.phase]
            sums = {
                "requests": len(held),
                "inflight": sum(b.sequences for b in held),
                "prompt_tokens": sum(b.prompt_tokens * b.sequences for b in held),
                "expected_tokens": sum(b.expected_output * b.sequences for b in held),
                "new_kv_tokens": sum(b.uncached_tokens for b in held),
                "uncached_tokens": sum(b.uncached_tokens for b in prefilling),
                "started_sum_ms": sum(b.first_ms * b.sequences for b in held),
            }
            for name, wanted in sums.items():
                assert getattr(table, name)[slot] == pytest.approx(wanted, abs=1e-3), name
            if not held:
                assert all(getattr(table, name)[slot] == 0.0 for name in sums)

    @invariant()
    def adapters_in_flight_are_those_of_the_open_bookings(self):
        adapters, others = self.pool.adapters, self.pool.homes.others > 0.0
        for endpoint in self.table:
            slot = endpoint.slot
            counted = Counter(b.adapter for b in self._at(endpoint) if b.adapter)
            assert adapters.inflight(slot) == dict(counted)
            assert adapters.busy_slots()[slot] == len(counted)
            theirs, behind = set(), set()
            if others:
                ours = {*counted, *adapters._slots[slot].ended}
                theirs = {name for name in adapters.active(slot) if name not in ours}
                behind = {name for name in adapters.waiting(slot) if name not in ours and name not in theirs}
            waiting = list(adapters.inflight(slot).values())[
                max(0, int(adapters.adapter_slots()[slot]) - len(theirs)) :
            ]
            assert adapters.not_deferred(slot, 1e6) == 1e6 - sum(waiting) - len(behind)
        for name in ADAPTERS:
            held = [name in adapters.resident(slot) for slot in range(len(self.table))]
            used = adapters.resident_mask(name).tolist()
            assert used == held or (others and all(here or not one for one, here in zip(used, held, strict=True)))
            for mask, listed in (
                (adapters.is_active_mask(name), adapters.active),
                (adapters.is_waiting_mask(name), adapters.waiting),
            ):
                assert mask.tolist() == [name in listed(slot) for slot in range(len(self.table))]

    @invariant()
    def the_prefix_index_is_consistent_and_within_capacity(self):
        index = self.pool.prefixes
        assert len(index.tokens()) == len(self.table)
        held = [index.held(slot) for slot in range(len(self.table))]
        for slot, blocks in enumerate(held):
            assert len(set(blocks)) == len(blocks)
            assert (index.tokens()[slot] > 0) == bool(blocks)
            assert index.tokens()[slot] <= index.capacity(slot)
            if self.table.slots[slot] is None:
                assert not blocks
        assert index.entries == sum(map(len, held))
        assert len(index) == len({block for blocks in held for block in blocks})

    @invariant()
    def what_a_formula_reads_is_finite(self):
        table = self.table
        for name in COLUMNS:
            column = getattr(table, name)
            assert len(column) == len(table)
            if name in MAY_BE_NEVER:
                assert not np.isnan(column).any() and not np.isposinf(column).any()
            elif name not in MAY_BE_NAN:
                assert np.isfinite(column).all(), name
        for name in ("inflight", "requests", "new_kv_tokens", "uncached_tokens", "foreign", "other_kv_tokens"):
            assert (getattr(table, name) > -1e-6).all(), name
        for name in ("prefill_speed", "decode_speed"):
            assert ((getattr(table, name) >= 0.24) & (getattr(table, name) <= 4.1)).all()
        assert ((table.cache_trust >= 0) & (table.cache_trust <= 1)).all()
        assert ((table.prefill_share >= 0) & (table.prefill_share <= 0.7)).all()
        assert ((table.failure_ms >= 0) & (table.failure_ms <= 20_000)).all()

    @invariant()
    def a_decision_could_be_made(self):
        if not self.wanted:
            return
        view = self.pool._view(request(700, prefix=[("x", 640)], model="a"), self.now)
        load = LoadEstimate(self.table, self.now, 10_000.0)
        assert (load.sequences >= self.table.inflight).all() and np.isfinite(load.sequences).all()
        cost = Pricing(CostParameters()).cost(view)
        assert np.isfinite(cost.total).all() and (cost.total >= 0).all()
        assert (view.cached_tokens <= 699).all()

    @invariant()
    def nothing_is_kept_of_who_is_gone(self):
        there = set(self.table)
        assert set(self.pool._learners._of) == there
        assert self.pool._learners._failing <= there
        assert set(self.pool._readings._preemptions) <= there
        assert set(self.pool.ledger._accounts) <= there

    def teardown(self):
        """Whatever happened: when all exchanges have ended, nothing is left."""
        self._patch.undo()
        if not hasattr(self, "pool"):
            return
        for placement in self.open.values():
            self.pool.finish(placement, Outcome.ABORTED, self.now)
        assert len(self.pool.ledger) == 0
        assert not self.table.requests.any() and not self.table.inflight.any()
        self.pool.apply_endpoints([])
        assert len(self.table) == 0
        assert len(self.pool.prefixes) == 0


class ReferencePoolMachine(PoolMachine):
    """The same without the compiled core."""

    core = None


TestPool, TestReferencePool = PoolMachine.TestCase, ReferencePoolMachine.TestCase
TestPool.settings = TestReferencePool.settings = settings(
    max_examples=20, stateful_step_count=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
