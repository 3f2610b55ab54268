"""Injected faults do what they say, and stop when they are taken back."""

import asyncio

import pytest

from engine_http import FAST, call, read_chunks, read_head, request, sample, serving, until
from poolpilot_lab.engine.faults import parse_faults
from poolpilot_lab.engine.server import EngineServer

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}


async def inject(server: EngineServer, *faults: str) -> None:
    reply = await call(server, "POST", "/fault", {"faults": list(faults)})
    assert reply.status == 200, reply.body


async def test_faults_are_shown_and_replaced() -> None:
    async with serving(faults=parse_faults(["slow=2"])) as server:
        assert (await call(server, "GET", "/fault")).json == {"faults": ["slow=2"]}
        await inject(server, "error-rate=0.5:429", "metrics-hang")
        assert (await call(server, "GET", "/fault")).json == {"faults": ["error-rate=0.5:429", "metrics-hang"]}
        assert server.engine.accelerator.slow == 1.0
        await inject(server)
        assert (await call(server, "GET", "/fault")).json == {"faults": []}
        wrong = await call(server, "POST", "/fault", {"faults": ["explode"]})
        assert wrong.status == 400
        assert "'explode'" in wrong.json["error"]["message"]
        assert "slow=FACTOR" in wrong.json["error"]["message"]


async def test_slow_multiplies_the_steps() -> None:
    async with serving(FAST) as server:
        await call(server, "POST", CHAT, BODY)
        before = server.engine.telemetry.busy_ms
        await inject(server, "slow=3")
        await call(server, "POST", CHAT, BODY)
        after = server.engine.telemetry.busy_ms
    assert (after - before) / before == pytest.approx(3.0, rel=0.05)


async def test_a_share_of_requests_fails_from_the_seed() -> None:
    async with serving(FAST, faults=parse_faults(["error-rate=0.5:503"]), seed=4) as server:
        statuses = [(await call(server, "POST", CHAT, BODY)).status for _ in range(40)]
        assert (await call(server, "GET", "/v1/models")).status == 200
    assert set(statuses) == {200, 503}
    assert 10 <= statuses.count(503) <= 30
    async with serving(FAST, faults=parse_faults(["error-rate=0.5:503"]), seed=4) as server:
        assert [(await call(server, "POST", CHAT, BODY)).status for _ in range(40)] == statuses


async def test_fail_fast_refuses_every_inference_request() -> None:
    async with serving(FAST, faults=parse_faults(["fail-fast"])) as server:
        reply = await call(server, "POST", CHAT, BODY)
        stream = await call(server, "POST", CHAT, {**BODY, "stream": True})
        assert (reply.status, stream.status) == (500, 500)
        assert reply.json["error"]["type"] == "InternalServerError"
        assert server.engine.telemetry.steps == 0


async def test_hang_stalls_streams_and_accepts_requests() -> None:
    async with serving(FAST, time_scale=0.1) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("POST", CHAT, {**BODY, "stream": True, "max_tokens": 500}))
        await read_head(reader)
        chunks = read_chunks(reader)
        await anext(chunks)
        await inject(server, "hang")
        steps = server.engine.telemetry.steps
        other = asyncio.create_task(call(server, "POST", CHAT, BODY))
        await until(lambda: server.engine.in_flight == 2)
        assert (await call(server, "GET", "/health")).status == 200
        page = (await call(server, "GET", "/metrics")).body
        assert sample(page, "vllm:num_requests_running") == 1, "frozen"
        await asyncio.sleep(0.05)
        assert server.engine.telemetry.steps == steps
        assert not other.done()
        await inject(server)
        assert (await asyncio.wait_for(other, 10)).status == 200
        rest = [chunk async for chunk in chunks]
        assert rest[-1] == b"data: [DONE]\n\n"
        writer.close()


async def test_an_abort_is_heard_while_the_engine_hangs() -> None:
    async with serving(FAST, faults=parse_faults(["hang"])) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("POST", CHAT, BODY))
        await until(lambda: server.engine.in_flight == 1)
        writer.transport.abort()
        await until(lambda: server.engine.in_flight == 0)
        await inject(server)
        assert (await call(server, "POST", CHAT, BODY)).status == 200


async def test_the_metrics_page_can_hang_alone() -> None:
    async with serving(FAST, faults=parse_faults(["metrics-hang"])) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("GET", "/metrics"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        writer.close()
        assert (await call(server, "POST", CHAT, BODY)).status == 200


async def test_a_restart_drops_everything_and_comes_back_cold_on_the_same_port() -> None:
    prompt = {"messages": [{"role": "user", "content": "word " * 100}], "max_tokens": 2}
    async with serving(FAST, seed=3, enable_lora=True, runtime_lora=True) as server:
        port, engine = server.port, server.engine
        await call(server, "POST", "/v1/load_lora_adapter", {"lora_name": "ad-a", "lora_path": "/a"})
        await call(server, "POST", CHAT, prompt)
        first = (await call(server, "GET", "/metrics")).body
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("POST", CHAT, {**BODY, "stream": True, "max_tokens": 1900}))
        await read_head(reader)
        await inject(server, "restart=0.05")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            async for _chunk in read_chunks(reader):
                pass
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: server.running)
        assert server.port == port
        assert server.engine is not engine
        reply = (await call(server, "POST", CHAT, prompt)).json
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        second = (await call(server, "GET", "/metrics")).body
        models = [card["id"] for card in (await call(server, "GET", "/v1/models")).json["data"]]
        writer.close()
    start = "process_start_time_seconds"
    assert sample(second, start) > sample(first, start)
    assert sample(second, "vllm:generation_tokens_total") == 2
    assert models == ["tiny"], "adapters loaded at run time are lost"
    assert server.running is False


async def test_a_server_can_be_closed_while_it_restarts() -> None:
    async with serving(FAST) as server:
        await inject(server, "restart=60")
        await until(lambda: not server.running)
