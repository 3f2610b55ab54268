"""What the default policy must do in whatever state: monotone, blind to numbering, repeatable, feasible."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_pools import request, spec
from poolpilot_picker.routing.cost_model import CostParameters
from poolpilot_picker.routing.predicted_finish import PredictedFinishPicker
from poolpilot_picker.routing.pricing import Pricing
from poolpilot_picker.routing.view import DecisionView
from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.endpoints import EndpointTable
from poolpilot_picker.state.samples import EngineSample

pytestmark = pytest.mark.usefixtures("both_cores")

NOW = 5_000_000.0
COUNT = 5
# The KV cache never full: of two full ones, that with more sequences in it has room again sooner.
LOADS = {
    "inflight": lambda draw: float(draw.choice((0, 1, 8, 60))),
    "prompt_tokens": lambda draw: draw.uniform(0, 90_000),
    "new_kv_tokens": lambda draw: draw.uniform(0, 60_000),
    "free_at_ms": lambda draw: NOW + draw.choice((-50.0, 20.0, 900.0)),
    "foreign": lambda draw: float(draw.choice((0, 3, 25))),
    "other_kv_tokens": lambda draw: draw.uniform(0, 60_000),
    "failure_ms": lambda draw: draw.choice((0.0, 400.0)),
}
seeds = st.integers(0, 100_000)


def make_state(seed: int) -> dict[str, Any]:
    """One number per endpoint for everything that a decision reads."""
    draw = random.Random(seed)
    state: dict[str, Any] = {name: [make(draw) for _ in range(COUNT)] for name, make in LOADS.items()}
    state["speed"] = [(draw.uniform(0.3, 3.0), draw.uniform(0.3, 3.0)) for _ in range(COUNT)]
    state["cached"] = [draw.choice((0.0, 900.0, 1_500.0)) for _ in range(COUNT)]
    state["adapters"] = [[draw.choice("abcdef") for _ in range(draw.randrange(6))] for _ in range(COUNT)]
    return state


def make_view(state: dict[str, Any], seed: int = 1, *, adapter: str = "", prompt: int = 2_000) -> DecisionView:
    table, adapters = EndpointTable(), AdapterResidency()
    table.apply(spec(n) for n in range(COUNT))
    adapters.resize(COUNT)
    for slot in range(COUNT):
        adapters.apply_sample(slot, EngineSample(taken_ms=NOW, max_adapters=2))
        table.set_speed(table.at(slot), *state["speed"][slot])
        for name in state["adapters"][slot]:
            adapters.book(slot, name)
    for name in LOADS:
        getattr(table, name)[:] = state[name]
    table.requests[:] = table.own_mean[:] = table.inflight
    table.foreign_mean[:] = table.foreign
    table.started_sum_ms[:] = table.inflight * NOW
    table.load_ms[:] = table.sample_ms[:] = NOW - 10.0
    return DecisionView(
        request=request(prompt_tokens=prompt),
        table=table,
        now=NOW,
        mask=table.eligible.copy(),
        cached_tokens=np.array(state["cached"]),
        indexed_tokens=np.zeros(COUNT),
        adapters=adapters,
        adapter=adapter,
        rng=random.Random(seed),
        hit_share=0.4,
    )


def costs(state: dict[str, Any], **more: Any) -> list[float]:
    total: list[float] = Pricing(CostParameters()).cost(make_view(state, **more)).total.tolist()
    return total


@given(seed=seeds, name=st.sampled_from(sorted(LOADS)), slot=st.integers(0, COUNT - 1), more=st.floats(0.01, 0.5))
def test_more_load_never_makes_an_endpoint_cheaper(seed, name, slot, more):
    state = make_state(seed)
    before = costs(state)
    value = state[name][slot]
    state[name][slot] = value + more * (1_000.0 if name == "free_at_ms" else abs(value) + 1.0)
    assert costs(state)[slot] >= before[slot] - 1e-9


@given(seed=seeds, slot=st.integers(0, COUNT - 1), more=st.floats(1.0, 1_000.0))
def test_more_of_the_prompt_in_its_cache_never_makes_an_endpoint_dearer(seed, slot, more):
    state = make_state(seed)
    state["cached"][slot] = 500.0
    before = costs(state)
    state["cached"][slot] += more
    after = costs(state)
    assert after[slot] < before[slot]
    # What the others' hits save counts from where least is cached: with more there, they can only be dearer.
    others = [number for number in range(COUNT) if number != slot]
    assert all(after[number] >= before[number] - 1e-9 for number in others)


@given(seed=seeds, slot=st.integers(0, COUNT - 1))
def test_an_adapter_in_its_memory_never_makes_an_endpoint_dearer(seed, slot):
    state = make_state(seed)
    state["adapters"][slot] = ["b"]
    cold = make_view(state, adapter="a")
    warm = make_view(state, adapter="a")
    warm.adapters.apply_sample(slot, EngineSample(taken_ms=NOW, resident_adapters=("a", "b")))
    pricing = Pricing(CostParameters())
    assert pricing.cost(warm).total[slot] < pricing.cost(cold).total[slot]


@given(seed=seeds, order=st.permutations(range(COUNT)), adapter=st.sampled_from(("", "a")))
def test_the_numbering_of_endpoints_changes_nothing(seed, order, adapter):
    state = make_state(seed)
    before = costs(state, adapter=adapter)
    after = costs({name: [values[old] for old in order] for name, values in state.items()}, adapter=adapter)
    assert after == pytest.approx([before[old] for old in order], rel=1e-12)


@given(seed=seeds, draw=st.integers(0, 9), adapter=st.sampled_from(("", "a", "z")))
def test_the_same_state_and_seed_give_the_same_pick(seed, draw, adapter):
    picker = PredictedFinishPicker()
    state = make_state(seed)
    picks = [picker.pick_unscored(make_view(state, draw, adapter=adapter)) for _ in range(2)]
    assert picks[0] == picks[1]


@given(seed=seeds, room=st.integers(0, COUNT - 1), prompt=st.sampled_from((100, 2_000, 40_000)))
def test_a_request_is_not_put_where_it_cannot_run_while_it_could_elsewhere(seed, room, prompt):
    state = make_state(seed)
    state |= {"failure_ms": [0.0] * COUNT, "foreign": [0.0] * COUNT}
    state |= {"speed": [(1.0, 1.0)] * COUNT, "cached": [0.0] * COUNT}
    view = make_view(state, prompt=prompt)
    table = view.table
    table.new_kv_tokens[:] = 0.0
    table.other_kv_tokens[:] = 1.2 * table.kv_tokens
    table.inflight[:] = table.requests[:] = 40.0
    table.prompt_tokens[:] = 40_000.0
    table.started_sum_ms[:] = 40.0 * NOW
    table.free_at_ms[:] = NOW
    table.other_kv_tokens[room] = 0.1 * table.kv_tokens[room]
    assert PredictedFinishPicker().pick_unscored(view) == [room]
