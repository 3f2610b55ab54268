"""A twin of an engine goes on as the engine does, and leaves the engine alone."""

from __future__ import annotations

import random

import pytest

from engine_runs import PROFILE, drain, keys
from poolpilot_lab.engine import compiled
from poolpilot_lab.engine.model import Accelerator, EngineSettings
from poolpilot_lab.engine.model.scheduler import Engine
from poolpilot_lab.engine.model.sequence import Sequence

CORE = compiled.load()


@pytest.mark.parametrize(("make_engine", "make_sequence"), [(CORE.Engine, CORE.Sequence), (Engine, Sequence)])
@pytest.mark.parametrize("seed", range(8))
def test_a_twin_ends_at_the_same_time(make_engine, make_sequence, seed):
    rng = random.Random(seed)
    settings = EngineSettings(num_gpu_blocks=50, block_size=4, max_num_seqs=6, max_num_batched_tokens=16, max_loras=2)
    accelerator = Accelerator(PROFILE)
    engine = make_engine(settings, accelerator)
    for _ in range(12):
        prompt, output = rng.randint(1, 30), rng.randint(1, 40)
        adapter = rng.choice([None, "a", "b", "c"])
        engine.add(make_sequence(prompt, output, keys(rng.randrange(2), prompt // 4), adapter), 0.0)
    now = 0.0
    for _ in range(rng.randint(1, 12)):
        now = engine.plan(now, 8)
        engine.settle(now)
    end = engine.plan(now, 8)
    twin = engine.twin(accelerator.calm())
    assert (twin.busy_until, twin.in_flight, twin.kv_usage()) == (end, engine.in_flight, engine.kv_usage())
    tables = [list(sequence.table) for sequence in engine.running]
    twin.settle(end)
    theirs = drain(twin, end, 8)
    assert [list(sequence.table) for sequence in engine.running] == tables, "the engine did not move"
    assert engine.busy_until == end
    engine.settle(end)
    ours = drain(engine, end, 8)
    assert ours[0] == theirs[0]
    assert [sequence.generated for sequence in ours[1]] == [sequence.generated for sequence in theirs[1]]
    assert engine.blocks.evictions == twin.blocks.evictions
