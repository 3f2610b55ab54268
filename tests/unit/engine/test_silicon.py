"""Time per output token against measured vLLM on 2 x H100 (closed loop): the model's one validated figure."""

import csv
from pathlib import Path
from statistics import fmean

import pytest

from poolpilot_lab.engine.model import PROFILES, Accelerator, Engine, EngineSettings, Sequence

TABLE = Path(__file__).resolve().parents[4] / "shared" / "data" / "silicon-h100-tp2.csv"


def closed_loop_tpot(prompt: int, output: int, concurrency: int, rounds: int = 6) -> float:
    """Mean time per output token, ms; every finished request is replaced at once, ends of the run left out."""
    profile = PROFILES["qwen3-32b-h100-tp2"]
    settings = EngineSettings(profile.kv_tokens // 16 + 1, max_num_seqs=1024, max_num_batched_tokens=2048)
    engine = Engine(settings, Accelerator(profile))
    left = concurrency * (rounds - 1)
    for _ in range(concurrency):
        engine.add(Sequence(prompt, output), 0.0)
    done: list[Sequence] = []
    now = 0.0
    while (end := engine.plan(now, 64)) is not None:
        now = end
        for finished in engine.settle(now).finished:
            done.append(finished)
            if left:
                left -= 1
                engine.add(Sequence(prompt, output), now)
    measured = done[concurrency:-concurrency]
    return fmean((s.last_token - s.first_token) / (output - 1) for s in measured)


@pytest.mark.skipif(not TABLE.exists(), reason="needs ../shared/data/silicon-h100-tp2.csv beside the repository")
def test_time_per_output_token_is_within_four_percent_of_measured() -> None:
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    errors = [
        closed_loop_tpot(int(row["isl_tokens"]), int(row["osl_tokens"]), int(row["concurrency"]))
        / float(row["tpot_ms"])
        - 1
        for row in rows
    ]
    assert fmean(map(abs, errors)) <= 0.04
    assert abs(fmean(errors)) <= 0.02
