"""`poolpilot bench validate`: the table, and what it says of bad files."""

import itertools
import json
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


def test_a_published_table_is_printed_beside_the_simulated_one(tmp_path, capsys):
    table = {
        "workload": {"ladder_qps_seconds": [[12, 10]]},
        "runs": [{"id": "theirs", "per_qps": [{"policy": "random", "qps": 12.0, "output_tok_s": 4321.0}]}],
    }
    file = tmp_path / "published.json"
    file.write_text(json.dumps(table))
    assert main(["--published", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = {name: row.split() for name, row in itertools.pairwise(lines) if row.startswith("    12")}
    assert set(figures) == {"precise", "approximate", "load", "random", "poolpilot (simulated only)"}
    assert figures["random"][1] == "4,321" and figures["precise"][1] == "–"
    # Where prefixes are found prompts start soon; where they are not the queue has begun to grow.
    assert float(figures["precise"][4]) < 0.2 < float(figures["random"][4])


def test_a_table_without_its_ladder_is_refused(tmp_path, capsys):
    file = tmp_path / "published.json"
    file.write_text("{}")
    assert main(["--published", str(file)]) == 2
    assert "ladder_qps_seconds" in capsys.readouterr().err
    assert main([]) == 2
