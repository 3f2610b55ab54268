"""Requests come and go: headers before prefill, aborts that free, connections that are reused, a server that stops."""

import asyncio
from typing import Any

import pytest

from engine_http import FAST, call, events, read_chunks, read_head, read_reply, request, sample, serving, until
from poolpilot_lab.engine.model import State

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "Count to a million."}], "stream": True, "ignore_eos": True}


async def open_stream(server: Any, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request("POST", CHAT, body))
    return reader, writer


async def test_headers_arrive_before_the_prompt_is_computed() -> None:
    async with serving(FAST) as server:
        server.frontend.driver.pause()
        reader, writer = await open_stream(server, LONG)
        status, headers, _ = await asyncio.wait_for(read_head(reader), 5)
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        assert server.engine.telemetry.steps == 0
        assert server.engine.telemetry.ttft.count == 0
        server.frontend.driver.resume()
        first = await asyncio.wait_for(anext(read_chunks(reader)), 5)
        assert b'"role":"assistant"' in first
        writer.close()


@pytest.mark.parametrize("when", ["waiting", "before the first token", "mid-stream"])
async def test_a_client_that_leaves_frees_its_sequence(when: str) -> None:
    async with serving(FAST, max_num_seqs=1, time_scale=0.2) as server:
        if when == "waiting":
            _, first = await open_stream(server, LONG)
            await until(lambda: len(server.engine.running) == 1)
        if when == "before the first token":
            server.frontend.driver.pause()
        reader, writer = await open_stream(server, LONG)
        await read_head(reader)
        if when == "waiting":
            await until(lambda: len(server.engine.waiting) == 1)
        elif when == "mid-stream":
            chunks = read_chunks(reader)
            for _ in range(5):
                await anext(chunks)
        sequence = server.engine.waiting[-1] if server.engine.waiting else server.engine.running[-1]
        writer.transport.abort()
        await until(lambda: sequence.state is State.ABORTED)
        assert sequence.table == []
        assert server.engine.in_flight == (1 if when == "waiting" else 0)
        assert len(server.frontend.answers) == server.engine.in_flight
        assert server.engine.telemetry.finished["abort"] == 1
        if when == "waiting":
            first.close()
        else:
            assert server.engine.blocks.used == 0


async def test_every_choice_of_an_aborted_request_is_freed() -> None:
    async with serving(FAST) as server:
        reader, writer = await open_stream(server, {**LONG, "n": 5})
        await read_head(reader)
        await until(lambda: server.engine.in_flight == 5)
        writer.transport.abort()
        await until(lambda: server.engine.in_flight == 0)
        assert server.engine.blocks.used == 0


async def test_a_whole_answer_is_aborted_too() -> None:
    async with serving(FAST, time_scale=1.0) as server:
        _, writer = await open_stream(server, {**LONG, "stream": False})
        await until(lambda: server.engine.in_flight == 1)
        writer.transport.abort()
        await until(lambda: server.engine.in_flight == 0)


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serving(FAST) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        small = {**LONG, "max_tokens": 3}
        # Two requests in one write: the second is answered after the first.
        writer.write(request("POST", CHAT, small) + request("GET", "/v1/models"))
        first = await read_reply(reader)
        second = await read_reply(reader)
        assert events(first.body)[-1] == "[DONE]"
        assert second.json["object"] == "list"
        writer.write(request("GET", "/health"))
        assert (await read_reply(reader)).status == 200
        writer.close()


async def test_bodies_in_pieces_and_expectations_are_understood() -> None:
    async with serving(FAST) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        data = request("POST", CHAT, {**LONG, "max_tokens": 2}, {"expect": "100-continue"})
        head, _, body = data.partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for position in range(0, len(body), 17):
            writer.write(body[position : position + 17])
            await asyncio.sleep(0)
        assert events((await read_reply(reader)).body)[-1] == "[DONE]"
        writer.close()


async def test_chunked_request_bodies_are_understood() -> None:
    async with serving(FAST) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            b'a\r\n{"prompt":\r\n5\r\n"a b"\r\n1\r\n}\r\n0\r\n\r\n'
        )
        assert (await read_reply(reader)).json["count"] == 2
        writer.close()


@pytest.mark.parametrize("garbage", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"])
async def test_garbage_is_refused_and_closed(garbage: bytes) -> None:
    async with serving(FAST) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()
        assert (await call(server, "GET", "/health")).status == 200


async def test_unknown_paths_and_methods() -> None:
    async with serving(FAST) as server:
        missing = await call(server, "GET", "/nowhere")
        wrong = await call(server, "GET", CHAT)
        lora = await call(server, "POST", "/v1/load_lora_adapter", {})
    assert (missing.status, missing.json) == (404, {"detail": "Not Found"})
    assert (wrong.status, wrong.json, wrong.headers["allow"]) == (405, {"detail": "Method Not Allowed"}, "POST")
    assert (lora.status, lora.json) == (404, {"detail": "Not Found"}), "runtime LoRA is not enabled"


async def test_a_request_to_upgrade_is_answered_as_if_it_had_not_asked() -> None:
    async with serving(FAST) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("GET", "/version", headers={"connection": "upgrade", "upgrade": "h2c"}))
        assert (await read_reply(reader)).json == {"version": "0.32.0"}
        assert await reader.read() == b""
        writer.close()


async def test_stats_tell_what_a_real_engine_does_not() -> None:
    async with serving(FAST) as server:
        await call(server, "POST", CHAT, {**LONG, "max_tokens": 3})
        stats = (await call(server, "GET", "/stats")).json
    assert (stats["adapter_loads"], stats["adapter_evictions"]) == (0, 0)
    assert stats["clock"]["steps"] == 3
    assert set(stats["clock"]) == {"steps", "late", "late_ms", "worst_ms", "forgiven"}


async def test_small_routes() -> None:
    async with serving(FAST) as server:
        for path in ("/health", "/ping"):
            reply = await call(server, "GET", path)
            assert (reply.status, reply.body) == (200, b"")
        assert (await call(server, "GET", "/version")).json == {"version": "0.32.0"}
        assert (await call(server, "GET", "/load")).json == {"server_load": 0}
        _, writer = await open_stream(server, LONG)
        await until(lambda: server.engine.in_flight == 1)
        assert (await call(server, "GET", "/load")).json == {"server_load": 1}
        writer.close()


async def test_the_api_key_guards_v1_only() -> None:
    async with serving(FAST, api_keys=("secret", "other")) as server:
        assert (await call(server, "GET", "/health")).status == 200
        assert (await call(server, "GET", "/metrics")).status == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            reply = await call(server, "GET", "/v1/models", headers=headers)
            assert (reply.status, reply.json) == (401, {"error": "Unauthorized"})
        assert (await call(server, "GET", "/v1/models", headers={"authorization": "Bearer other"})).status == 200
        refused = await call(server, "POST", CHAT, LONG)
        assert refused.status == 401
        assert server.engine.in_flight == 0


async def test_request_ids_and_instance_names() -> None:
    async with serving(FAST, instance="engine-3") as server:
        reply = await call(server, "POST", CHAT, {**LONG, "stream": False, "max_tokens": 1}, {"x-request-id": "abc"})
        missing = await call(server, "GET", "/nowhere")
    assert reply.json["id"] == "chatcmpl-abc"
    assert reply.headers["x-engine-instance"] == missing.headers["x-engine-instance"] == "engine-3"
    async with serving(FAST) as server:
        assert "x-engine-instance" not in (await call(server, "GET", "/health")).headers


async def test_several_servers_share_an_event_loop() -> None:
    async with serving(FAST) as one, serving(FAST) as two:
        assert one.port != two.port
        await call(one, "POST", CHAT, {**LONG, "max_tokens": 3})
        assert (one.engine.telemetry.generation_tokens, two.engine.telemetry.generation_tokens) == (3, 0)


async def test_closing_breaks_streams_off_or_lets_them_finish() -> None:
    async with serving(FAST, time_scale=1.0) as server:
        reader, _ = await open_stream(server, LONG)
        await read_head(reader)
        await server.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            async for _chunk in read_chunks(reader):
                pass
    async with serving(FAST, shutdown_timeout=20.0) as server:
        reader, _ = await open_stream(server, {**LONG, "max_tokens": 40})
        await read_head(reader)
        closing = asyncio.create_task(server.close())
        body = b"".join([chunk async for chunk in read_chunks(reader)])
        assert events(body)[-1] == "[DONE]"
        await asyncio.wait_for(closing, 5)


async def test_a_large_prompt_is_counted_before_it_is_refused() -> None:
    async with serving(FAST) as server:
        reply = await call(server, "POST", "/v1/completions", {"prompt": "word " * 400_000})
    assert reply.status == 400
    assert reply.json["error"]["param"] == "input_tokens"


async def test_time_between_tokens_follows_the_model() -> None:
    """A ratio of what the client sees to what the engine planned, in one run."""
    async with serving(FAST, time_scale=1.0) as server:
        reader, writer = await open_stream(server, {**LONG, "max_tokens": 60})
        await read_head(reader)
        loop = asyncio.get_running_loop()
        times = [loop.time() async for chunk in read_chunks(reader) if b'"delta":{"content"' in chunk]
        writer.close()
        page = (await call(server, "GET", "/metrics")).body
    planned = sample(page, "vllm:inter_token_latency_seconds_sum") / 59
    # Absolute deadlines: lateness at both ends remains, it does not add up over the steps.
    assert (times[-1] - times[0]) / 59 == pytest.approx(planned, rel=0.25)
