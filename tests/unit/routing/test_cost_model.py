"""The cost against the formula written out in plain numbers, and what each term must do."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_pools import request, spec
from poolpilot_picker.config.step_models import PROFILES
from poolpilot_picker.routing.cost_model import CostParameters
from poolpilot_picker.routing.pricing import Pricing
from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import EndpointTable
from poolpilot_picker.state.homes import Home
from poolpilot_picker.state.samples import EngineSample

pytestmark = pytest.mark.usefixtures("both_cores")

NOW = 5_000_000.0
PROFILE = "poolpilot.dev/profile"


def make_table(count, seed=None):
    """Idle endpoints, or with a seed endpoints in all kinds of states."""
    table = EndpointTable()
    names = list(PROFILES)
    table.apply(spec(n, **({PROFILE: names[n % len(names)]} if seed is not None else {})) for n in range(count))
    table.load_ms[:] = table.sample_ms[:] = NOW - 10.0
    if seed is None:
        return table
    rng = random.Random(seed)
    for endpoint in table:
        slot, busy = endpoint.slot, rng.choice((0, 1, 5, 40, 300))
        table.set_speed(endpoint, rng.uniform(0.3, 3.0), rng.uniform(0.3, 3.0))
        table.set_prefill_share(endpoint, rng.uniform(0.0, 0.7))
        table.inflight[slot] = table.requests[slot] = busy
        table.prompt_tokens[slot] = busy * rng.uniform(10, 9_000)
        table.expected_tokens[slot] = busy * rng.uniform(0, 900)
        table.new_kv_tokens[slot] = table.prompt_tokens[slot] * rng.random()
        table.started_sum_ms[slot] = busy * (NOW - rng.uniform(-5_000, 20_000))
        table.free_at_ms[slot] = NOW + rng.choice((-900.0, 0.0, 30.0, 4_000.0))
        table.foreign[slot] = rng.choice((0.0, 0.0, 7.0))
        table.foreign_mean[slot], table.own_mean[slot] = rng.choice((0.0, 9.0)), rng.choice((0.0, 0.5 * busy))
        table.other_kv_tokens[slot] = rng.choice((0.0, 50_000.0, 300_000.0))
        table.queued[slot] = rng.choice((0.0, 30.0))
        table.cache_trust[slot] = rng.random()
        table.failure_ms[slot] = rng.choice((0.0, 0.0, 1_500.0))
    return table


def make_view(
    table,
    *,
    cached=None,
    indexed=None,
    adapters=None,
    adapter="",
    output=300.0,
    rest=250.0,
    lent=None,
    reuse=None,
    home=None,
    adapter_home=(-1, 0.0),
    **asked,
):
    if adapters is None:
        adapters = AdapterResidency()
        adapters.resize(len(table))
    return DecisionView(
        request=request(**asked),
        table=table,
        now=NOW,
        mask=table.eligible.copy(),
        cached_tokens=np.zeros(len(table)) if cached is None else np.array(cached, dtype=float),
        adapters=adapters,
        adapter=adapter,
        rng=random.Random(1),
        expected_output=output,
        expected_rest=rest,
        lent=lent,
        reuse=reuse,
        home=home,
        adapter_home=adapter_home,
        hit_share=0.4,
        indexed_tokens=np.zeros(len(table)) if indexed is None else np.array(indexed, dtype=float),
    )


def written_out(view, slot, p):
    """The formula for one endpoint, term by term, without arrays."""
    t, load, asked = view.table, view.expected_load, view.request
    likely = [float(known) for known in view.cached_tokens]
    if view.home is not None:
        likely[view.home.slot] += view.home.tokens
    at = {name: float(getattr(t, name)[slot]) for name in ("inflight", "prompt_tokens", "expected_tokens")}
    step_ms, per_sequence, per_token = float(t.step_ms[slot]), float(t.sequence_ms[slot]), float(t.context_ms[slot])
    prompt, n, out, rest = float(asked.prompt_tokens), asked.sequences, view.expected_output, view.expected_rest
    batch, foreign = float(load.sequences[slot]), float(load.foreign[slot])

    own_step = step_ms + per_sequence * at["inflight"] + per_token * at["prompt_tokens"]
    elapsed = at["inflight"] * NOW - float(t.started_sum_ms[slot])
    generated = min(max(elapsed / own_step, 0.0), 2.0 * at["expected_tokens"])
    context = at["prompt_tokens"] + generated + foreign * (prompt + out / 2)
    decoding = min(batch, float(t.max_sequences[slot]))
    step_now = step_ms + per_sequence * decoding + per_token * context
    each = per_sequence + per_token * (prompt + out / 2)
    mean = float(load.sequences[t.eligible].mean())
    soon = batch if view.lent is None else max(batch, float(view.lent[slot]) * mean)
    step = (step_now + (n + soon - batch) * each) / (1.0 - float(t.prefill_share[slot]))

    u = max(1.0, prompt - likely[slot] * float(t.cache_trust[slot]))
    work = float(t.token_ms[slot]) * u + float(t.token2_ms[slot]) * (u * u + 2 * u * (prompt - u))
    prefill = work + math.ceil(u / max(256.0, float(t.token_budget[slot]) - batch)) * step_now
    queue = max(0.0, float(t.free_at_ms[slot]) - NOW)
    wait = queue + min(queue, float(t.half_chunk_ms[slot])) + min(0.5, 0.5 * batch) * step_now

    wanted = [s for s in range(len(t)) if t.mean_weight[s] > 0]
    most = max(max(1.0, prompt - likely[s] * float(t.cache_trust[s])) for s in wanted)
    in_full = float(t.token_ms[slot]) * most + float(t.token2_ms[slot]) * (most * most + 2 * most * (prompt - most))
    made_up = min(wait, max(0.0, in_full - work))

    queues = [max(0.0, float(t.free_at_ms[s]) - NOW) for s in range(len(t)) if view.mask[s]]
    others_weight = p.others_weight * (1.0 + min(20.0, min(queues) / p.backlog_ms))

    capacity = float(t.kv_tokens[slot])
    in_use = float(t.new_kv_tokens[slot]) + (float(load.other_kv[slot]) or generated) + u
    peak = (in_use + n * out + 0.5 * rest * batch) / capacity
    barrier = min(p.kv_barrier_most_ms, max(0.0, p.kv_barrier_ms * (peak - 0.9) / max(0.02, 1.05 - peak)))
    over = max(0.0, batch + n - float(t.max_sequences[slot]))
    if in_use > 0.98 * capacity:
        over = max(over, float(t.queued[slot]) + 1.0)
    admission = over * rest * step / max(1.0, decoding) if batch > 0 else 0.0
    fill = (float(view.indexed_tokens[slot]) + generated + u + out) / capacity
    mean_ms, mean2_ms = ((column * t.mean_weight).sum() for column in (t.token_ms, t.token2_ms))
    again = float(mean_ms) * u + float(mean2_ms) * (u * u + 2 * u * (prompt - u))
    again = again * (1.0 + others_weight * mean) + p.slow_start_weight * max(0.0, again - p.slow_start_ms)
    evicts = min(1.0, max(0.0, (fill - 0.95) / 0.1)) * view.hit_share
    evicts *= 1.0 if view.reuse is None else float(view.reuse[slot])

    load_ms = slot_ms = taken = displaced = 0.0
    if view.adapter:
        residency = view.adapters
        cold = view.adapter not in residency.resident(slot)
        slots = int(residency.adapter_slots()[slot])
        load_ms = p.adapter_load_ms if cold else 0.0
        home, hope = view.adapter_home
        load_ms *= 1.0 - hope if slot == home else 1.0
        displaced = p.adapter_eviction_weight * (len(residency.resident(slot)) >= slots)
        here = residency.inflight(slot)
        order = list(here)
        if view.adapter not in order[:slots] and len(order) >= slots:
            ahead = order.index(view.adapter) if view.adapter in order else len(order)
            freed = sum(0.5 ** (min(here[name], 6) - 1) for name in order[:slots])
            slot_ms = (ahead - slots + 1) / freed * rest * step
        everybody = [residency.inflight(s) for s in range(len(t))]
        waiting = sum(sum(list(one.values())[slots:]) for one in everybody)
        taken = waiting / (slots * len(t)) / (1 + here.get(view.adapter, 0)) * out * step

    ttft = wait + admission + prefill + load_ms + slot_ms
    target = p.slow_start_ms if asked.slo_ttft_ms is None else asked.slo_ttft_ms / 4
    mixed = p.fleet_share * mean + (1.0 - p.fleet_share) * soon
    return {
        "wait": p.wait_weight * (wait - made_up) + min(p.hit_wait_weight, p.wait_weight) * made_up,
        "prefill": prefill,
        "admission": 2.0 * admission,
        "adapter": load_ms * (1.0 + batch + displaced),
        "adapter_slot": slot_ms + p.adapter_slot_weight * taken,
        "slow_start": p.slow_start_weight * max(0.0, ttft - target),
        "decode": p.own_decode_weight * out * p.decode_horizon / (p.decode_horizon + out) * step,
        "delay_prefill": others_weight * mixed * work,
        "eviction": p.eviction_weight * evicts * again,
        "kv_peak": barrier,
        "failures": float(t.failure_ms[slot]),
    }, ttft


@given(
    seed=st.integers(0, 10_000),
    prompt=st.sampled_from((0, 1, 300, 4_000, 90_000)),
    output=st.sampled_from((1.0, 300.0, 4_000.0)),
    sequences=st.sampled_from((1, 1, 8)),
    target=st.none() | st.floats(10.0, 5_000.0),
    adapter=st.sampled_from(("", "", "a", "b")),
)
def test_equals_the_formula_written_out(seed, prompt, output, sequences, target, adapter):
    rng = random.Random(seed)
    table, adapters = make_table(5, seed), AdapterResidency()
    adapters.resize(5)
    for slot in range(5):
        adapters.apply_sample(slot, EngineSample(taken_ms=NOW, max_adapters=2))
        for name in rng.choices("abcd", k=rng.randrange(7)):
            adapters.book(slot, name)
    view = make_view(
        table,
        prompt_tokens=prompt,
        sequences=sequences,
        slo_ttft_ms=target,
        output=output,
        cached=[rng.choice((0.0, max(0.0, prompt - 1.0) * rng.random())) for _ in range(5)],
        indexed=[rng.choice((0.0, 180_000.0, 500_000.0)) for _ in range(5)],
        adapters=adapters,
        adapter=adapter,
        lent=rng.choice((None, np.array([0.0, 0.3, 1.0, 0.0, 0.7]))),
        reuse=rng.choice((None, np.array([0.0, 0.9, 1.0, 0.2, 0.5]))),
        home=rng.choice((None, Home(rng.randrange(5), prompt, 0.3 * prompt))),
        adapter_home=rng.choice(((-1, 0.0), (rng.randrange(5), 0.75))),
    )
    parameters = CostParameters()
    model = Pricing(parameters).cost(view)
    for slot in range(5):
        terms, ttft = written_out(view, slot, parameters)
        for name, value in terms.items():
            found = float(model.terms[name][slot]) if name in model.terms else 0.0
            assert found == pytest.approx(value), name
        assert model.total[slot] == pytest.approx(sum(terms.values()))
        assert model.forecast(slot).ttft_ms == pytest.approx(ttft)


def cost_of(table, **more):
    return Pricing(CostParameters()).cost(make_view(table, **more))


def test_an_idle_pool_of_equals_costs_the_same_everywhere():
    model = cost_of(make_table(6))
    assert np.ptp(model.total) == 0.0
    assert set(model.terms) == {"wait", "prefill", "decode", "delay_prefill"}
    assert model.forecast(0).wait_ms == 0.0


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("inflight", 10.0),
        ("foreign", 10.0),
        ("prompt_tokens", 200_000.0),
        ("free_at_ms", NOW + 100.0),
        ("other_kv_tokens", 299_000.0),
        ("failure_ms", 50.0),
        ("token_ms", 1.0),
        ("step_ms", 100.0),
        ("interference", 3.0),
    ],
)
def test_everything_that_is_worse_costs_more(column, value):
    table = make_table(2)
    getattr(table, column)[1] = value
    model = cost_of(table)
    assert model.total[1] > model.total[0]


def test_a_full_cache_gives_away_what_is_hardly_asked_for_again():
    table = make_table(3)
    full = np.array([float(table.kv_tokens[0])] * 3)
    model = cost_of(table, prompt_tokens=5_000, indexed=full, reuse=np.array([1.0, 0.1, 0.5]))
    evicted = model.terms["eviction"]
    assert evicted[1] < evicted[2] < evicted[0] and model.total.argmin() == 1
    assert evicted[2] == pytest.approx(0.5 * evicted[0])
    # Nothing told: all of it may be asked for again.
    assert cost_of(table, prompt_tokens=5_000, indexed=full).terms["eviction"][0] == evicted[0]
    assert "eviction" not in cost_of(table, prompt_tokens=5_000, indexed=0.5 * full).terms


def test_what_a_fast_endpoint_evicts_is_worth_no_less():
    table = make_table(3)
    table.token_ms[1] *= 0.5
    model = cost_of(table, prompt_tokens=5_000, indexed=np.array([float(table.kv_tokens[0])] * 3))
    assert np.ptp(model.terms["eviction"]) == 0.0
    assert model.total.argmin() == 1


def test_a_hit_is_worth_the_prefill_that_it_saves_as_far_as_it_is_trusted():
    table = make_table(3)
    table.cache_trust[2] = 0.0
    model = cost_of(table, prompt_tokens=5_000, cached=[0.0, 4_000.0, 4_000.0])
    assert model.total[1] < model.total[0] == model.total[2]
    assert model.forecast(1).uncached_tokens == 1_000 and model.forecast(2).uncached_tokens == 5_000
    blind = Pricing(CostParameters(use_cache=False)).cost(
        make_view(table, prompt_tokens=5_000, cached=[0.0, 4_000.0, 4_000.0])
    )
    assert np.ptp(blind.total) == 0.0


def test_a_wait_weighs_once_as_far_as_the_hit_makes_up_for_it():
    table = make_table(2)
    prefill_ms = float(cost_of(table, prompt_tokens=5_000).terms["prefill"][0])
    weights = CostParameters()
    for queue_ms in (0.3 * prefill_ms, 2.0 * prefill_ms):
        table.free_at_ms[0] = NOW + queue_ms
        wait_ms = queue_ms + min(queue_ms, float(table.half_chunk_ms[0]))
        cold = cost_of(table, prompt_tokens=5_000)
        assert cold.terms["wait"][0] == pytest.approx(weights.wait_weight * wait_ms)
        warm = cost_of(table, prompt_tokens=5_000, cached=[4_950, 0])
        made_up = min(wait_ms, table.token_ms[0] * 4_950 + table.token2_ms[0] * 4_950**2)
        expected = weights.wait_weight * (wait_ms - made_up) + weights.hit_wait_weight * made_up
        assert warm.terms["wait"][0] == pytest.approx(expected)


def test_delay_to_others_weighs_more_while_prefill_is_queued_wherever_the_request_may_go():
    table = make_table(3)
    table.inflight[:] = table.requests[:] = [0.0, 10.0, 30.0]

    def delay(*queues_ms, without=()):
        table.free_at_ms[:] = [NOW + queue_ms for queue_ms in queues_ms]
        view = make_view(table)
        view.mask[list(without)] = False
        return Pricing(CostParameters()).cost(view).terms["delay_prefill"]

    once = delay(0.0, 0.0, 0.0)
    assert delay(0.0, 9_000.0, 9_000.0).tolist() == once.tolist(), "one could begin at once"
    assert delay(100.0, 9_000.0, 9_000.0) == pytest.approx(2.0 * once)
    assert delay(0.0, 100.0, 9_000.0, without=[0]) == pytest.approx(2.0 * once), "not there, and so not here"
    assert delay(2_000.0, 9_000.0, 9_000.0) == pytest.approx(21.0 * once)
    assert delay(60_000.0, 90_000.0, 90_000.0) == pytest.approx(21.0 * once), "waits that differ still count"


def test_the_barrier_is_steep_and_bounded():
    table = make_table(4)
    table.other_kv_tokens[:] = [0.5 * 300_000, 0.93 * 300_000, 300_000, 300_000_000]
    terms = cost_of(table, prompt_tokens=100).terms["kv_peak"]
    assert terms[0] == 0.0
    assert 0 < terms[1] < 1_000 < terms[2] <= terms[3] == CostParameters().kv_barrier_most_ms


def test_what_the_engine_tells_of_its_cache_goes_before_what_is_reckoned():
    table = make_table(3)
    table.inflight[:], table.expected_tokens[:] = 20.0, 20 * 8_000.0
    table.started_sum_ms[:] = 20.0 * (NOW - 1_000_000.0)
    assert table.generated_tokens(NOW).tolist() == [2 * 20 * 8_000.0] * 3
    table.other_kv_tokens[:] = [0.5 * 300_000, 0.0, 0.99 * 300_000]
    terms = cost_of(table, prompt_tokens=100).terms
    assert terms["kv_peak"][0] == terms["admission"][0] == 0.0
    assert terms["kv_peak"][1:].min() > 0.0 and terms["admission"][1:].min() > 0.0, "not told, and full"


def test_without_the_wait_term_a_queue_is_not_seen():
    table = make_table(2)
    table.free_at_ms[1] = NOW + 9_000.0
    assert Pricing(CostParameters(use_wait=False)).cost(make_view(table)).total.tolist()[0] == pytest.approx(
        Pricing(CostParameters(use_wait=False)).cost(make_view(table)).total.tolist()[1]
    )


def test_free_slots_do_no_harm():
    table = make_table(3)
    table.apply([spec(0), spec(2)])
    with np.errstate(all="raise"):
        model = cost_of(table)
    assert np.isfinite(model.total).all()
    assert model.total[0] == model.total[2]


def test_the_cost_in_figures_worked_out_by_hand():
    # Llama-3.1-8B on an H100, 20 sequences with 1,000 context tokens each there, 100 ms of prefill in its queue.
    table = EndpointTable()
    table.apply(spec(n, **{PROFILE: "llama-3.1-8b-h100"}) for n in range(2))
    table.load_ms[:] = table.sample_ms[:] = NOW - 10.0
    table.inflight[0] = table.requests[0] = 20.0
    table.prompt_tokens[0] = 20_000.0
    table.started_sum_ms[0] = 20 * NOW
    table.free_at_ms[0] = NOW + 100.0
    cost = cost_of(table, prompt_tokens=1_000, output=200.0, cached=[600.0, 0.0])
    # A step: 7.67159 + 20 × 0.056317 + 20,000 × 4.14769e-5 = 9.627468 ms; with one more of 1,100 tokens 9.729409 ms.
    # Prefill of 400 tokens behind 600: 400 × 0.0200381 + 4.05764e-7 × (400² + 2·400·600) = 8.274929 ms.
    # The hit saves 600 × 0.0200381 + 4.05764e-7 × 600² = 12.168935 ms, and so much of the wait weighs 1.
    wait = 100 + 20.519014 + 4.813734
    assert cost.terms["wait"].tolist() == pytest.approx([4 * (wait - 12.168935) + 12.168935, 0.0], abs=1e-4)
    assert cost.terms["prefill"].tolist() == pytest.approx([8.274929 + 9.627468, 20.443864 + 7.67159], abs=1e-4)
    # 200 tokens count as 200 ÷ 1.1, each at half of its time.
    assert cost.terms["decode"].tolist() == pytest.approx([9.729409 * 100 / 1.1, 7.773532 * 100 / 1.1], abs=1e-3)
    # Of its prefill's delay 0.3 for 0.3 × 10 sequences, the mean, and 0.7 × its own.
    assert cost.terms["delay_prefill"].tolist() == pytest.approx([0.3 * 17 * 8.274929, 0.3 * 3 * 20.443864], abs=1e-4)
    assert set(cost.terms) == {"wait", "prefill", "decode", "delay_prefill"}
    assert cost.forecast(0).ttft_ms == pytest.approx(100 + 20.519014 + 4.813734 + 8.274929 + 9.627468, abs=1e-4)


def test_who_waits_for_a_gpu_slot_waits_for_the_answers_before_it():
    adapters = AdapterResidency()
    adapters.resize(2)
    for slot in (0, 1):
        adapters.apply_sample(slot, EngineSample(taken_ms=NOW, max_adapters=2))
    for name in ("a", "b", "b"):
        adapters.book(0, name)
    cost = cost_of(make_table(2), adapters=adapters, adapter="c", rest=100.0)
    # One slot is given back per answer by a's, half a one by b's.
    assert cost.forecast(0).slot_ms == pytest.approx(100.0 * cost.forecast(0).step_ms / 1.5)
    assert cost.forecast(1).slot_ms == 0.0
    assert cost_of(make_table(2), adapters=adapters, adapter="b").forecast(0).slot_ms == 0.0


def test_while_requests_wait_for_gpu_slots_an_adapter_that_runs_takes_no_other_one():
    adapters = AdapterResidency()
    adapters.resize(3)
    for slot in range(3):
        adapters.apply_sample(slot, EngineSample(taken_ms=NOW, max_adapters=1, resident_adapters=("a",)))
    adapters.book(1, "a")
    free = cost_of(make_table(3), adapters=adapters, adapter="a")
    assert np.ptp(free.terms["adapter_slot"]) == 0.0
    for _ in range(6):
        adapters.book(2, "x")
        adapters.book(2, "y")
    short = cost_of(make_table(3), adapters=adapters, adapter="a").terms["adapter_slot"]
    assert 0.0 < short[1] < short[0] < short[2]


def test_an_endpoint_that_has_just_joined_counts_as_loaded():
    table = make_table(3)
    table.inflight[:2] = 30.0
    plain = cost_of(table)
    lent = cost_of(table, lent=np.array([0.0, 0.0, 1.0]))
    assert lent.total[:2].tolist() == plain.total[:2].tolist()
    assert plain.total[2] < lent.total[2] < lent.total[0]
