"""An HTTP port that shows read-only pages: the admin port of a picker, and that of several workers."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from poolpilot_picker.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

JSON: Final = "application/json"


def json_response(value: object, status: int = 200) -> web.Response:
    """A page of JSON."""
    return web.Response(body=msgspec.json.format(msgspec.json.encode(value)), status=status, content_type=JSON)


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; `::` (or nothing) means every address, those of IPv4 too. Raises StartError."""
    if host in ("", "::"):
        host = "::" if _has_ipv6() else "0.0.0.0"  # noqa: S104 - what the flag asks for
    try:
        if host == "::":
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise StartError(f"cannot listen on {shown} for the admin pages: {error.strerror or error}") from error


def _has_ipv6() -> bool:
    """False on machines where it is switched off."""
    if not socket.has_dualstack_ipv6():
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        return True
    return False


class PageServer:
    """Serves pages by path, and a list of the paths at `/`."""

    def __init__(
        self, address: tuple[str, int], pages: Mapping[str, Callable[[web.Request], Awaitable[web.Response]]]
    ) -> None:
        self._address = address
        self._pages = pages
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> int:
        """Listens; returns the port chosen. Raises StartError where that is not possible."""
        listening = listen_on(*self._address)
        app = web.Application()
        app.add_routes([web.get("/", self._index), *(web.get(path, page) for path, page in self._pages.items())])
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        self.port = listening.getsockname()[1]
        return self.port

    async def stop(self) -> None:
        """Closes the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _index(self, _: web.Request) -> web.Response:
        return json_response({"pages": list(self._pages)})
