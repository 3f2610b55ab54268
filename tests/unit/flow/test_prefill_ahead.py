"""Prefill work ahead at an endpoint: what was placed, and what the engine said to be waiting."""

from __future__ import annotations

import pytest

from exchange_desk import spec_of
from poolpilot_picker.flow.prefill_ahead import FIRST_MS, SMOOTHING, PrefillAhead
from poolpilot_picker.state.endpoints import EndpointTable


class Engine:
    """An endpoint that others never use, by the clock of the test (ms)."""

    def __init__(self) -> None:
        self.table = EndpointTable()
        self.table.apply([spec_of("10.0.0.1:8000")])
        self.table.free_at_ms[0] = 1e9  # the other bound of what is ahead is not asked here
        self.ahead = PrefillAhead()

    def place(self, at: float, prefill_ms: float, uncached: float = 2_048.0) -> None:
        """A request is booked."""
        self.ahead.placed(self.table, 0, uncached, prefill_ms, at)

    def tells(self, at: float, waiting: int) -> None:
        """A sample that was begun at a time has come."""
        self.table.load_ms[0], self.table.queued[0] = at, waiting

    def left(self, now: float) -> float:
        """ms ahead."""
        return float(self.ahead.at(self.table, now)[0])


@pytest.mark.parametrize(("waiting", "left"), [(1, 2_000.0), (2, 2_040.0), (3, 3_040.0)])
def test_those_that_wait_in_an_engine_are_the_newest(waiting, left):
    """A prompt that takes longer than was thought, and others behind it."""
    engine = Engine()
    engine.place(0.0, 1_000.0)
    engine.place(2_000.0, 40.0)
    engine.place(3_000.0, 2_000.0)
    assert engine.left(6_000.0) == -1_000.0, "all should be done"
    engine.tells(6_000.0, waiting)
    assert engine.left(6_000.0) == left


def test_what_was_placed_after_a_sample_comes_on_top_of_it():
    engine = Engine()
    engine.place(0.0, 100.0)
    engine.place(1_000.0, 700.0, uncached=0.0)
    engine.tells(500.0, 1)
    assert engine.left(1_000.0) == 700.0
    engine.tells(2_000.0, 1)
    assert engine.left(2_000.0) == 700.0
    engine.place(2_100.0, 50.0, uncached=0.0)
    assert engine.left(2_100.0) == 650.0, "of the engine's 700 ms 600 are left, and 50 are new"


def test_of_others_requests_only_their_number_is_known():
    engine = Engine()
    engine.tells(0.0, 2)
    assert engine.left(0.0) == 2 * FIRST_MS
    engine.place(10.0, 40.0)
    engine.tells(200.0, 2)
    mean = FIRST_MS + SMOOTHING * (40.0 - FIRST_MS)
    assert engine.left(200.0) == pytest.approx(40.0 + mean)
