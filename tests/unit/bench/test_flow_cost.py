"""The cost of flow control while nothing waits: both sides see the same requests, and none of them is held."""

from __future__ import annotations

import pytest

from poolpilot_lab.bench.flow_cost import TURN, Side, compare


def test_both_sides_count_every_request_but_those_of_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.freeze", lambda: None)
    sides = compare(4, TURN)
    assert [(len(side.place), len(side.end)) for side in sides] == [(TURN, TURN)] * 2
    assert all(min(side.place) > 0.0 < min(side.end) for side in sides)


def test_a_request_that_has_to_wait_is_no_measurement_of_an_idle_layer() -> None:
    side = Side(1, flow=True)

    def fill() -> None:
        for _ in range(10_000):
            side._placed()

    with pytest.raises(RuntimeError, match="a request has to wait"):
        fill()
