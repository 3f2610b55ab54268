"""The comparison of routers for real, small: two engines, two ways to them that need no installation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from have_envoy import needs_envoy_on_linux
from poolpilot_lab.bench.peers.catalogue import POOLPILOT, ROUND_ROBIN
from poolpilot_lab.bench.peers.run import run
from poolpilot_lab.bench.peers.scenarios import CHAT
from poolpilot_lab.workload.draws import LogNormal

if TYPE_CHECKING:
    from pathlib import Path

    from poolpilot_lab.bench.peers.rows import Row


SHORT = dataclasses.replace(CHAT.workload.kinds[0], turns=(1.0,), opening=LogNormal(30, 0.5, 8, 60))
SMALL = dataclasses.replace(
    CHAT,
    engines=CHAT.engines[:2],
    answers=(4.0, 0.0),
    workload=dataclasses.replace(CHAT.workload, kinds=(SHORT,), sessions_per_s=40.0),
)


@needs_envoy_on_linux
async def test_the_same_clients_get_the_same_answers_either_way(tmp_path: Path) -> None:
    workload = SMALL.traffic(1, 6)
    rows: list[Row] = []
    for contestant in (POOLPILOT, ROUND_ROBIN):
        folder = tmp_path / contestant.name
        folder.mkdir()
        rows.append(await run(contestant, SMALL, workload, folder, epp=None, say=print))
    ours, theirs = rows
    for row in rows:
        assert (row.requests, row.errors, row.reasons) == (6, 0, {})
        assert sum(row.shares.values()) == pytest.approx(1.0, abs=0.01)
        assert row.router_cpu_us_per_request is not None
        assert row.ttft_mean_ms is not None
        assert row.ttft_mean_ms > 0
    assert ours.output_tokens == theirs.output_tokens
    assert theirs.shares == {"engine-1": 0.5, "engine-2": 0.5}
    assert ours.picker_cpu_us_per_request is not None
    assert theirs.picker_cpu_us_per_request is None
