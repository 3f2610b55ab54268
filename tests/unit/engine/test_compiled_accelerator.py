"""Step times, noise and stalls in C are those of the reference, to the last bit, and from the same draws."""

from __future__ import annotations

import random

import pytest

from poolpilot_lab.engine import compiled
from poolpilot_lab.engine.model import PROFILES, Variation
from poolpilot_lab.engine.model.accelerator import Accelerator
from poolpilot_lab.engine.model.step_tables import StepTable, step_tables

CORE = compiled.load("_accelerator")
VARIED = Variation(sigma=0.3, step_noise=0.1, stall_every_ms=300.0, stall_ms=40.0)


@pytest.mark.parametrize("tabulated", [False, True])
@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_duration_is_that_of_the_reference(name, tabulated):
    rng = random.Random(name)
    table = step_tables()[name] if tabulated else None
    for seed in range(4):
        mine = CORE.Accelerator(PROFILES[name], VARIED, seed, table)
        reference = Accelerator(PROFILES[name], VARIED, seed, table)
        for number in range(150):
            mine.ranks = reference.ranks = rng.choice([1, 1, 4])
            mine.slow = reference.slow = rng.choice([1.0, 1.0, 2.5])
            sequences, context = rng.randrange(0, 300), rng.randrange(0, 2_000_000)
            chunks, tokens, steps = rng.randrange(3), rng.choice([0, 1, 7, 2_048, 40_000]), rng.randrange(2, 5_000)
            attention = tokens * (tokens + 2 * rng.randrange(100_000))
            for method, arguments in (
                ("step_ms", (sequences, context, chunks, tokens, attention)),
                ("decode_ms", (sequences, context, chunks)),
                ("prefill_ms", (tokens, attention)),
                ("growth_ms", (sequences, context, steps)),
                ("noise", (steps,)),
                ("stall", (number * 100.0,)),
            ):
                assert getattr(mine, method)(*arguments) == getattr(reference, method)(*arguments), method
        assert mine.calm().noise(1) == reference.calm().noise(1) == mine.slow
        assert mine.calm().decode_ms(9, 9_000, 0) == reference.calm().decode_ms(9, 9_000, 0)


def test_a_table_without_two_points_everywhere_is_refused():
    profile = PROFILES["llama-3.1-8b-h100"]
    one = StepTable(profile, {(1, 128): 5.0, (1, 256): 6.0}, {64: 1.0, 2_048: 2.0})
    with pytest.raises(ValueError, match="two points"):
        CORE.Accelerator(profile, table=one)
