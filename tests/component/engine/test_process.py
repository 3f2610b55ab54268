"""`poolpilot engine` as a process: ready line, signals, wrong options."""

import asyncio
import json
import signal
import sys

import pytest

from engine_http import read_reply, request

ENGINE = (sys.executable, "-m", "poolpilot", "engine")


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *ENGINE, *flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_tells_its_port_serves_and_stops_on_a_signal(number: signal.Signals) -> None:
    process = await start(
        "--port", "0", "--profile", "llama-3.1-8b-a100", "--served-model-name", "m", "--time-scale", "0.1"
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        assert (ready["event"], ready["host"], ready["model"]) == ("ready", "127.0.0.1", "m")
        reader, writer = await asyncio.open_connection("127.0.0.1", ready["port"])
        writer.write(request("GET", "/v1/models"))
        assert (await read_reply(reader)).json["data"][0]["root"] == "meta-llama/Llama-3.1-8B"
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True}
        writer.write(request("POST", "/v1/chat/completions", body))
        await reader.readuntil(b"data: ")
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_taken_port_exits_1() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        process = await start("--port", str(port))
        _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in stderr.decode()
