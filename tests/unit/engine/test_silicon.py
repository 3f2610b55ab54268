"""Time per output token against measured vLLM on 2 x H100 (closed loop): the model's one validated figure."""

from pathlib import Path
from statistics import fmean

import pytest

from poolpilot_lab.bench.validate.command import closed_loop_tpot_ms, read_rows
from poolpilot_lab.engine.model import PROFILES

TABLE = Path(__file__).resolve().parents[4] / "shared" / "data" / "silicon-h100-tp2.csv"


@pytest.mark.skipif(not TABLE.exists(), reason="needs ../shared/data/silicon-h100-tp2.csv beside the repository")
def test_time_per_output_token_is_within_four_percent_of_measured() -> None:
    rows = read_rows(TABLE)
    assert len(rows) == 30
    errors = [closed_loop_tpot_ms(PROFILES["qwen3-32b-h100-tp2"], row) / row.tpot_ms - 1 for row in rows]
    assert fmean(map(abs, errors)) <= 0.04
    assert abs(fmean(errors)) <= 0.02
