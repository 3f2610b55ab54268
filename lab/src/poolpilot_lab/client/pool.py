"""Keep-alive connections to one server; as many as there are concurrent requests."""

from __future__ import annotations

import asyncio

from poolpilot_lab.client.connection import Answer, Connection
from poolpilot_lab.client.errors import ExchangeError


class HttpClient:
    """An HTTP/1.1 client of one server. Use within one event loop; `close` when done."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
        """One exchange over an idle connection, else over a new one.

        Raises ExchangeError. Never tries twice: a request that failed is a fact about the servers.
        """
        connection = await self._connection()
        self._busy.add(connection)
        try:
            return await connection.exchange(method, path, headers, body)
        finally:
            self._busy.discard(connection)
            if connection.usable:
                self._idle.append(connection)

    async def get(self, path: str) -> Answer:
        """A plain GET."""
        return await self.request("GET", path, {})

    def close(self) -> None:
        """Closes every connection; what is under way fails."""
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        host, port = self._address
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(f"{host}:{port}"), host, port)
        except OSError as error:
            raise ExchangeError(f"no connection to {host}:{port}: {error}") from error
        return connection
