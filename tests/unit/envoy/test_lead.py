"""When an endpoint may be chosen that the gateway must read of first."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.envoy.lead import LEAD_MS, Lead
from poolpilot_picker.state.endpoints import EndpointSpec

A, B, C = (EndpointSpec(host="10.0.0.1", port=8000 + n) for n in range(3))


def test_those_of_the_start_are_known() -> None:
    assert Lead().known([A, B], 7.0, -math.inf) == ([A, B], 0.0)


def test_a_new_one_waits_and_the_others_do_not() -> None:
    lead = Lead()
    lead.known([A], 0.0, -math.inf)
    assert lead.known([A, B], 100.0, 100.0) == ([A], LEAD_MS)
    assert lead.known([A, B, C], 300.0, 300.0) == ([A], LEAD_MS - 200.0)
    assert lead.known([A, B, C], 100.0 + LEAD_MS, math.inf) == ([A, B], 200.0)
    assert lead.known([A, B, C], 300.0 + LEAD_MS, math.inf) == ([A, B, C], 0.0)


def test_one_that_goes_is_gone_at_once_and_waits_again_when_it_comes_back() -> None:
    lead = Lead()
    lead.known([A, B], 0.0, -math.inf)
    assert lead.known([B], 1.0, 1.0) == ([B], 0.0)
    assert lead.known([A, B], 2.0, 2.0) == ([B], LEAD_MS)


@given(st.lists(st.tuples(st.sets(st.integers(0, 2)), st.floats(1.0, 2 * LEAD_MS)), max_size=12))
def test_changes_never_keep_one_that_stays_waiting(changes: list[tuple[set[int], float]]) -> None:
    lead, now = Lead(), 0.0
    named: dict[int, float] = {}
    for wanted, pause in changes:
        named = {number: named.get(number, now) for number in wanted}
        known, wait = lead.known([(A, B, C)[number] for number in wanted], now, now)
        assert {spec.port - A.port for spec in known} == {n for n, since in named.items() if since + LEAD_MS <= now}
        assert (wait > 0) == (len(known) < len(wanted))
        now += pause
