"""Adapters at run time: the answers that are not recorded, and what loading does to the engine."""

from typing import Any

from engine_http import call, serving
from poolpilot_lab.engine.models import Adapter

SETTINGS: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "runtime_lora": True, "lora_load_ms": 100.0}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def test_loading_registers_and_brings_the_adapter_into_a_slot() -> None:
    async with serving(**SETTINGS) as server:
        await call(server, "POST", LOAD, {"lora_name": "ad-a", "lora_path": "/a"})
        assert server.engine.slots.resident == ("ad-a",)
        assert [card["id"] for card in (await call(server, "GET", "/v1/models")).json["data"]] == ["tiny", "ad-a"]
        reply = await call(server, "POST", "/v1/completions", {"model": "ad-a", "prompt": "x"})
        assert (reply.status, reply.json["model"], server.engine.slots.loads) == (200, "ad-a", 1)


async def test_unloading_forgets_the_name_and_keeps_the_weights() -> None:
    async with serving(**SETTINGS, lora_modules=(Adapter("ad-a", "/a"),)) as server:
        await call(server, "POST", "/v1/completions", {"model": "ad-a", "prompt": "x"})
        assert (await call(server, "POST", UNLOAD, {"lora_name": "ad-a"})).status == 200
        assert server.engine.slots.resident == ("ad-a",)
        gone = await call(server, "POST", "/v1/completions", {"model": "ad-a", "prompt": "x"})
        assert (gone.status, gone.json["error"]["type"]) == (404, "NotFoundError")


async def test_loading_in_place_is_no_error() -> None:
    async with serving(**SETTINGS) as server:
        body = {"lora_name": "ad-a", "lora_path": "/a"}
        await call(server, "POST", LOAD, body)
        reply = await call(server, "POST", LOAD, {**body, "lora_path": "/b", "load_inplace": True})
        assert (reply.status, reply.headers.get("content-type")) == (200, None)
        cards = (await call(server, "GET", "/v1/models")).json["data"]
        assert [card["root"] for card in cards if card["id"] == "ad-a"] == ["/b"]


async def test_misuse_is_answered_as_vllm_answers_it() -> None:
    cases: list[tuple[str, dict[str, Any], int, str, str]] = [
        (LOAD, {"lora_name": "ad-a"}, 400, "InvalidUserInput", "'lora_path'"),
        (LOAD, {"lora_name": "tiny", "lora_path": "/x"}, 400, "InvalidUserInput", "base model"),
        (LOAD, {"lora_name": 5}, 400, "Bad Request", "got `int`"),
        (UNLOAD, {}, 400, "InvalidUserInput", "'lora_name'"),
        (UNLOAD, {"lora_name": "ad-x"}, 404, "NotFoundError", "'ad-x' cannot be found"),
    ]
    async with serving(**SETTINGS) as server:
        for path, body, status, kind, says in cases:
            reply = await call(server, "POST", path, body)
            error = reply.json["error"]
            assert (reply.status, error["type"], error["code"]) == (status, kind, status), body
            assert says in error["message"]
    async with serving(runtime_lora=True) as server:
        reply = await call(server, "POST", LOAD, {"lora_name": "ad-a", "lora_path": "/a"})
        assert reply.status == 400
        assert "--enable-lora" in reply.json["error"]["message"]
