"""A few seconds of the soak: nothing fails that the client did not break, and nothing is left of anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolpilot_lab.bench.soak.run import MANNERS, Plan, soak
from poolpilot_lab.bench.soak.watch import complaints, slope, total

TLS = Path(__file__).parents[2] / "data/tls"


@pytest.mark.parametrize(("transport", "requests"), [("wire", 3_000), ("grpc", 1_500)])
async def test_nothing_is_lost(transport: str, requests: int, tmp_path: Path) -> None:
    plan = Plan(requests=requests, transport=transport, tls=(TLS / "server.crt", TLS / "server.key"))
    parts = await soak(plan, tmp_path)
    for part in parts:
        assert not part.failed and not part.left and not part.complaints and part.exit_code == 0, part
        assert part.whole + part.broken_by_client == part.exchanges
        assert set(part.connections) == {one.name for one in MANNERS}
    assert sum(part.exchanges for part in parts) == requests
    kinds = {name.split("-", 1)[1] for part in parts for name in part.scripts if "-" in name}
    assert {"whole", "bad", "no-body", "head", "mid-body", "body", "placed", "answer", "mid-answer"} <= kinds


def test_the_slope_of_a_line() -> None:
    assert slope([(0, 5), (10, 25), (20, 45)]) == pytest.approx(2.0)
    assert str(slope([(0, 5), (10, 25)])) == "nan"
    assert str(slope([(1, 5), (1, 25), (1, 30)])) == "nan"


def test_totals_of_a_page() -> None:
    page = 'a{b="c d"} 1\na{b="e"} 2.5\na_more 7\nz 1\n'
    assert (total(page, "a"), total(page, "z"), total(page, "none")) == (3.5, 1.0, 0.0)


def test_complaints_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fine = '{"level":"warning","message":"no telemetry"}'
    bad = ['{"level":"error","message":"a stream failed"}', "Traceback (most recent call last):"]
    log.write_text("\n".join([fine, *bad]) + "\n")
    assert complaints(log) == bad
