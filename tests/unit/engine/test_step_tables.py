"""Tabulated step times: exact at their points, between their neighbours elsewhere, and longer for more work."""

from __future__ import annotations

import csv
import itertools

import pytest

from poolpilot_lab.engine.model import PROFILES, Accelerator, step_time
from poolpilot_lab.engine.model.step_tables import FILE, StepTable, step_tables

ROWS = list(csv.DictReader(FILE.open(newline="", encoding="utf-8")))


def test_every_built_in_engine_has_a_table() -> None:
    assert step_tables().keys() == PROFILES.keys()


@pytest.mark.parametrize("row", ROWS[::7], ids=lambda row: "-".join(row.values()))
def test_its_points_are_met(row: dict[str, str]) -> None:
    profile, table, ms = PROFILES[row["model_id"]], step_tables()[row["model_id"]], float(row["ms"])
    if row["phase"] == "decode":
        batch, context = int(row["batch"]), int(row["batch"]) * int(row["context_tokens"])
        accelerator = Accelerator(profile, table=table)
        assert accelerator.decode_ms(batch, context, 0) - step_time.overhead_ms(profile, batch) == pytest.approx(ms)
    else:
        tokens = int(row["prompt_tokens"])
        assert step_time.prefill_alone_ms(profile, tokens, 0) * table.prefill(tokens) == pytest.approx(ms)


@pytest.mark.parametrize("name", PROFILES)
def test_more_work_never_takes_less(name: str) -> None:
    accelerator = Accelerator(PROFILES[name], table=step_tables()[name])
    prefill = [accelerator.prefill_ms(n, n * n) for n in range(1, 4_096)]
    assert prefill == sorted(prefill)
    for context in (128, 1_000, 8_000):
        decode = [accelerator.decode_ms(b, b * context, 0) for b in range(257)]
        assert all(two > 0.97 * one for one, two in itertools.pairwise(decode))


def test_a_run_ends_when_its_steps_would() -> None:
    accelerator = Accelerator(PROFILES["qwen3-32b-h100-tp2"], table=step_tables()["qwen3-32b-h100-tp2"])
    first, growth = accelerator.decode_ms(30, 30_000, 0), accelerator.growth_ms(30, 30_000, 200)
    alone = sum(accelerator.decode_ms(30, 30_000 + 30 * step, 0) for step in range(200))
    assert 200 * first + growth * 200 * 199 / 2 == pytest.approx(alone, rel=0.01)


def test_beyond_the_table_its_edge_holds() -> None:
    table = step_tables()["llama-3.1-8b-h100"]
    assert table.prefill(1) == table.prefill(64)
    assert table.decode(10_000, 10_000 * 100_000) == table.decode(256, 256 * 8_192)
    assert table.decode(0, 0) == table.decode(1, 1)


def test_a_table_with_holes_is_refused() -> None:
    with pytest.raises(ValueError, match="full grid"):
        StepTable(PROFILES["llama-3.1-8b-h100"], {(1, 128): 1.0, (2, 256): 1.0}, {64: 1.0, 128: 2.0})
