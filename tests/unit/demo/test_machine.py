"""Whether the machine kept up: readings, and when the figures come with a warning."""

from pathlib import Path

import pytest

from poolpilot_lab.demo.machine import Punctuality, processor_seconds, punctuality
from poolpilot_lab.demo.telemetry import Clock

FINE = Punctuality(busy=0.5, late_steps=0.01, worst_step_ms=30.0, client_late_ms=3.0)


def test_a_punctual_run_needs_no_warning() -> None:
    assert FINE.problems == []
    assert Punctuality(None, 0.0, 0.0, 0.0).problems == [], "not knowing is no problem"


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (Punctuality(None, 0.2, 80.0, 0.0), "20% of the engines' steps came late, the worst by 80 ms"),
        (Punctuality(None, 0.0, 0.0, 60.0), "sent up to 60 ms late"),
    ],
)
def test_each_kind_of_lateness_is_named(run: Punctuality, says: str) -> None:
    assert len(run.problems) == 1
    assert says in run.problems[0]


def test_a_busy_machine_explains_lateness_and_is_none_by_itself() -> None:
    assert Punctuality(1.0, 0.0, 0.0, 0.0).problems == []
    assert Punctuality(0.97, 0.2, 80.0, 0.0).problems[-1] == "the processors were 97% busy"


def test_punctuality_from_readings() -> None:
    clock = Clock(steps=60, late=1, late_ms=10.0, worst_ms=8.0) + Clock(steps=40, late=1, late_ms=9.0, worst_ms=9.0)
    run = punctuality((100.0, 1000.0), (160.0, 1100.0), clock, [1.0] * 98 + [9.0, 9.0])
    assert run.busy == pytest.approx(0.6)
    assert (run.late_steps, run.worst_step_ms) == (0.02, 9.0)
    assert run.client_late_ms == pytest.approx(9.0)
    assert punctuality(None, None, Clock(), []) == Punctuality(None, 0.0, 0.0, 0.0)


def test_processor_time_is_read_where_the_kernel_tells(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 1 4 80 5 0 0 2 0 0\ncpu0 1 1 1 1\n")
    assert processor_seconds(stat) == (17.0, 102.0)
    assert processor_seconds(tmp_path / "absent") is None
    stat.write_text("cpu 1 2\n")
    assert processor_seconds(stat) is None
