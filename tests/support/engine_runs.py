"""Drives the pure engine model in tests: an engine with round numbers, and runs to the end."""

from dataclasses import replace

from poolpilot_lab.engine.model import (
    PROFILES,
    Accelerator,
    Engine,
    EngineSettings,
    Outcome,
    Profile,
    Sequence,
    Variation,
)

PROFILE = PROFILES["llama-3.1-8b-h100"]

# One step costs 10 ms, and 1 ms more per prompt token: times in tests can be told by heart.
ROUND: Profile = replace(
    PROFILE,
    decode_a_ms=10.0,
    decode_b_ms=0.0,
    decode_c_ms=0.0,
    prefill_b_ms=1.0,
    prefill_c_ms=0.0,
    step_overhead_ms=0.0,
    sequence_overhead_ms=0.0,
)


def engine(
    blocks: int = 1000, profile: Profile = ROUND, variation: Variation | None = None, **settings: object
) -> Engine:
    """An engine with `blocks` usable blocks of 4 tokens, a budget of 64 tokens and 8 sequences."""
    values = {"block_size": 4, "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 1_000_000, **settings}
    made = EngineSettings(num_gpu_blocks=blocks + 1, **values)  # type: ignore[arg-type]
    return Engine(made, Accelerator(profile, variation))


def keys(stem: int, blocks: int) -> list[int]:
    """Block keys of a prompt: equal stem = equal prefix."""
    return [stem * 10_000 + position for position in range(blocks)]


def step(engine: Engine, now: float, steps: int = 1) -> tuple[float, Outcome]:
    """One planned step (or run), completed."""
    end = engine.plan(now, steps)
    assert end is not None, "nothing to do"
    return end, engine.settle(end)


def drain(engine: Engine, now: float, steps: int = 1) -> tuple[float, list[Sequence]]:
    """Steps until nothing is left; the time, and what finished."""
    finished: list[Sequence] = []
    for _ in range(1_000_000):
        end = engine.plan(now, steps)
        if end is None:
            return now, finished
        now = end
        finished += engine.settle(now).finished
    raise AssertionError("the engine does not come to an end")
