"""The engines' own API for adapters, over HTTP: what is there, load, unload. vLLM and SGLang."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from poolpilot_operator.lora.placement import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATHS: Final = {
    "vllm": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    "sglang": ("/load_lora_adapter", "/unload_lora_adapter"),
}
_LOOK_S: Final = 10.0
_LOAD_S: Final = 120.0
"""Adapters are fetched from hubs and read from slow disks."""
_MOST_BYTES: Final = 16 * 2**20
_MOST_MESSAGE: Final = 500
_MAX_LORA: Final = re.compile(rb'^vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', re.MULTILINE)
_POOL_SLOTS: Final = re.compile(rb"^sglang:lora_pool_slots_total(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)


class Endpoint(msgspec.Struct, frozen=True):
    """One port of a pod."""

    place: Place
    pod: str
    host: str
    engine: str = "vllm"
    slots: int | None = None
    """Adapters that it holds at a time, as its flags say; None if they do not."""


class Found(msgspec.Struct, frozen=True):
    """What an endpoint says of itself."""

    models: dict[str, str | None]
    """Name → base model; None for a base model."""
    slots: int | None = None

    @property
    def adapters(self) -> set[str]:
        """Names of adapters."""
        return {name for name, parent in self.models.items() if parent is not None}


class EngineError(Exception):
    """An engine did not do it; `off`: because it does not load adapters while it runs."""

    def __init__(self, message: str, *, off: bool = False) -> None:
        super().__init__(message[:_MOST_MESSAGE])
        self.off = off


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Engines:
    """A client of all endpoints. Use within its context."""

    def __init__(self, url_of: Callable[[Endpoint], str] | None = None) -> None:
        """`url_of`: where an endpoint is reached."""
        self._url_of = url_of or _url
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Ends its connections."""
        if self._session is not None:
            await self._session.close()

    async def look(self, one: Endpoint, token: str | None) -> Found:
        """Models and slots. Raises EngineError."""
        status, body = await self._call("GET", one, "/v1/models", token, _LOOK_S)
        if status != 200:
            raise EngineError(f"/v1/models: {_said(status, body)}")
        try:
            listed = msgspec.json.decode(body, type=_Models)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EngineError(f"/v1/models: {error}") from None
        status, page = await self._call("GET", one, "/metrics", token, _LOOK_S)
        # An engine that has not worked yet has no series that would tell.
        slots = _slots(page) if status == 200 else None
        return Found({model.id: model.parent for model in listed.data}, one.slots if slots is None else slots)

    async def load(self, one: Endpoint, name: str, source: str, token: str | None) -> None:
        """Raises EngineError."""
        await self._change(one, 0, {"lora_name": name, "lora_path": source}, token, "already been loaded")

    async def unload(self, one: Endpoint, name: str, token: str | None) -> None:
        """Raises EngineError."""
        await self._change(one, 1, {"lora_name": name}, token, "cannot be found")

    async def _change(
        self, one: Endpoint, which: int, body: Mapping[str, Any], token: str | None, done_already: str
    ) -> None:
        paths = _PATHS.get(one.engine)
        if paths is None:
            known = ", ".join(sorted(_PATHS))
            raise EngineError(f"engine {one.engine!r} does not load adapters while it runs, as {known} do", off=True)
        status, said = await self._call("POST", one, paths[which], token, _LOAD_S, body)
        if status == 200:
            return
        text = _said(status, said)
        if done_already in text:
            return
        if _no_such_route(status, said):
            hint = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" if one.engine == "vllm" else "--enable-lora"
            raise EngineError(f"{paths[which]} is not there: start the engine with {hint}", off=True)
        raise EngineError(f"{paths[which]}: {text}")

    async def _call(
        self,
        method: str,
        one: Endpoint,
        path: str,
        token: str | None,
        limit_s: float,
        body: Mapping[str, Any] | None = None,
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        if token and not (token.isascii() and token.isprintable()):
            raise EngineError("spec.engineCredentials: the token has characters that no HTTP header may have")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            async with self._session.request(
                method,
                f"{self._url_of(one)}{path}",
                json=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=5.0),
                allow_redirects=False,
            ) as answer:
                read = bytearray()
                async for chunk in answer.content.iter_any():
                    read += chunk
                    if len(read) > _MOST_BYTES:
                        raise EngineError(f"{path}: more than {_MOST_BYTES} bytes")
                return answer.status, bytes(read)
        except TimeoutError:
            raise EngineError(f"{path}: no answer in {limit_s:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{path}: {error or type(error).__name__}") from None


def _url(one: Endpoint) -> str:
    return f"http://{f'[{one.host}]' if ':' in one.host else one.host}:{one.place.port}"


def _said(status: int, body: bytes) -> str:
    text = body[:4096].decode("utf-8", "replace").strip()
    try:
        found = msgspec.json.decode(body)
        error = found.get("error", found) if isinstance(found, dict) else {}
        message = error if isinstance(error, str) else error.get("message") or found.get("error_message")
        text = str(message or text)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError):
        pass
    return f"{status}: {text}"


def _no_such_route(status: int, body: bytes) -> bool:
    """Not one that says that the adapter is unknown."""
    if status != 404:
        return status == 405
    try:
        return bool(msgspec.json.decode(body) == {"detail": "Not Found"})
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def _slots(page: bytes) -> int | None:
    match = _MAX_LORA.search(page)
    if match is not None:
        return int(match[1])
    total = _POOL_SLOTS.search(page)
    return int(float(total[1])) if total is not None else None
