"""Priorities and rewrites of a pool: which rule, which target, how often."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from poolpilot_picker.requests import NO_RULES, ModelTargets, PoolRules


def shares(targets: list[tuple[str, int | None]]) -> dict[str, int]:
    """How many of 100 requests, spread evenly, each target gets."""
    made = ModelTargets("rule", targets)
    return dict(Counter(made.at(share / 100).target for share in range(100)))


@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        ([("a", None)], {"a": 100}),
        ([("a", None), ("b", None)], {"a": 50, "b": 50}),
        ([("a", 90), ("b", 10)], {"a": 90, "b": 10}),
        ([("a", 1), ("b", 3)], {"a": 25, "b": 75}),
        # Among weights, no weight is none.
        ([("a", None), ("b", 3)], {"b": 100}),
        ([("a", 1_000_000), ("b", 1_000_000)], {"a": 50, "b": 50}),
        # One model named twice.
        ([("a", 10), ("b", 10), ("a", 30)], {"a": 80, "b": 20}),
    ],
)
def test_targets_by_weight(targets: list[tuple[str, int | None]], wanted: dict[str, int]) -> None:
    assert shares(targets) == wanted


def test_the_largest_share_there_is_has_a_target() -> None:
    assert ModelTargets("rule", [("a", 1), ("b", 1)]).at(1.0).target == "b"


def test_an_exact_rule_goes_before_the_one_for_everything() -> None:
    rules = PoolRules(exact={"m": ModelTargets("one", [("exact", 1)])}, generic=ModelTargets("all", [("any", 1)]))
    made = [rules.rewrite(model, "") for model in ("m", "other", "")]
    assert [(one.rule, one.target) for one in made if one is not None] == [
        ("one", "exact"),
        ("all", "any"),
        ("all", "any"),
    ]
    assert PoolRules(exact={"m": ModelTargets("one", [("exact", 1)])}).rewrite("other", "") is None
    assert rules.rewrites and not NO_RULES.rewrites and NO_RULES.rewrite("m", "") is None


def test_a_session_stays_with_its_target() -> None:
    rules = PoolRules(generic=ModelTargets("all", [("a", 50), ("b", 50)]), draw=random.Random(1).random)
    targets = Counter()  # type: ignore[var-annotated]
    for session in range(200):
        [target] = {one.target for _ in range(5) if (one := rules.rewrite("m", f"session-{session}")) is not None}
        targets[target] += 1
    assert min(targets["a"], targets["b"]) > 60
    drawn = Counter(one.target for _ in range(200) if (one := rules.rewrite("m", "")) is not None)
    assert min(drawn["a"], drawn["b"]) > 60


def test_priorities() -> None:
    rules = PoolRules(priorities={"high": 7, "low": -1})
    assert [rules.priority(name) for name in ("high", "low", "unknown", "")] == [7, -1, 0, 0]
