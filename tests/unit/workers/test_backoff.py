"""How long a worker stays away: doubling, bounded, and short again after a good life."""

from __future__ import annotations

from poolpilot_picker.workers.backoff import MOST_S, SETTLED_S, Backoff


def test_short_lives_double_the_wait_up_to_a_bound() -> None:
    backoff = Backoff()
    waits = [backoff.after(1.0) for _ in range(10)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == MOST_S and max(waits) == MOST_S


def test_a_long_life_begins_again() -> None:
    backoff = Backoff()
    for _ in range(10):
        backoff.after(0.0)
    assert backoff.after(SETTLED_S) == 0.1
    assert backoff.after(SETTLED_S - 1.0) == 0.2
