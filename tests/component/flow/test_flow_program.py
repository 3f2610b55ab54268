"""The picker as a program with flow control on: requests wait on their streams and are answered there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from extproc_client import DUPLEX, PARTIAL, DataPlane, Stream, chat, destination
from picker_program import PickerProgram, replace

if TYPE_CHECKING:
    from pathlib import Path

    from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

ADDRESS = "127.0.0.1:9"
"""Nobody answers there: telemetry is never heard from."""
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
flowControl: {defaultRequestTTL: @}
poolpilot:
  flowControl:
    endpointRequests: 1
    shortReserve: 0
    gatewayTimeoutMs: 20000
    tenants: {limited: {tokens: 10}}
"""


def picker(folder: Path, transport: str, *flags: str, ttl: str = "60s", endpoints: str = ADDRESS) -> PickerProgram:
    config = folder / "picker.yaml"
    config.write_text(CONFIG.replace("@", ttl))
    named = ("--endpoints", endpoints) if endpoints else ()
    return PickerProgram(folder, *named, "--config-file", str(config), "--transport", transport, *flags)


async def queued(program: PickerProgram, count: int) -> None:
    """So many requests wait."""

    async def there() -> bool:
        samples = await program.samples()
        waiting = [value for name, value in samples.items() if name.startswith("llm_d_epp_flow_control_queue_size{")]
        return sum(waiting) == count

    await program.until(there, f"{count} wait")


async def asked(plane: DataPlane, text: str = "Tell me of the sea", **fields: str) -> Stream:
    """A stream whose request the picker has to place."""
    stream = plane.open(PARTIAL)
    await stream.headers(**fields)
    await stream.must_read()
    await stream.body(chat(text))
    return stream


async def held(plane: DataPlane, **fields: str) -> Stream:
    """A stream whose request waits, as its answer says."""
    stream = await asked(plane, **fields)
    patience = await stream.must_read()
    assert patience.WhichOneof("response") is None
    assert 0 < patience.override_message_timeout.ToMilliseconds() <= 20_000
    return stream


async def waiting(plane: DataPlane, program: PickerProgram, count: int, **fields: str) -> Stream:
    """The same; `count` are in the queue then."""
    stream = await held(plane, **fields)
    await queued(program, count)
    return stream


def turned_away(reply: ext_proc.ProcessingResponse) -> tuple[int, dict[str, str], str]:
    """(status, headers, message) of an answer of the picker's own."""
    immediate = reply.immediate_response
    fields = {one.header.key: one.header.raw_value.decode() for one in immediate.headers.set_headers}
    return immediate.status.code, fields, msgspec.json.decode(immediate.body)["error"]["message"]


@pytest.fixture(params=["wire", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_request_waits_until_there_is_room(tmp_path: Path, transport: str) -> None:
    async with picker(tmp_path, transport) as program, DataPlane(program.port) as plane:
        first = plane.open(PARTIAL)
        assert await first.place() == ADDRESS
        second = await waiting(plane, program, 1)
        third = await waiting(plane, program, 2)
        await first.answer(ADDRESS)
        await first.must_read()
        await first.done()
        assert destination(await second.must_read()) == ADDRESS
        second.reset()
        assert destination(await third.must_read()) == ADDRESS
        third.reset()
        await queued(program, 0)
        samples = await program.samples()
        dispatched = 'llm_d_epp_flow_control_requests_total{inference_pool="default",outcome="Dispatched",priority="0"}'
        assert samples[dispatched] == 3


async def test_full_duplex_waits_in_silence(tmp_path: Path, transport: str) -> None:
    async with picker(tmp_path, transport) as program, DataPlane(program.port) as plane:
        first = plane.open(PARTIAL)
        assert await first.place() == ADDRESS
        second = plane.open(DUPLEX, DUPLEX)
        await second.headers()
        await second.body(chat()[:10], end=False)
        await second.body(chat()[10:])
        await queued(program, 1)
        first.reset()
        assert destination(await second.must_read()) == ADDRESS
        rest = (await second.must_read()).request_body.response.body_mutation.streamed_response
        assert (rest.body, rest.end_of_stream) == (chat(), True)
        second.reset()


async def test_whoever_goes_away_frees_its_place(tmp_path: Path, transport: str) -> None:
    async with picker(tmp_path, transport) as program, DataPlane(program.port) as plane:
        first = plane.open(PARTIAL)
        assert await first.place() == ADDRESS
        second = await waiting(plane, program, 1)
        third = await waiting(plane, program, 2)
        second.reset()
        await queued(program, 1)
        first.reset()
        assert destination(await third.must_read()) == ADDRESS
        third.reset()


async def test_time_ends_a_wait_with_429_and_a_time_to_come_again(tmp_path: Path, transport: str) -> None:
    async with picker(tmp_path, transport, ttl="300ms") as program, DataPlane(program.port) as plane:
        first = plane.open(PARTIAL)
        assert await first.place() == ADDRESS
        second = await held(plane)
        status, fields, message = turned_away(await second.must_read())
        assert (status, fields["x-llm-d-request-dropped-reason"]) == (429, "rejected-ttl-expired")
        assert int(fields["retry-after"]) >= 1
        assert "request timed out in queue" in message
        first.reset()


async def test_a_shutdown_answers_who_still_waits(tmp_path: Path, transport: str) -> None:
    async with (
        picker(tmp_path, transport, "--drain-timeout", "0.2") as program,
        DataPlane(program.port) as plane,
    ):
        first = plane.open(PARTIAL)
        assert await first.place() == ADDRESS
        second = await waiting(plane, program, 1)
        program.terminate()
        status, fields, message = turned_away(await second.must_read())
        assert (status, fields["x-llm-d-request-dropped-reason"]) == (503, "rejected-shutting-down")
        assert "shutting down" in message
        assert await program.exits() == 0


async def test_requests_survive_a_pool_that_is_empty_for_a_while(tmp_path: Path, transport: str) -> None:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: []\n")
    flags = ("--endpoints-file", str(endpoints))
    async with picker(tmp_path, transport, *flags, endpoints="") as program, DataPlane(program.port) as plane:
        stream = await waiting(plane, program, 1)
        replace(endpoints, "endpoints: [{address: 127.0.0.1, port: 9}]\n")
        assert destination(await stream.must_read()) == ADDRESS
        stream.reset()


async def test_a_tenants_limit_is_its_own(tmp_path: Path, transport: str) -> None:
    async with picker(tmp_path, transport) as program, DataPlane(program.port) as plane:
        first = await asked(plane, "much " * 50, x_llm_d_inference_fairness_id="limited")
        assert destination(await first.must_read()) == ADDRESS
        second = await asked(plane, x_llm_d_inference_fairness_id="limited")
        status, fields, _ = turned_away(await second.must_read())
        assert (status, fields["x-llm-d-request-dropped-reason"]) == (429, "rejected-tenant-limit")
        assert int(fields["retry-after"]) > 60
        other = await waiting(plane, program, 1, x_llm_d_inference_fairness_id="other")
        first.reset()
        assert destination(await other.must_read()) == ADDRESS
        other.reset()


async def test_two_thousand_that_wait_go_in_their_order(tmp_path: Path) -> None:
    async with picker(tmp_path, "wire") as program, DataPlane(program.port) as plane:
        first = plane.open(PARTIAL)
        assert await first.place() == ADDRESS
        streams = []
        for _ in range(2_000):
            stream = plane.open(PARTIAL)
            await stream.headers()
            await stream.body(chat())
            streams.append(stream)
        await queued(program, 2_000)
        first.reset()
        for stream in streams:
            await stream.must_read()
            await stream.must_read()
            assert destination(await stream.must_read()) == ADDRESS
            stream.reset()
        await queued(program, 0)


async def test_workers_share_the_bounds_of_endpoints(tmp_path: Path) -> None:
    """A request of one worker waits for the end of another's, of which nobody tells it."""
    async with picker(tmp_path, "wire", "--workers", "2") as program:
        ports = program.ready["ports"]
        async with DataPlane(ports[0]) as left, DataPlane(ports[1]) as right:
            first = left.open(PARTIAL)
            assert await first.place() == ADDRESS
            second = await held(right)
            first.reset()
            assert destination(await second.must_read()) == ADDRESS
            second.reset()
