"""A few seconds of the soak through a real Envoy, with clients that break off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_lab.bench.soak.run import Plan, soak

if TYPE_CHECKING:
    from pathlib import Path


async def test_nothing_is_lost(transport: str, envoy_binary: Path, tmp_path: Path) -> None:
    parts = await soak(Plan(requests=60, behind_envoy=900, transport=transport), tmp_path)
    for part in parts:
        assert not part.failed and not part.left and not part.complaints and part.exit_code == 0, part
        assert part.whole + part.broken_by_client == part.exchanges
    assert [part.exchanges for part in parts] == [60, 900]
    kinds = {f"Envoy {mode}-{end}" for mode in ("full-duplex", "none", "buffered") for end in ("whole", "mid-answer")}
    assert kinds <= parts[1].scripts.keys()
