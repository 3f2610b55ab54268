"""The addresses that a peer is given, before anything is started."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def hosts_and_port(endpoints: Sequence[str]) -> tuple[list[str], int]:
    """The IPv4 addresses and the port of `A.B.C.D:PORT`, one port for all; ValueError that names what is not allowed.

    An InferencePool has its ports once for all pods, and a pod one address, which no other pod has.
    """
    if not endpoints:
        raise ValueError("endpoints is empty; a peer needs one or more, as A.B.C.D:PORT")
    parts = list(_parts(endpoints))
    hosts = [host for host, _ in parts]
    ports = {port for _, port in parts}
    if len(ports) != 1:
        raise ValueError(f"endpoints have the ports {sorted(ports)}; all must have the same")
    if len(set(hosts)) != len(hosts):
        raise ValueError(
            f"endpoints has {len(hosts) - len(set(hosts))} address(es) more than once; each may occur once"
        )
    return hosts, ports.pop()


def _parts(endpoints: Sequence[str]) -> Iterator[tuple[str, int]]:
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        try:
            address = ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"endpoint {endpoint!r}: must be A.B.C.D:PORT with an IPv4 address") from None
        if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65_535):
            raise ValueError(f"endpoint {endpoint!r}: the port must be 1 to 65535")
        yield str(address), int(port)
