"""The composition: what a fault in the background shows, ports that cannot be had, the endpoint file of the gateway."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc_client import BUFFERED, NONE, WAIT_S, DataPlane
from poolpilot_lab.processes import free_ports
from poolpilot_picker.admin.views import endpoint_rows
from poolpilot_picker.app import Options, Picker
from poolpilot_picker.errors import ConfigurationError, StartError
from poolpilot_picker.sources.endpoint_list import parse_endpoint_flag
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from poolpilot_picker.admin.page import Page

POD = "127.0.0.1:9"


def options(**more: Any) -> Options:
    """Local ports and one endpoint."""
    fields: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "admin": ("127.0.0.1", 0),
        "endpoints": tuple(parse_endpoint_flag(POD)),
        "drain_s": 0.0,
    }
    return Options(**{**fields, **more})


@pytest.fixture
async def picker() -> AsyncIterator[Picker]:
    picker = Picker(options())
    await picker.start()
    yield picker
    await picker.stop()


async def get(picker: Picker, path: str) -> tuple[int, str]:
    """(status, text) of a page."""
    url = f"http://127.0.0.1:{picker.admin.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for something to come true."""
    deadline = time.monotonic() + WAIT_S
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_fault_in_the_background_fails_liveness_and_not_readiness(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are still placed, by what is known; but only a restart brings the task back."""
    picker = Picker(options())

    async def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(picker.telemetry, "run", broken)
    await picker.start()

    async def unwell() -> bool:
        return (await get(picker, "/healthz"))[0] == 503

    await until(unwell)
    status, text = await get(picker, "/readyz")
    assert status == 200
    assert msgspec.json.decode(text)["detail"] == {"faults": "ended by a fault, see the log: telemetry"}
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    async with DataPlane(picker.transport.port) as plane:
        stream = plane.open(BUFFERED, NONE)
        assert await stream.place() == POD
        await stream.done()
    await picker.stop()


async def test_every_page_is_well_formed(picker: Picker) -> None:
    _, text = await get(picker, "/metrics")
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "no family stands twice"
    assert all(family.documentation for family in families)
    status, text = await get(picker, "/debug/endpoints")
    [row] = msgspec.json.decode(text)["pools"]["default"]
    assert row["endpoint"] == POD and row["running"] is None, "unknown is not 0"
    status, text = await get(picker, "/debug/config")
    assert status == 200 and msgspec.json.decode(text)["source"] == "policy predicted-finish"


async def test_a_page_that_takes_long_keeps_no_request_waiting(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of series take longer to write than a request may wait."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(page: Page) -> bytes:
        begun.set()
        assert go_on.wait(WAIT_S)
        return generate_latest(page)  # type: ignore[arg-type]

    monkeypatch.setattr("poolpilot_picker.admin.server.choose_encoder", lambda accept: (slow, "text/plain"))
    reading = asyncio.ensure_future(get(picker, "/metrics"))

    async def writing() -> bool:
        return begun.is_set()

    await until(writing)
    async with DataPlane(picker.transport.port) as plane:
        stream = plane.open(BUFFERED, NONE)
        assert await stream.place() == POD
        await stream.done()
    assert not reading.done()
    go_on.set()
    assert "llm_d_epp_request_total" in (await reading)[1]


async def test_rows_are_made_while_endpoints_come_and_go() -> None:
    pool = Picker(options()).pool
    specs = [EndpointSpec(host=f"10.0.{number >> 8}.{number & 255}", port=8000) for number in range(500)]
    pool.apply_endpoints(specs)
    rows = asyncio.ensure_future(endpoint_rows(pool, 0.0))
    await asyncio.sleep(0)
    assert not rows.done()
    pool.apply_endpoints([*specs[:100], *(EndpointSpec(host=f"10.9.0.{number}", port=8000) for number in range(250))])
    addresses = [row.endpoint for row in await rows]
    assert len(addresses) == len(set(addresses))
    assert set(addresses) >= {spec.address for spec in specs[:100]}
    assert not [one for one in addresses if one.startswith("10.9.")], "they came later"


async def test_a_port_that_cannot_be_had_leaves_nothing_open(picker: Picker) -> None:
    [free] = free_ports(1)
    second = Picker(options(listen=f"127.0.0.1:{picker.transport.port}", admin=("127.0.0.1", free)))
    with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{picker.transport.port} for ext_proc"):
        await second.start()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", free)


async def test_a_taken_admin_port(picker: Picker) -> None:
    second = Picker(options(admin=("127.0.0.1", picker.admin.port)))
    with pytest.raises(StartError, match=rf"cannot listen on 127.0.0.1:{picker.admin.port} for the admin pages: Addr"):
        await second.start()


async def test_an_address_of_another_machine() -> None:
    with pytest.raises(StartError, match=r"cannot listen on \[2001:db8::1\]:0 for the admin pages"):
        await Picker(options(admin=("2001:db8::1", 0))).start()


async def test_a_bad_endpoints_file_is_an_error_at_start(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text("endpoints: [{address: pod-1, port: 8000}]")
    with pytest.raises(
        ConfigurationError, match=r"endpoints.yaml:1: endpoints\[0\].address: 'pod-1' is not an IP addr"
    ):
        await Picker(options(endpoints=(), endpoints_file=file)).start()


def test_a_bad_configuration_is_an_error_at_start(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("kind: EndpointPickerConfig\napiVersion: poolpilot.dev/v1alpha1\nplugins: [{type: none-such}]\n")
    with pytest.raises(ConfigurationError, match=r"config.yaml:3.*none-such"):
        Picker(options(config_file=file))


async def test_an_endpoint_file_that_cannot_be_written_is_an_error_at_start(tmp_path: Path) -> None:
    (tmp_path / "eds").write_text("in the way")
    with pytest.raises(StartError, match="cannot write the endpoint file"):
        await Picker(options(eds_dir=tmp_path / "eds")).start()


async def test_an_endpoint_file_that_can_no_longer_be_written_shows_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "eds"
    picker = Picker(options(eds_dir=folder))
    await picker.start()
    (folder / "eds.json").unlink()
    folder.rmdir()
    folder.write_text("in the way")
    picker.apply_endpoints([EndpointSpec(host="127.0.0.3", port=9)])
    status, text = await get(picker, "/readyz")
    assert status == 200, "endpoints do not change often: what the gateway knows is still right"
    assert "cannot write the endpoint file" in msgspec.json.decode(text)["detail"]["endpoint-file"]
    assert 'poolpilot_events_total{kind="eds-write-failed"} 1.0' in (await get(picker, "/metrics"))[1]
    folder.unlink()
    picker.apply_endpoints([EndpointSpec(host="127.0.0.2", port=9)])
    assert msgspec.json.decode((await get(picker, "/readyz"))[1])["detail"] == {}
    assert b"127.0.0.2" in (folder / "eds.json").read_bytes()
    await picker.stop()


async def test_a_picker_that_cannot_start_leaves_the_endpoint_file_of_the_one_that_runs(tmp_path: Path) -> None:
    running = Picker(options(eds_dir=tmp_path))
    await running.start()
    before = (tmp_path / "eds.json").read_bytes()
    second = Picker(
        options(
            eds_dir=tmp_path,
            listen=f"127.0.0.1:{running.transport.port}",
            endpoints=(EndpointSpec(host="127.0.0.9", port=9),),
        )
    )
    with pytest.raises(StartError):
        await second.start()
    assert (tmp_path / "eds.json").read_bytes() == before
    await running.stop()


async def test_an_endpoint_file_that_somebody_changed_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poolpilot_picker.app.EDS_CHECK_S", 0.01)
    picker = Picker(options(eds_dir=tmp_path))
    await picker.start()
    file = tmp_path / "eds.json"
    ours = file.read_bytes()
    file.write_text("theirs")
    deadline = asyncio.get_running_loop().time() + 10.0
    while file.read_bytes() != ours:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await picker.stop()


async def test_the_gateway_hears_of_a_new_endpoint_before_it_may_be_chosen(tmp_path: Path) -> None:
    picker = Picker(options(eds_dir=tmp_path))
    await picker.start()

    def chosen() -> list[str]:
        return [one.address for one in picker.pool.table.wanted()]

    new = EndpointSpec(host="127.0.0.1", port=10)
    try:
        picker.apply_endpoints([*parse_endpoint_flag(POD), new])
        assert '"port_value": 10' in (tmp_path / "eds.json").read_text()
        assert chosen() == [POD]
        picker.apply_endpoints([new])
        assert chosen() == ["127.0.0.1:10"], "without flow control nobody can wait for it"
        picker.apply_endpoints([])
        assert chosen() == []
    finally:
        await picker.stop()


async def test_where_requests_can_wait_they_do_until_the_gateway_knows_an_endpoint(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\n")
    picker = Picker(options(eds_dir=tmp_path, endpoints=(), config_file=config))
    await picker.start()

    async def chosen() -> bool:
        return [one.address for one in picker.pool.table.wanted()] == [POD]

    try:
        picker.apply_endpoints(parse_endpoint_flag(POD))
        assert not picker.pool.table.wanted()
        await until(chosen)
    finally:
        await picker.stop()


async def test_stopping_before_anything_happened() -> None:
    picker = Picker(options(drain_s=600.0))
    await picker.start()
    await asyncio.wait_for(picker.stop(), WAIT_S)
    assert not picker.readiness().ready


async def test_hurry_cuts_notice_and_drain_short(tmp_path: Path) -> None:
    picker = Picker(options(notice_s=600.0, drain_s=600.0))
    await picker.start()
    async with DataPlane(picker.transport.port) as plane:
        stream = plane.open(BUFFERED, NONE)
        await stream.place()
        stopping = asyncio.ensure_future(picker.stop())
        await asyncio.sleep(0.05)
        assert await plane.health() == "NOT_SERVING"
        picker.hurry()
        assert await stream.read() is None
        await asyncio.wait_for(stopping, WAIT_S)
