"""Once a minute for each key, and no occurrence uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.instruments.seldom import EVERY_MS, Seldom


def test_first_then_none_then_the_count() -> None:
    seldom = Seldom()
    assert [seldom.due("a", now) for now in (5.0, 6.0, 7.0)] == [1, 0, 0]
    assert seldom.due("b", 7.0) == 1
    assert seldom.due("a", 5.0 + EVERY_MS) == 3
    assert seldom.due("a", 6.0 + EVERY_MS) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 50_000)), max_size=60))
def test_counts_add_up(steps: list[tuple[str, float]]) -> None:
    seldom, now = Seldom(), 0.0
    lines: dict[str, list[float]] = {"a": [], "b": []}
    counted = dict.fromkeys("ab", 0)
    for key, step in steps:
        now += step
        if count := seldom.due(key, now):
            counted[key] += count
            lines[key].append(now)
    for key in "ab":
        assert all(later - earlier >= EVERY_MS for earlier, later in zip(lines[key], lines[key][1:], strict=False))
        seen = sum(1 for one, _ in steps if one == key)
        assert counted[key] <= seen
        assert seldom.due(key, now + EVERY_MS) == seen - counted[key] + 1
