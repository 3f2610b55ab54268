"""The metrics page against vLLM's recording: the same families, types, help and labels, and the recorded quirks."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_http import FAST, call, request, sample, serving, until
from poolpilot_lab.engine.models import Adapter
from poolpilot_lab.engine.server import EngineServer

DATA = Path(__file__).parents[2] / "data/engines/vllm-0.32"
BUSY = (DATA / "metrics-busy-lora.txt").read_text()

# What a picker reads, and more: everything vLLM names after itself.
READ = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_generation_tokens",
    "vllm:request_prompt_tokens",
    "process_start_time_seconds",
}
LORA: dict[str, Any] = {
    "enable_lora": True,
    "max_loras": 2,
    "lora_modules": tuple(Adapter(f"ad-{name}", f"/{name}") for name in "abc"),
}


def families(page: str) -> dict[str, tuple[str, str, list[str]]]:
    """name -> type, help, and the label keys of each series without its values, in order."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    name = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            name, _, text = line[7:].partition(" ")
            found[name] = ("", text, [])
        elif line.startswith("# TYPE "):
            found[name] = (line.rpartition(" ")[2], found[name][1], [])
        else:
            series = line.rpartition(" ")[0]
            bound = re.search(r'le="([^"]*)"', series)
            keys = re.sub(r'="[^"]*"', "", series) + (f" {bound.group(1)}" if bound else "")
            if keys not in found[name][2]:
                found[name][2].append(keys)
    return found


async def chat(server: EngineServer, content: str = "word " * 60, **body: Any) -> None:
    messages = [{"role": "user", "content": content}]
    assert (await call(server, "POST", "/v1/chat/completions", {"messages": messages, **body})).status == 200


async def page_of(server: EngineServer, target: str = "/metrics") -> str:
    return (await call(server, "GET", target)).body.decode()


async def test_families_types_help_and_labels_are_the_recorded_ones() -> None:
    recorded = families(BUSY)
    assert set(recorded) >= READ
    async with serving(**LORA) as server:
        await chat(server, model="ad-a")
        reply = await call(server, "GET", "/metrics")
    page = families(reply.body.decode())
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert set(page) <= set(recorded)
    assert {name for name in recorded if name.startswith("vllm:")} == {
        name for name in page if name.startswith("vllm:")
    }
    assert set(page) >= READ
    for name, family in page.items():
        if name.startswith(("vllm:", "process_start")):
            assert family == recorded[name], name
        else:
            assert family[:2] == recorded[name][:2], name


async def test_the_page_is_valid_exposition_text() -> None:
    async with serving(**LORA) as server:
        await chat(server)
        page = await page_of(server)
    parsed = {family.name: family for family in text_string_to_metric_families(page)}
    assert parsed["vllm:prompt_tokens"].type == "counter"
    buckets = [s for s in parsed["vllm:time_to_first_token_seconds"].samples if s.name.endswith("_bucket")]
    assert [s.value for s in buckets] == sorted(s.value for s in buckets)
    assert buckets[-1].labels["le"] == "+Inf"
    assert buckets[-1].value == 1.0


async def test_without_lora_there_is_no_lora_family() -> None:
    async with serving() as server:
        await chat(server)
        assert "vllm:lora_requests_info" not in families(await page_of(server))


async def test_counters_tell_what_was_served() -> None:
    async with serving() as server:
        for _ in range(2):
            await chat(server, max_tokens=5, ignore_eos=True)
        await chat(server, "other", max_tokens=1, ignore_eos=True)
        page = (await call(server, "GET", "/metrics")).body
        telemetry = server.engine.telemetry
    assert sample(page, "vllm:generation_tokens_total") == 11
    assert sample(page, "vllm:request_success_total", finished_reason="length") == 3
    assert sample(page, "vllm:request_success_total", finished_reason="abort") == 0
    assert sample(page, "vllm:prompt_tokens_total") == telemetry.prompt_tokens > 120
    hits = sample(page, "vllm:prefix_cache_hits_total")
    assert hits == 64, "four blocks of the repeated prompt"
    assert sample(page, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == hits
    assert sample(page, "vllm:prompt_tokens_cached_by_source_total", source="device") == hits
    assert sample(page, "vllm:prefix_cache_queries_total") == telemetry.prompt_tokens
    for name, count in (
        ("time_to_first_token_seconds", 3),
        ("inter_token_latency_seconds", 8),
        ("e2e_request_latency_seconds", 3),
        ("request_queue_time_seconds", 3),
        ("request_generation_tokens", 3),
        ("request_params_max_tokens", 3),
    ):
        assert sample(page, f"vllm:{name}_count") == count, name
    assert sample(page, "vllm:request_generation_tokens_bucket", le="1.0") == 1
    assert sample(page, "vllm:num_requests_running") == 0
    assert sample(page, "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize(("max_num_seqs", "running", "capacity", "deferred"), [(4, 4, 3, 0), (16, 6, 0, 1)])
async def test_a_full_engine_tells_running_waiting_and_why(
    max_num_seqs: int, running: int, capacity: int, deferred: int
) -> None:
    body = {"messages": [{"role": "user", "content": "go on"}], "ignore_eos": True, "stream": True, "max_tokens": 1900}
    async with serving(**LORA, max_num_seqs=max_num_seqs, time_scale=0.1) as server:
        writers: list[asyncio.StreamWriter] = []
        for model in ("ad-a", "ad-b", "ad-c", "tiny", "tiny", "tiny", "tiny"):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request("POST", "/v1/chat/completions", {**body, "model": model}))
            writers.append(writer)
            await until(lambda: server.engine.in_flight == len(writers))
        await until(lambda: server.engine.telemetry.gauges.running == running)
        page = (await call(server, "GET", "/metrics")).body
        assert sample(page, "vllm:num_requests_running") == running
        assert sample(page, "vllm:num_requests_waiting") == capacity + deferred
        assert sample(page, "vllm:num_requests_waiting_by_reason", reason="capacity") == capacity
        assert sample(page, "vllm:num_requests_waiting_by_reason", reason="deferred") == deferred
        assert 0 < sample(page, "vllm:kv_cache_usage_perc") < 0.01
        for writer in writers:
            writer.close()


async def test_lora_info_keeps_stale_combinations_and_the_newest_has_the_largest_value() -> None:
    async with serving(**LORA) as server:
        assert "vllm:lora_requests_info{" not in await page_of(server), "nothing before the first step"
        await asyncio.gather(chat(server, model="ad-b", max_tokens=2), chat(server, model="ad-a", max_tokens=60))
        await chat(server, model="ad-c", max_tokens=2)
        page = await page_of(server)
    series = re.findall(
        r'^vllm:lora_requests_info\{max_lora="2",running_lora_adapters="(.*)",waiting_lora_adapters="(.*)"\} (.*)$',
        page,
        re.MULTILINE,
    )
    assert all(running == waiting for running, waiting, _ in series)
    values = {running: float(value) for running, _, value in series}
    assert {"", "ad-a", "ad-c"} < set(values)
    assert max(values, key=lambda names: values[names]) == ""
    assert values["ad-c"] > values["ad-a"]
    assert min(values.values()) > 1.7e9


async def test_cache_config_tells_size_and_number_of_blocks() -> None:
    async with serving(block_size=32, num_gpu_blocks_override=200) as server:
        line = next(line for line in (await page_of(server)).splitlines() if line.startswith("vllm:cache_config_info{"))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    recorded = next(
        line
        for line in (DATA / "metrics-kv-pressure.txt").read_text().splitlines()
        if line.startswith("vllm:cache_config_info{")
    )
    expected = dict(re.findall(r'(\w+)="([^"]*)"', recorded))
    # The recorded server held a tiny model: only the bytes differ.
    assert labels.pop("kv_cache_memory_bytes") != expected.pop("kv_cache_memory_bytes")
    assert labels == expected


@pytest.mark.parametrize(
    "names", [["vllm:num_requests_running"], ["vllm:lora_requests_info", "vllm:num_preemptions_total"]]
)
async def test_a_selection_needs_the_trailing_slash(names: list[str]) -> None:
    query = "&".join(f"name[]={name}" for name in names)
    async with serving(**LORA) as server:
        await chat(server)
        assert set(families(await page_of(server, f"/metrics/?{query}"))) == set(names)
        assert len(families(await page_of(server, f"/metrics?{query}"))) > 50
        assert len(families(await page_of(server, "/metrics/"))) > 50
        encoded = query.replace("[]", "%5B%5D").replace(":", "%3A")
        assert set(families(await page_of(server, f"/metrics/?{encoded}"))) == set(names)


async def test_a_selection_is_by_the_names_of_samples() -> None:
    async with serving() as server:
        await chat(server)
        for name, lines in (
            ("vllm:time_to_first_token_seconds", 0),
            ("vllm:time_to_first_token_seconds_sum", 3),
            ("vllm:prefix_cache_hits", 0),
            ("vllm:prefix_cache_hits_created", 3),
            ("vllm:nothing", 0),
        ):
            page = await page_of(server, f"/metrics/?name[]={name}")
            assert len(page.splitlines()) == lines, name


async def test_the_recorded_selection_has_the_recorded_size() -> None:
    recorded = (DATA / "metrics-kv-pressure-selected.txt").read_text()
    names = {line.split("{")[0] for line in recorded.splitlines() if not line.startswith("#")}
    async with serving(**LORA) as server:
        await chat(server)
        selected = await page_of(server, "/metrics/?" + "&".join(f"name[]={name}" for name in sorted(names)))
        full = await page_of(server)
    assert families(selected).keys() == families(recorded).keys()
    assert len(selected) < 3000 < 30_000 < len(full)


async def test_preemptions_are_told() -> None:
    body = {"ignore_eos": True, "max_tokens": 150}
    async with serving(FAST, num_gpu_blocks_override=21, max_model_len=320) as server:
        await asyncio.gather(*(chat(server, f"{number} go on", **body) for number in range(4)))
        page = (await call(server, "GET", "/metrics")).body
        preempted = server.engine.telemetry.preemptions
    assert sample(page, "vllm:num_preemptions_total") == preempted > 0
    assert sample(page, "vllm:request_num_preemptions_sum") == preempted
    assert sample(page, "vllm:generation_tokens_total") == 600


async def test_http_requests_are_counted_by_route() -> None:
    async with serving() as server:
        await chat(server)
        await call(server, "GET", "/nowhere")
        await call(server, "POST", "/v1/completions", {})
        page = (await call(server, "GET", "/metrics")).body
    for handler, status in (("/v1/chat/completions", "2xx"), ("none", "4xx"), ("/v1/completions", "4xx")):
        assert sample(page, "http_requests_total", handler=handler, status=status) == 1
