"""The file of rows: complete after every run, older results kept."""

import json
from pathlib import Path

import pytest

from cost_rows import row
from poolpilot_lab.bench.cost.rows import Results, read

FIELDS = [
    "run", "case", "picker", "transport", "body_mode", "endpoints", "concurrency", "workers", "scrape", "requests",
    "rps", "cpu_us_per_request", "idle_cores", "refresh_hz", "envoy_cpu_us_per_request", "p50_ms", "p99_ms", "rss_mb",
    "slope_bytes_per_request", "errors",
]  # fmt: skip


def test_the_fields_and_their_order(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.begin()
    results.add(row(transport=None))
    [written] = json.loads((tmp_path / "results.json").read_text())
    assert list(written) == FIELDS
    assert written["transport"] is None
    assert written["cpu_us_per_request"] == 40.0


def test_every_row_is_in_the_file_before_the_next(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.begin()
    assert read(results.path) == []
    for run in (1, 2, 3):
        results.add(row(run=run))
        assert [one.run for one in read(results.path)] == list(range(1, run + 1))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path / "results.json")
    results.begin()
    results.add(row(run=1))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        results.add(row(run=2))
    assert [one.run for one in read(results.path)] == [1]


def test_earlier_results_are_put_aside(tmp_path: Path) -> None:
    first = Results(tmp_path / "results.json")
    first.begin()
    first.add(row(run=7))
    older = Results(tmp_path / "results.json").begin()
    assert older is not None
    assert [one.run for one in read(older)] == [7]
    assert read(tmp_path / "results.json") == []
