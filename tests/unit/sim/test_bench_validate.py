"""`poolpilot bench validate`: the table, and what it says of bad files."""

from pathlib import Path

import pytest

from poolpilot_lab.bench.validate.command import Row, closed_loop_tpot_ms, main
from poolpilot_lab.engine.model import PROFILES
from poolpilot_lab.engine.model.step_time import mixed_step_ms

SILICON = Path(__file__).resolve().parents[4] / "shared" / "data" / "silicon-h100-tp2.csv"
HEAD = "isl_tokens,osl_tokens,concurrency,tpot_ms\n"


def test_one_client_alone_sees_the_decode_steps_of_the_formula():
    profile = PROFILES["qwen3-32b-h100-tp2"]
    steps = [mixed_step_ms(profile, 1, context) for context in range(1_025, 1_025 + 9)]
    assert closed_loop_tpot_ms(profile, Row(1_024, 10, 1, 1.0)) == pytest.approx(sum(steps) / 9)


@pytest.mark.skipif(not SILICON.exists(), reason="needs ../shared/data/silicon-h100-tp2.csv beside the repository")
def test_measured_rows_are_met_within_four_percent(capsys):
    assert main(["--engine", "qwen3-32b-h100-tp2", "--silicon", str(SILICON)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("30 rows: mean absolute error ")
    assert float(last.split("error ")[1].split(" %")[0]) <= 4.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("isl_tokens,osl_tokens\n1,2\n", "concurrency, tpot_ms are missing"),
        (HEAD, "holds no rows"),
        (HEAD + "1024,128,8,x\n", ":2: could not convert"),
        (HEAD + "1024,1,8,20\n", ":2: needs isl_tokens"),
    ],
)
def test_bad_rows_are_refused(tmp_path, capsys, text, words):
    file = tmp_path / "rows.csv"
    file.write_text(text)
    assert main(["--engine", "qwen3-32b-h100-tp2", "--silicon", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_engine_is_refused(capsys):
    assert main(["--engine", "none", "--silicon", "x"]) == 2
    assert "neither a file nor a known engine" in capsys.readouterr().err
