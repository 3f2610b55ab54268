"""Crowds before a real Envoy, small: everybody is served or let go, and the figures are of those that came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from have_envoy import needs_envoy_on_linux
from poolpilot_lab.bench.crowd.__main__ import said
from poolpilot_lab.bench.crowd.run import play

if TYPE_CHECKING:
    from pathlib import Path


@needs_envoy_on_linux
async def test_a_queue_is_served_in_turn_and_streams_stay_open_until_they_end(tmp_path: Path) -> None:
    found = await play(tmp_path, 20, 10, 500, "wire", still_s=0.05)
    queue, stay = found.waiting, found.open
    assert (found.left, found.complaints) == ({}, [])
    assert (queue.requests, queue.gone, stay.streams) == (20, 2, 10)
    assert queue.displaced <= 4, "Envoy may see connections in another order than they were written to"
    assert queue.held_bytes >= 20 * 500
    assert min(queue.cpu_us_in, queue.cpu_us_out, stay.cpu_us_in, stay.cpu_us_out) > 0.0
    assert said(found).startswith("20 requests of")
