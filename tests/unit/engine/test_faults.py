"""Faults are read strictly."""

import pytest

from poolpilot_lab.engine.faults import FaultError, Faults, parse_faults


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([], Faults()),
        (["slow=2.5"], Faults(slow=2.5)),
        (["error-rate=0.1"], Faults(error_rate=0.1)),
        (["error-rate=0.1:503", "hang"], Faults(error_rate=0.1, error_status=503, hang=True)),
        (["fail-fast"], Faults(error_rate=1.0)),
        (["fail-fast=429"], Faults(error_rate=1.0, error_status=429)),
        (["metrics-hang"], Faults(metrics_hang=True)),
        (["restart=2"], Faults(restart_s=2.0)),
    ],
)
def test_faults_are_read(specs: list[str], expected: Faults) -> None:
    assert parse_faults(specs) == expected


@pytest.mark.parametrize(
    "spec",
    ["slow", "slow=x", "slow=0", "error-rate=2", "error-rate=0.1:99", "hang=1", "fail-fast=", "restart=-1", "ha"],
)
def test_a_wrong_fault_is_named(spec: str) -> None:
    with pytest.raises(FaultError, match=spec):
        parse_faults([spec])


def test_faults_print_as_they_are_given() -> None:
    specs = ["slow=2", "error-rate=0.5:503", "hang", "metrics-hang"]
    assert parse_faults(specs).specs() == specs
