"""Slots: kept by who stays, freed by the last release, reused cold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_pools import spec
from poolpilot_picker.config.step_models import GENERIC, PROFILES, StepModel
from poolpilot_picker.state.columns import COLUMNS
from poolpilot_picker.state.endpoints import EndpointSpec, EndpointTable


def addresses(endpoints):
    return [endpoint.address for endpoint in endpoints]


def test_who_stays_keeps_slot_and_numbers():
    table = EndpointTable()
    added, removed = table.apply([spec(0), spec(1), spec(2)])
    assert addresses(added) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"] and removed == []
    table.free_at_ms[2] = 7.0
    added, removed = table.apply([spec(2), spec(3)])
    assert addresses(added) == ["10.0.0.4:8000"]
    assert addresses(removed) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert table.find("10.0.0.3:8000").slot == 2 and table.free_at_ms[2] == 7.0
    # The new one took a free slot, cold.
    assert table.find("10.0.0.4:8000").slot == 0
    assert table.find("10.0.0.1:8000") is None
    assert table.eligible.tolist() == [True, False, True]
    assert table.mean_weight.tolist() == [0.5, 0.0, 0.5]


def test_a_removed_endpoint_with_bookings_drains_and_comes_back_as_itself():
    table = EndpointTable()
    [endpoint], _ = table.apply([spec(0)])
    table.requests[0] = 1
    table.apply([])
    assert endpoint.draining and table.holds(endpoint) and not table.eligible[0]
    assert table.find(endpoint.address) is None and table.find_draining(endpoint.address) is endpoint
    added, _ = table.apply([spec(0)])
    assert added == [endpoint] and not endpoint.draining and table.eligible[0]
    table.apply([])
    table.requests[0] = 0
    assert table.drop_if_idle(endpoint)
    assert not table.holds(endpoint) and len(table) == 0
    assert not table.drop_if_idle(endpoint)


def test_an_address_with_another_uid_is_another_endpoint():
    table = EndpointTable()
    [old], _ = table.apply([spec(0, uid="a")])
    table.requests[0] = 1
    table.prefill_speed[0] = 3.0
    [new], [removed] = table.apply([spec(0, uid="b")])
    assert removed is old and new is not old and new.slot == 1
    assert table.find(old.address) is new and table.find_draining(old.address) is old
    assert table.prefill_speed[1] == 1.0
    # The same uid on another port is another one, too.
    added, _ = table.apply([spec(0, uid="b"), spec(0, uid="b", port=8001)])
    assert addresses(added) == ["10.0.0.1:8001"]


def test_the_arrays_shrink_with_the_pool():
    table = EndpointTable()
    table.apply(spec(index) for index in range(100))
    assert len(table.inflight) == 100
    table.apply([spec(0), spec(1)])
    assert len(table) == len(table.inflight) == len(table.eligible) == 2
    table.apply(spec(index) for index in range(50))
    assert len(table) == 50 and (table.requests == 0).all()


def test_a_changed_label_changes_the_profile_and_keeps_what_the_engine_told():
    table = EndpointTable()
    [endpoint], _ = table.apply([spec(0)])
    assert endpoint.model == GENERIC
    table.set_kv_capacity(endpoint, 1234.0)
    table.set_speed(endpoint, 2.0, 3.0)
    added, removed = table.apply([spec(0, **{"poolpilot.dev/profile": "qwen3-32b-h100-tp2"})])
    assert added == removed == []
    model = PROFILES["qwen3-32b-h100-tp2"]
    assert endpoint.model == model
    assert table.step_ms[0] == pytest.approx(3 * model.step_ms)
    assert table.token_ms[0] == pytest.approx(2 * model.token_ms)
    assert table.half_chunk_ms[0] == pytest.approx(model.token_budget * model.token_ms)
    assert table.kv_tokens[0] == 1234.0
    assert table.max_sequences[0] == model.max_sequences


def test_the_same_endpoint_named_twice_is_one():
    table = EndpointTable()
    added, _ = table.apply([spec(0), spec(0)])
    assert len(added) == len(table) == 1


def test_ipv6_addresses_carry_brackets():
    assert EndpointSpec(host="fd00::1", port=80).address == "[fd00::1]:80"


def test_a_free_slot_has_no_endpoint():
    table = EndpointTable()
    table.apply([spec(0), spec(1)])
    table.apply([spec(1)])
    with pytest.raises(LookupError, match="slot 0 is free"):
        table.at(0)


def test_generated_tokens_are_time_over_steps_up_to_twice_the_expectation():
    table = EndpointTable(lambda _: StepModel(10.0, 0.0, 0.0, 0.0, 0.0))
    table.apply([spec(0), spec(1), spec(2), spec(3)])
    table.inflight[:] = [2, 1, 1, 0]
    table.expected_tokens[:] = [200, 5, 100, 0]
    table.started_sum_ms[:] = [2 * 900.0, 0.0, 2_000.0, 0.0]
    assert table.generated_tokens(1_000.0).tolist() == [20.0, 10.0, 0.0, 0.0]


@given(st.lists(st.sets(st.integers(0, 12)), max_size=12), st.data())
def test_any_sequence_of_wanted_sets(steps, data):
    table = EndpointTable()
    for wanted in steps:
        busy = data.draw(st.sets(st.sampled_from(range(len(table)))) if len(table) else st.just(set()))
        for endpoint in list(table):
            table.requests[endpoint.slot] = endpoint.slot in busy
            table.drop_if_idle(endpoint)
        before = {endpoint.spec.key for endpoint in table.wanted()}
        held = list(table)
        added, removed = table.apply(map(spec, wanted))
        keys = {spec(index).key for index in wanted}
        assert {endpoint.spec.key for endpoint in added} == keys - before
        assert {endpoint.spec.key for endpoint in removed} == before - keys
        assert {endpoint.spec.key for endpoint in table.wanted()} == keys
        for endpoint in held:
            assert table.holds(endpoint) == (endpoint.spec.key in keys or endpoint.slot in busy)
        assert not table.slots or table.slots[-1] is not None
        for name, (start, _) in COLUMNS.items():
            column = getattr(table, name)
            assert len(column) == len(table)
            for slot, endpoint in enumerate(table.slots):
                assert endpoint is not None or column[slot] == start or math.isnan(start)
        assert table.eligible.sum() == len(keys)
        assert np.isclose(table.mean_weight.sum(), 1.0 if keys else 0.0)
