"""The tables: readable figures, all policies, every endpoint, and 80 columns are enough."""

import io

import pytest
from rich.console import Console

from poolpilot_lab.demo.figures import DemoFigures, EndpointFigures, Percentiles, PolicyFigures
from poolpilot_lab.demo.tables import duration, endpoints_table, policies_table

LABELS = ["H100", "H100", "A100", "H100 small KV"]


def policy(errors: int = 0) -> PolicyFigures:
    times = Percentiles(12.34, 987.6, 54_321.0)
    common = {
        "requests": 12_345, "errors": errors, "ttft_ms": times, "tpot_ms": times, "e2e_ms": times,
        "requests_per_s": 123.456, "cached_token_share": 0.5678, "adapter_loads": 1234, "preemptions": 4321,
    }  # fmt: skip
    return PolicyFigures(
        **common,
        endpoints=[EndpointFigures(**common, address=f"127.0.0.1:4567{n}", profile="p") for n in range(4)],
    )


def shown(table: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "–"), (0.5, "0.5 ms"), (99.94, "99.9 ms"), (187.4, "187 ms"), (1234.0, "1.23 s"), (65_432.0, "65.4 s")],
)
def test_times_have_three_digits_and_a_unit(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_policies_side_by_side() -> None:
    figures = DemoFigures(1, {"round-robin": policy(), "least-request": policy(3), "poolpilot": policy()})
    text = shown(policies_table(figures))
    lines = text.splitlines()
    assert any("round-robin" in line and "least-request" in line and "poolpilot" in line for line in lines)
    for expected in ("12.3 ms", "988 ms", "54.3 s", "123.46", "57%", "1,234", "4,321", "3 of 12,345"):
        assert expected in text
    assert "…" not in text


def test_every_endpoint_under_every_policy() -> None:
    figures = DemoFigures(1, {"round-robin": policy(), "poolpilot": policy()})
    text = shown(endpoints_table(figures, LABELS))
    assert text.count("H100 small KV") == 2
    assert text.count("A100") == 2
    assert "…" not in text, "80 columns are enough"
