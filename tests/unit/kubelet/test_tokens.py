"""A pod's tokens: new ones take the place of the old ones when all have come, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from node_pods import PLACE, Sources, pod
from poolpilot_lab.control_plane.api import ApiError
from poolpilot_lab.kubelet.container import Pace
from poolpilot_lab.kubelet.pod import Node, Pod

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

VOLUME = {
    "name": "v",
    "projected": {
        "sources": [{"serviceAccountToken": {"path": name, "audience": name}} for name in ("one", "two")],
    },
}


class Issuer:
    """Numbers its tokens. `meanwhile` is called before each; `full`: it gives no more."""

    def __init__(self) -> None:
        self.given = 0
        self.full = False
        self.meanwhile: Any = lambda: None

    async def call(self, _: str, path: str, request: dict[str, Any]) -> bytes:
        self.meanwhile()
        if self.full:
            raise ApiError(path, 503, "not now")
        self.given += 1
        [audience] = request["spec"]["audiences"]
        return msgspec.json.encode({"status": {"token": f"{audience}-{self.given}"}})


async def test_a_volume_has_whole_tokens_at_every_moment(tmp_path: Path) -> None:
    issuer: Any = Issuer()
    node: Any = Node(PLACE.node, PLACE.host, ("h", 1), tmp_path, {}, Sources(), Pace(), {})
    one = Pod(pod(volumes=[VOLUME]), node, issuer, PLACE.ip, 1)
    one._sandbox = issuer
    folder = tmp_path / "pods/uid-a/volumes/v"
    folder.mkdir(parents=True)

    def tokens() -> list[str]:
        return [(folder / name).read_text() for name in ("one", "two")]

    await one.renew()
    assert tokens() == ["one-1", "two-2"]
    seen = []

    def meanwhile() -> None:
        one.refresh()
        seen.append(tokens())

    issuer.meanwhile = meanwhile
    await one.renew()
    assert seen == [["one-1", "two-2"]] * 2 and tokens() == ["one-3", "two-4"]
    issuer.full = True
    await one.renew()
    one.refresh()
    assert tokens() == ["one-3", "two-4"], "old ones are better than none"
