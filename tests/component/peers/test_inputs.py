"""What peers refuse before they start anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from poolpilot_lab.bench.cost.peers import NotAvailable, gie_epp, llm_d_epp
from poolpilot_lab.processes import ProcessError

PAIR = ("127.0.1.1:8000", "127.0.1.2:8000")


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        ([], "endpoints is empty"),
        (["localhost:8000"], "endpoint 'localhost:8000': must be A.B.C.D:PORT"),
        (["[::1]:8000"], "must be A.B.C.D:PORT with an IPv4 address"),
        (["127.0.1.1"], "endpoint '127.0.1.1'"),
        (["127.0.1.1:0"], "the port must be 1 to 65535"),
        (["127.0.1.1:70000"], "the port must be 1 to 65535"),
        (["127.0.1.1:http"], "the port must be 1 to 65535"),
        (["127.0.1.1:8000", "127.0.1.2:8001"], r"the ports \[8000, 8001\]; all must have the same"),
        (["127.0.1.1:8000", "127.0.1.1:8000"], "1 address"),
    ],
)
async def test_endpoints_that_no_pool_can_have(endpoints: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        async with gie_epp(endpoints, refresh_ms=50, workdir=tmp_path):
            pass
    with pytest.raises(ValueError, match=said):
        async with llm_d_epp(tmp_path / "epp", endpoints, refresh_ms=50, workdir=tmp_path):
            pass


async def test_a_binary_that_is_not_there(tmp_path: Path) -> None:
    for binary in (tmp_path / "epp", tmp_path):
        with pytest.raises(NotAvailable, match="there is no such program"):
            async with llm_d_epp(binary, PAIR, refresh_ms=50, workdir=tmp_path):
                pass


async def test_a_binary_that_ends_shows_its_flags_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    binary = Path("epp")
    binary.write_text('#!/bin/sh\necho "asked for $*" >&2; exit 3\n')
    binary.chmod(0o700)
    with pytest.raises(ProcessError, match="exit code 3") as caught:
        async with llm_d_epp(binary, PAIR, refresh_ms=100, workdir=Path("work")):
            pass
    assert "--refresh-metrics-interval=100ms" in str(caught.value)
    config_file = next(word for word in str(caught.value).split() if word.startswith("--config-file="))
    config = yaml.safe_load(Path(config_file.partition("=")[2]).read_text())
    discovery = next(one for one in config["plugins"] if one["type"] == "file-discovery")
    listed = yaml.safe_load(Path(discovery["parameters"]["path"]).read_text())
    assert listed["endpoints"][1] == {"name": "server-1", "address": "127.0.1.2", "port": "8000"}
