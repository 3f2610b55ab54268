"""Services: connections to a cluster IP go to a ready endpoint, as kube-proxy has it, and names to addresses.

TCP only, by copying bytes: for a test cluster. A connection stays with its endpoint until one side ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolpilot_kube.objects import Key
    from poolpilot_kube.watch import Change
    from poolpilot_lab.kubelet.objects import EndpointSlice, NodeService

log: Final = logging.getLogger(__name__)

DOMAIN: Final = "svc.cluster.local"
"""Under which Services have names."""
SERVICE_NAME: Final = "kubernetes.io/service-name"
_CHUNK_BYTES: Final = 65_536
_CONNECT_S: Final = 5.0

Listen: TypeAlias = tuple[str, int]
"""Address and port."""


class Services:
    """What the API says of Services and their endpoints."""

    def __init__(self) -> None:
        self.services: dict[Key, NodeService] = {}
        self._slices: dict[Key, dict[Key, EndpointSlice]] = defaultdict(dict)

    def apply_services(self, changes: Sequence[Change[NodeService]]) -> None:
        """As a watcher tells them."""
        for one in changes:
            if one.new is None:
                self.services.pop(one.key, None)
            else:
                self.services[one.key] = one.new

    def apply_slices(self, changes: Sequence[Change[EndpointSlice]]) -> None:
        """As a watcher tells them."""
        for one in changes:
            for known in (one.old, one.new):
                if known is not None:
                    self._slices[_service_of(known)].pop(one.key, None)
            if one.new is not None and one.new.address_type == "IPv4":
                self._slices[_service_of(one.new)][one.key] = one.new

    def listens(self) -> dict[Listen, tuple[Key, str]]:
        """Every address and port to serve: the Service, and the name of its port."""
        return {
            (one.spec.cluster_ip, port.port): (key, port.name)
            for key, one in self.services.items()
            if one.spec.cluster_ip not in ("", "None")
            for port in one.spec.ports
        }

    def endpoints(self, service: Key, port: str) -> list[Listen]:
        """Ready ones, for the port of that name; without any, those that terminate and still serve."""
        found = [
            (endpoint, (address, there.port))
            for one in self._slices.get(service, {}).values()
            for there in one.ports or ()
            if (there.name or "") == port
            for endpoint in one.endpoints or ()
            for address in endpoint.addresses
        ]
        ready = [listen for endpoint, listen in found if endpoint.ready]
        return ready or [listen for endpoint, listen in found if endpoint.last_resort]

    def resolve(self, name: str) -> list[str] | None:
        """Addresses of a name: a cluster IP, or those of the endpoints of a headless Service. None: no such name."""
        parts = name.removesuffix(f".{DOMAIN}").split(".")
        if not name.endswith(f".{DOMAIN}") or len(parts) != 2:
            return None
        key = (parts[1], parts[0])
        service = self.services.get(key)
        if service is None:
            return None
        if service.spec.cluster_ip not in ("", "None"):
            return [service.spec.cluster_ip]
        every = service.spec.publish_not_ready_addresses
        return sorted(
            {
                address
                for one in self._slices.get(key, {}).values()
                for endpoint in one.endpoints or ()
                if endpoint.ready or every
                for address in endpoint.addresses
            }
        )


def _service_of(one: EndpointSlice) -> Key:
    return (one.metadata.namespace, one.metadata.labels.get(SERVICE_NAME, ""))


class Proxy:
    """Listens for all Services; call `follow` after each change."""

    def __init__(self, services: Services, rng: random.Random | None = None) -> None:
        self._services = services
        self._rng = rng or random.Random()
        self._servers: dict[Listen, asyncio.Server] = {}
        self._targets: dict[Listen, tuple[Key, str]] = {}

    async def follow(self) -> None:
        """Listens where it has to, and nowhere else. What is connected stays."""
        self._targets = self._services.listens()
        for gone in set(self._servers) - set(self._targets):
            self._servers.pop(gone).close()
        for listen in set(self._targets) - set(self._servers):
            try:
                self._servers[listen] = await asyncio.start_server(self._handler(listen), *listen)
            except OSError as error:
                log.warning("service at %s:%d: %s", *listen, error)

    def close(self) -> None:
        """Listens no more."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def _handler(self, listen: Listen) -> asyncio.streams._ClientConnectedCallback:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(listen, reader, writer)

        return connected

    async def _connected(self, listen: Listen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        service, port = self._targets.get(listen, (("", ""), ""))
        endpoints = self._services.endpoints(service, port)
        self._rng.shuffle(endpoints)
        there = await _first_of(endpoints)
        if there is None:
            # As kube-proxy does: refused, not left waiting.
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copied(reader, there[1]), _copied(there[0], writer))
        finally:
            for one in (writer, there[1]):
                one.close()


async def _first_of(endpoints: Iterable[Listen]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """A connection to the first that takes one."""
    for endpoint in endpoints:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_S):
                return await asyncio.open_connection(*endpoint)
    return None


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the sender has no more; a broken connection breaks the other one."""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()
