"""The picker as a program: what it prints, serves, reloads and says, from the first flag to the last signal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from extproc_client import BUFFERED, DUPLEX, NONE, DataPlane, chat, destination
from picker_program import PickerProgram, replace
from poolpilot_lab.processes import free_ports

TLS = Path(__file__).parents[2] / "data/tls"
POD, OTHER, THIRD = "127.0.0.1:9", "127.0.0.2:9", "127.0.0.3:9"
"""Nobody listens there: the picker knows nothing of them but what it is told."""


def config(picker: str, more: str = "") -> str:
    """A configuration with this picker."""
    return (
        "apiVersion: poolpilot.dev/v1alpha1\nkind: EndpointPickerConfig\n"
        f"plugins:\n- type: {picker}\n"
        f"schedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: {picker}\n{more}"
    )


def endpoints(*addresses: str) -> str:
    """An endpoints file."""
    entries = [address.rpartition(":") for address in addresses]
    return "endpoints:\n" + "".join(f"- {{address: {host}, port: {port}}}\n" for host, _, port in entries)


async def test_ready_line_and_pages(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--pool-name", "llama") as picker:
        assert set(picker.ready) == {"port", "admin_port", "pid"}
        assert picker.ready["pid"] == picker.child.pid
        assert await picker.get("/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
        status, content_type, text = await picker.get("/readyz")
        assert (status, content_type) == (200, "application/json")
        assert msgspec.json.decode(text) == {"ready": True, "alive": True, "detail": {}, "pools": {"llama": True}}
        assert (await picker.get("/nowhere"))[0] == 404
        for page in (await picker.json("/"))["pages"]:
            assert (await picker.get(page))[0] == 200
        async with picker.plane() as plane:
            for service in ("", "llama", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"):
                assert await plane.health(service) == "SERVING"
        picker.terminate()
        assert await picker.exits() == 0
        assert picker.said("info", "stopped")


async def test_every_address_means_ipv4_too(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--listen", "[::]:0", "--admin", "[::]:0") as picker:
        assert (await picker.get("/healthz"))[0] == 200
        async with picker.plane() as plane:
            assert await plane.health() == "SERVING"


async def test_tls(tmp_path: Path) -> None:
    flags = ["--endpoints", POD, "--tls-cert", f"{TLS}/server.crt", "--tls-key", f"{TLS}/server.key"]
    trusting = grpc.ssl_channel_credentials((TLS / "ca.crt").read_bytes())
    async with PickerProgram(tmp_path, *flags) as picker, DataPlane(picker.port, trusting) as plane:
        assert await plane.exchange() == POD


async def test_metrics_names_and_formats(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", f"{POD},{OTHER}") as picker, picker.plane() as plane:
        for _ in range(4):
            await plane.exchange()
        refused = plane.open(BUFFERED, NONE)
        await refused.headers()
        await refused.must_read()
        await refused.body(b"{")
        await refused.must_read()
        await refused.done()
        samples = await picker.samples()
        labels = 'fairness_id="",model_name="m",priority="0",target_model_name="m"'
        assert samples[f"llm_d_epp_request_total{{{labels}}}"] == 4
        assert samples[f"llm_d_epp_request_running{{{labels}}}"] == 0
        for name in ("duration_seconds", "size_bytes", "input_tokens", "cached_tokens"):
            assert samples[f"llm_d_epp_request_{name}_count{{{labels}}}"] == 4
        none = 'error_code="BadRequest",fairness_id="",model_name="",priority="0",target_model_name=""'
        assert samples[f"llm_d_epp_request_error_total{{{none}}}"] == 1
        assert samples["llm_d_epp_scheduler_e2e_duration_seconds_count"] == 4
        assert 0 < samples["llm_d_epp_scheduler_e2e_duration_seconds_sum"] < 4
        where = 'endpoint_name="{}",namespace="",port="9",status="success",target_model_name="m"'
        attempts = [
            samples.get(f"llm_d_epp_scheduler_attempts_total{{{where.format(host)}}}", 0)
            for host in ("127.0.0.1", "127.0.0.2")
        ]
        assert sum(attempts) == 4
        assert samples['llm_d_epp_ready_endpoints{name="default"}'] == 2
        assert samples['llm_d_epp_extproc_streams_total{code="OK"}'] == 5
        assert samples["llm_d_epp_extproc_streams_inflight"] == 0
        assert [series for series in samples if series.startswith('llm_d_epp_info{build_ref="0.')] != []
        assert samples['poolpilot_exchanges_total{outcome="served",pool="default"}'] == 4
        assert samples['poolpilot_requests_refused_total{code="BadRequest",pool="default",reason=""}'] == 1
        assert samples[f'poolpilot_endpoint_inflight{{model_server_endpoint="{POD}",name="default"}}'] == 0
        assert not [series for series in samples if series.startswith("poolpilot_endpoint_running")], "unknown, not 0"
        assert not [series for series in samples if "_created" in series]

        status, content_type, text = await picker.get("/metrics")
        assert status == 200 and content_type.startswith("text/plain; version=0.0.4") and "# EOF" not in text
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        status, content_type, text = await picker.get("/metrics", accept=accept)
        assert status == 200 and content_type.startswith("application/openmetrics-text") and text.endswith("# EOF\n")


async def test_receipts_and_their_filters(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        config("round-robin-picker", "poolpilot: {receipts: {share: 1.0, keep: 3}}\n")
    )
    flags = ("--endpoints", f"{POD},{OTHER}", "--config-file", "config.yaml", "--pool-name", "llama")
    async with PickerProgram(tmp_path, *flags) as picker, picker.plane() as plane:
        for number in range(4):
            stream = plane.open(BUFFERED, NONE)
            await stream.headers(x_request_id=f"id-{number}")
            await stream.must_read()
            await stream.body(chat("CONFIDENTIAL-4711", model=f"model-{number % 2}"))
            await stream.must_read()
            await stream.done()

        async def found(query: str = "") -> list[str]:
            decisions = (await picker.json(f"/debug/decisions{query}"))["decisions"]
            return [one["request_id"] for one in decisions]

        assert await found() == ["id-3", "id-2", "id-1"], "the oldest has gone"
        assert await found("?limit=1") == ["id-3"]
        assert await found("?request_id=id-2") == ["id-2"]
        assert await found("?model=model-1") == ["id-3", "id-1"]
        assert sorted(await found(f"?endpoint={POD}") + await found(f"?endpoint={OTHER}")) == ["id-1", "id-2", "id-3"]
        assert await found("?pool=llama&request_id=nobody") == []
        [one] = (await picker.json("/debug/decisions?limit=1"))["decisions"]
        assert one["chosen"] in (POD, OTHER) and len(one["candidates"]) == 2
        assert abs(one["time_unix_s"] - time.time()) < 3600
        for query, name, value in [
            ("?limit=0", "limit", "0"),
            ("?limit=-1", "limit", "-1"),
            ("?limit=1001", "limit", "1001"),
            ("?limit=many", "limit", "many"),
            ("?limit=%C2%B2", "limit", "²"),
            ("?limit=" + "9" * 50, "limit", "9" * 50),
            ("?pool=other", "pool", "other"),
            ("?modle=x", "modle", "x"),
            ("?limit=1&limit=2", "limit", "1"),
        ]:
            status, _, text = await picker.get(f"/debug/decisions{query}")
            assert status == 400, query
            error = msgspec.json.decode(text)["error"]
            assert error.startswith(f"query parameter {name} is {value!r}; allowed is "), error
        pages = [(await picker.get(page))[2] for page in (await picker.json("/"))["pages"]]
        assert not any("CONFIDENTIAL" in page for page in pages)


async def test_no_prompt_text_in_the_log(tmp_path: Path) -> None:
    marker = "CONFIDENTIAL-4711"
    flags = ("--endpoints", POD, "--log-level", "debug")
    bodies = [
        chat(marker),
        msgspec.json.encode({"model": "m", "messages": marker}),
        msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": {"text": marker}}]}),
        msgspec.json.encode({"model": [marker], "messages": []}),
        f'{{"model":"m","messages":[{{"role":"user","content":"{marker}'.encode(),
        marker.encode(),
    ]
    async with PickerProgram(tmp_path, *flags) as picker, picker.plane() as plane:
        for mode in (BUFFERED, DUPLEX):
            for body in bodies:
                stream = plane.open(mode, NONE)
                await stream.headers(x_poolpilot_receipt="1")
                if mode == BUFFERED:
                    await stream.must_read()
                await stream.body(body)
                await stream.must_read()
                stream.reset()
        call = plane.raw()
        await call.write(b"\xff" + marker.encode())
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        picker.terminate()
        await picker.exits()
    log = picker.log_file.read_text()
    assert "refused" in log and "a stream failed" in log
    assert marker not in log


# ── reloading ────────────────────────────────────────────────────────────────


async def test_reloading_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config("random-picker"))
    async with PickerProgram(tmp_path, "--endpoints", POD, "--config-file", str(file)) as picker:

        async def profile() -> str:
            return str((await picker.json("/debug/config"))["profile"])

        async def detail() -> str:
            return str((await picker.json("/readyz"))["detail"].get("configuration", ""))

        assert "random-picker" in await profile()

        async def reloaded() -> bool:
            return "round-robin-picker" in await profile()

        replace(file, config("round-robin-picker"))
        await picker.until(reloaded, "the new configuration is in force")
        assert picker.said("info", "configuration reloaded")

        async def complains() -> bool:
            return "is refused" in await detail()

        replace(file, config("no-such-picker"))
        await picker.until(complains, "the bad one shows")
        assert "no-such-picker" in await detail() and str(file) in await detail()
        assert (await picker.get("/readyz"))[0] == 200, "requests are still placed"
        assert "round-robin-picker" in await profile()
        assert picker.said("error", "no-such-picker")
        samples = await picker.samples()
        assert samples['poolpilot_config_loads_total{result="refused"}'] == 1
        assert samples['poolpilot_config_loads_total{result="accepted"}'] == 2

        async def misses() -> bool:
            return "cannot be read: No such file" in await detail()

        file.unlink()
        await picker.until(misses, "the missing one shows")
        assert picker.said("error", "cannot be read")
        assert "round-robin-picker" in await profile()

        async def content() -> bool:
            return not await detail() and "least-request-picker" in await profile()

        replace(file, config("least-request-picker"))
        await picker.until(content, "all is well again")

        async def waits() -> bool:
            return await detail() == "takes effect at the next start: limits.maxBodyBytes, receipts.keep"

        replace(
            file,
            config(
                "least-request-picker", "poolpilot: {limits: {maxBodyBytes: 2048}, receipts: {keep: 5, share: 0.5}}\n"
            ),
        )
        await picker.until(waits, "what needs a restart is said")
        async with picker.plane() as plane:
            assert await plane.exchange() == POD


async def test_endpoints_change_without_losing_what_is_in_flight(tmp_path: Path) -> None:
    file, eds = tmp_path / "endpoints.yaml", tmp_path / "eds.json"
    file.write_text(endpoints(POD))
    flags = ("--endpoints-file", str(file), "--eds-dir", str(tmp_path))
    async with PickerProgram(tmp_path, *flags) as picker, picker.plane() as plane:

        def in_eds() -> set[str]:
            [resource] = msgspec.json.decode(eds.read_bytes())["resources"]
            [group] = resource["endpoints"]
            sockets = [one["endpoint"]["address"]["socket_address"] for one in group["lb_endpoints"]]
            return {f"{one['address']}:{one['port_value']}" for one in sockets}

        async def rows() -> dict[str, tuple[float, bool]]:
            listed = (await picker.json("/debug/endpoints"))["pools"]["default"]
            return {one["endpoint"]: (one["in_flight"], one["draining"]) for one in listed}

        assert in_eds() == {POD}
        old = plane.open(BUFFERED, NONE)
        assert await old.place() == POD

        async def changed() -> bool:
            return set(await rows()) == {POD, OTHER, THIRD}

        replace(file, endpoints(OTHER, THIRD))
        await picker.until(changed, "the new endpoints are known")
        assert await rows() == {POD: (1.0, True), OTHER: (0.0, False), THIRD: (0.0, False)}
        assert in_eds() == {OTHER, THIRD}
        for _ in range(5):
            assert (await plane.exchange()).split(",")[0] in (OTHER, THIRD)
        await old.answer(POD)
        await old.must_read()
        assert (await rows())[POD] == (1.0, True)
        await old.done()

        async def gone() -> bool:
            return await rows() == {OTHER: (0.0, False), THIRD: (0.0, False)}

        await picker.until(gone, "the old endpoint leaves with its last request")

        async def complains() -> bool:
            return "last good endpoints stay" in (await picker.json("/readyz"))["detail"].get("discovery", "")

        replace(file, "endpoints: [{address: nowhere, port: 0}]")
        await picker.until(complains, "the bad file shows")
        assert await gone() and in_eds() == {OTHER, THIRD}
        assert (await picker.samples())["poolpilot_discovery_failures_total"] == 1

        async def empty() -> bool:
            return "endpoints" in (await picker.json("/readyz"))["detail"]

        replace(file, "endpoints: []")
        await picker.until(empty, "the empty pool shows")
        assert (await picker.get("/readyz"))[0] == 200, "an empty pool answers 503 with a reason"
        stream = plane.open(BUFFERED, NONE)
        await stream.headers("/v1/models", end=True)
        assert (await stream.must_read()).immediate_response.status.code == 503
        await stream.done()


# ── stopping ─────────────────────────────────────────────────────────────────


async def test_readiness_goes_first_and_streams_in_flight_finish(tmp_path: Path) -> None:
    flags = ("--endpoints", POD, "--shutdown-notice", "600", "--drain-timeout", "600")
    async with PickerProgram(tmp_path, *flags) as picker, picker.plane() as plane:
        watch = plane.watch()
        assert (await watch.read()).status == 1
        old = plane.open(BUFFERED, NONE)
        assert await old.place() == POD
        picker.terminate()
        assert (await watch.read()).status == 2
        assert await plane.health() == "NOT_SERVING"
        status, _, text = await picker.get("/readyz")
        assert status == 503
        assert msgspec.json.decode(text)["detail"] == {"draining": "shutting down: no new streams are taken"}
        assert (await picker.get("/healthz"))[0] == 200, "it must not be killed for it"
        assert await plane.exchange() == POD, "in the time of notice all goes on"
        await old.answer(POD)
        await old.must_read()
        await old.done()
        picker.terminate()
        assert await picker.exits() == 0


async def test_new_streams_are_refused_while_one_finishes(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--drain-timeout", "600") as picker, picker.plane() as plane:
        old = plane.open(BUFFERED, NONE)
        await old.headers()
        await old.must_read()
        picker.terminate()

        async def not_ready() -> bool:
            return (await picker.get("/readyz"))[0] == 503

        await picker.until(not_ready, "it is not ready")
        await asyncio.sleep(0.2)
        async with picker.plane() as another:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await another.open(BUFFERED, NONE).place()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await old.body(chat())
        assert destination(await old.must_read()) == POD
        await old.answer(POD)
        await old.must_read()
        assert picker.child.running
        await old.done()
        assert await picker.exits() == 0


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--drain-timeout", "600") as picker, picker.plane() as plane:
        waiting, placed = plane.open(BUFFERED, NONE), plane.open(BUFFERED, NONE)
        await waiting.headers()
        await waiting.must_read()
        await placed.place()
        picker.terminate()
        await asyncio.sleep(0.3)
        assert picker.child.running
        picker.terminate()
        assert (await waiting.must_read()).immediate_response.status.code == 503
        assert await placed.read() is None, "its answer may pass without us"
        assert await picker.exits() == 0
        assert picker.said("warning", "another signal: open exchanges are given up")


async def test_the_drain_timeout_ends_it(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--drain-timeout", "0.2") as picker, picker.plane() as plane:
        stream = plane.open(BUFFERED, NONE)
        await stream.place()
        picker.terminate()
        assert await stream.read() is None
        assert await picker.exits() == 0


# ── not starting ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
async def test_a_taken_port(tmp_path: Path, flag: str) -> None:
    [port] = free_ports(1)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    async with server:
        picker = PickerProgram(tmp_path, "--endpoints", POD, flag, f"127.0.0.1:{port}")
        picker.child.start()
        assert await picker.exits(60.0) == 1
    assert f"poolpilot-picker: cannot listen on 127.0.0.1:{port} for " in picker.log_file.read_text()


async def test_two_pickers_on_one_port(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD) as first:
        second = PickerProgram(tmp_path / "second", "--endpoints", POD, "--listen", f"127.0.0.1:{first.port}")
        (tmp_path / "second").mkdir()
        second.child.start()
        assert await second.exits(60.0) == 1
        assert "the port is taken" in second.log_file.read_text()
        async with first.plane() as plane:
            assert await plane.exchange() == POD


PLUGIN = """
import msgspec
import numpy as np
from poolpilot_picker.config.registry import PluginKind, PluginType


class NoParameters(msgspec.Struct):
    pass


class Moody:
    def score(self, view):
        raise RuntimeError("not today")


TYPE = PluginType(
    name="moody-scorer",
    kinds=frozenset({PluginKind.SCORER}),
    parameters=NoParameters,
    summary="Fails.",
    build=lambda parameters: Moody(),
)
"""


def install(folder: Path, target: str) -> dict[str, str]:
    """A distribution with one entry point; returns the environment that finds it."""
    (folder / "moody.py").write_text(PLUGIN)
    info = folder / "moody_plugins-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moody-plugins\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[poolpilot.plugins]\nmoody = {target}\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("moody:NOTHING", "cannot be loaded: AttributeError"),
        ("no_such_module:TYPE", "cannot be loaded: ModuleNotFoundError"),
        ("moody:Moody", "is type; expected a PluginType"),
    ],
)
async def test_a_broken_plugin_of_a_user(tmp_path: Path, target: str, problem: str) -> None:
    picker = PickerProgram(tmp_path, "--endpoints", POD, env=install(tmp_path, target))
    picker.child.start()
    assert await picker.exits(60.0) == 2
    wanted = f"poolpilot-picker: entry point moody ({target}) of moody-plugins 1.2 {problem}"
    assert wanted in picker.log_file.read_text()


async def test_a_plugin_that_fails_costs_no_request(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        config("max-score-picker").replace("plugins:\n", "plugins:\n- type: moody-scorer\n", 1)
        + "  - pluginRef: moody-scorer\n"
    )
    flags = ("--endpoints", POD, "--config-file", str(file))
    async with PickerProgram(tmp_path, *flags, env=install(tmp_path, "moody:TYPE")) as picker, picker.plane() as plane:
        assert await plane.exchange() == POD
        assert (await picker.samples())['poolpilot_plugin_failures_total{plugin="moody-scorer"}'] == 1
        assert picker.said("warning", "not today")
