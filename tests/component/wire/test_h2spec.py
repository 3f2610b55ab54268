"""h2spec, the conformance test of HTTP/2 servers, against the wire transport. Each exception is explained."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from go_tools import built
from poolpilot_picker.extproc.certificates import TlsFiles
from poolpilot_picker.extproc.wire.limits import Limits
from wire_server import WireServer

MODULE = Path(__file__).parent / "go"
TLS = Path(__file__).parents[2] / "data/tls"
CASES = 145
"""So many there are; fewer would mean that some were not run."""

PRIORITY = {
    # RFC 9113, section 5.3.2, has removed priorities: what a client says of them is ignored. RFC 7540 is older.
    "http2/5.3.1": {"Sends HEADERS frame that depend on itself", "Sends PRIORITY frame that depend on itself"},
}
IGNORES_OUR_TABLE_SIZE = {
    # h2spec's encoder does not read SETTINGS_HEADER_TABLE_SIZE and goes on as if it were 4,096. With our default of 0
    # these cases use entries that cannot be there, or updates that are not allowed: we are right to refuse them. With
    # a table of 4,096 bytes they pass.
    "http2/6.10": {"Sends multiple CONTINUATION frames preceded by a HEADERS frame"},
    "generic/5": {"Sends a dynamic table size update", "Sends multiple dynamic table size update"},
}


@pytest.fixture(scope="module")
def h2spec() -> Path:
    """The program."""
    return built(MODULE, "github.com/summerwind/h2spec/cmd/h2spec")


async def failures(h2spec: Path, server: WireServer, report: Path, *flags: str) -> dict[str, set[str]]:
    """Failed cases by section, from h2spec's report."""
    process = await asyncio.create_subprocess_exec(
        h2spec, "-h", "127.0.0.1", "-p", str(server.port), "-o", "3", "-j", report, *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), 100)
    failed: dict[str, set[str]] = {}
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        assert case.find("skipped") is None, f"not run: {case.attrib}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.setdefault(case.attrib["package"], set()).add(case.attrib["classname"])
    assert len(cases) == CASES, said.decode()
    return failed


async def test_h2spec(h2spec: Path, tmp_path: Path) -> None:
    async with WireServer(Limits(header_table_bytes=4_096), max_streams=100) as server:
        assert await failures(h2spec, server, tmp_path / "report.xml") == PRIORITY


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_h2spec_without_a_header_table(h2spec: Path, tmp_path: Path) -> None:
    async with WireServer(max_streams=100) as server:
        expected = {**PRIORITY, **IGNORES_OUR_TABLE_SIZE}
        assert await failures(h2spec, server, tmp_path / "report.xml") == expected


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_h2spec_over_tls(h2spec: Path, tmp_path: Path) -> None:
    tls = TlsFiles(certificate=(TLS / "server.crt").read_bytes(), key=(TLS / "server.key").read_bytes())
    async with WireServer(Limits(header_table_bytes=4_096), tls, max_streams=100) as server:
        assert await failures(h2spec, server, tmp_path / "report.xml", "-t", "-k") == PRIORITY
