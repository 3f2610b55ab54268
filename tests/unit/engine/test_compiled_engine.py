"""The engine model in C does what its reference does, to the last bit of every time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine_runs import PROFILE, keys
from poolpilot_lab.engine import compiled
from poolpilot_lab.engine.model import EngineSettings, Variation
from poolpilot_lab.engine.model.accelerator import Accelerator
from poolpilot_lab.engine.model.flight import Outcome
from poolpilot_lab.engine.model.kv_cache import BlockCache
from poolpilot_lab.engine.model.scheduler import Engine
from poolpilot_lab.engine.model.sequence import Sequence
from poolpilot_lab.engine.model.telemetry import Histogram, Telemetry

CORE = compiled.load()
FIELDS = [name for name in Sequence.__slots__ if name not in ("tag", "block_hashes")]


def play(make_engine: Any, make_sequence: Any, seed: int, make_accelerator: Any = Accelerator) -> list[object]:
    """A script of arrivals, aborts, adapter loads and partial settling on an engine that is too small: what it told."""
    rng = random.Random(seed)
    settings = EngineSettings(
        num_gpu_blocks=rng.randint(20, 60),
        block_size=4,
        max_num_seqs=rng.randint(2, 9),
        max_num_batched_tokens=rng.randint(3, 40),
        enable_prefix_caching=rng.random() < 0.8,
        max_loras=2,
        lora_load_ms=7.0,
    )
    variation = Variation(sigma=0.2, step_noise=0.1, stall_every_ms=400.0, stall_ms=20.0)
    engine = make_engine(settings, make_accelerator(PROFILE, variation, seed))
    engine.tells_tokens = seed % 4 > 0
    now, told, sequences = 0.0, [], []
    for _ in range(400):
        action = rng.random()
        if action < 0.3:
            prompt, output = rng.randint(1, 30), rng.randint(1, 40)
            text = keys(rng.randrange(3), (prompt + output) // 4)
            sequence = make_sequence(prompt, output, text, rng.choice([None, None, "a", "b", "c"]), output)
            engine.add(sequence, now)
            sequences.append(sequence)
            told.append(engine.interrupt(now))
        elif action < 0.35 and sequences:
            told.append(engine.abort(rng.choice(sequences), now))
        elif action < 0.37:
            engine.load_adapter(rng.choice("abc"))
        else:
            if engine.busy_until is None:
                told.append(engine.plan(now, rng.choice([1, 5, 4_096])))
            end = engine.busy_until
            if end is not None:
                now = end if rng.random() < 0.7 else now + rng.random() * (end - now)
                told.append(engine.steps_ended(now))
                outcome = engine.settle(now)
                told.append([(sequences.index(one), count) for one, count in outcome.tokens])
                told += [[sequences.index(one) for one in part] for part in (outcome.first_tokens, outcome.finished)]
                told.append(engine.adapters_told())
                told.append([sequences.index(one) for one in outcome.preempted])
        told.append((engine.in_flight, engine.kv_usage(), engine.blocks.kept, engine.blocks.evictions))
    told.append([[getattr(sequence, name) for name in FIELDS] for sequence in sequences])
    for name in Telemetry.__slots__:
        figure = getattr(engine.telemetry, name)
        told.append((figure.counts, figure.sum, figure.count) if hasattr(figure, "bounds") else figure)
    return told


@pytest.mark.parametrize("seed", range(40))
def test_the_same_script_has_the_same_end(seed: int) -> None:
    reference = play(Engine, Sequence, seed)
    assert play(CORE.Engine, CORE.Sequence, seed, CORE.Accelerator) == reference
    assert seed > 3 or play(CORE.Engine, CORE.Sequence, seed) == reference


def test_the_same_names_are_there() -> None:
    for reference in (Engine, Sequence, BlockCache, Histogram, Outcome, Accelerator):
        made = getattr(CORE, reference.__name__)
        public = {name for name in dir(reference) if not name.startswith("_")} | {
            name for name in getattr(reference, "__slots__", ()) if not name.startswith("_")
        }
        assert public <= set(dir(made)), reference.__name__


def test_what_cannot_run_is_refused_alike() -> None:
    settings = EngineSettings(num_gpu_blocks=5, block_size=4)
    for make_engine, make_sequence in ((CORE.Engine, CORE.Sequence), (Engine, Sequence)):
        engine = make_engine(settings, Accelerator(PROFILE))
        with pytest.raises(ValueError, match="prompt_tokens >= 1"):
            engine.add(make_sequence(0, 1), 0.0)
        with pytest.raises(ValueError, match="no LoRA slots"):
            engine.add(make_sequence(1, 1, adapter="a"), 0.0)
        with pytest.raises(ValueError, match="exceed the 16 tokens"):
            engine.add(make_sequence(10, 7), 0.0)
