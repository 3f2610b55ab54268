"""The node's network: a bridge, and for each pod a network namespace with an address on it.

All of it lies inside the namespace that the kubelet itself runs in, which has to be made for it: see `host`.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from poolpilot_lab.kubelet.launch import Launched, LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

PODS: Final = ipaddress.IPv4Network("10.244.0.0/16")
SERVICES: Final = ipaddress.IPv4Network("10.96.0.0/16")
NODE: Final = str(PODS[1])
"""The node's own address, and that of everything else that runs on it: API server, kubelet."""
NAMES: Final = str(SERVICES[10])
"""Where names are asked for."""
BRIDGE: Final = "pods0"
_BRIDGE_MAC: Final = "0a:58:0a:f4:00:01"
"""Fixed: else a bridge has the lowest of its ports', changes it as that pod goes, and is lost to all others until they
ask for it anew, which is most of a minute."""
_RESERVED: Final = 256
"""Addresses at the beginning of the range that no pod gets: the node's, and whatever tests bind on it."""


class Addresses:
    """Gives addresses to pods. One that comes back is used last: clients may still know it."""

    def __init__(self, network: ipaddress.IPv4Network = PODS, reserved: int = _RESERVED) -> None:
        self._free = deque(str(one) for one in list(network.hosts())[reserved - 1 :])

    def take(self) -> str:
        """Raises LaunchError when there are none left."""
        if not self._free:
            raise LaunchError("no address is free")
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        """Of a pod that is gone."""
        self._free.append(address)


async def set_up() -> None:
    """Bridge, node address, and the Services' addresses, which are local: run once, in a fresh namespace."""
    await _ip(
        "link set lo up",
        f"link add {BRIDGE} address {_BRIDGE_MAC} type bridge",
        f"addr add {NODE}/{PODS.prefixlen} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"route add local {SERVICES} dev lo",
    )


class Sandbox:
    """A pod's network namespace, held by a process that does nothing."""

    def __init__(self, holder: Launched, address: str) -> None:
        self.pid = holder.pid
        self.address = address
        self._holder = holder

    @classmethod
    async def make(cls, address: str, number: int) -> Self:
        """`number` names the pod's end on the bridge. Raises LaunchError."""
        holder = await Launched.start(["sleep", "infinity"], env={"PATH": "/usr/bin:/bin"}, network="new")
        try:
            link = f"pod{number}"
            await _ip(
                f"link add {link} type veth peer name eth0 netns {holder.pid}", f"link set {link} master {BRIDGE} up"
            )
            # No default route: what is not in the cluster must fail at once.
            await _ip(
                "link set lo up",
                f"addr add {address}/{PODS.prefixlen} dev eth0",
                "link set eth0 up",
                f"route add {SERVICES} via {NODE}",
                inside=holder.pid,
            )
        except BaseException:
            await holder.kill()
            raise
        return cls(holder, address)

    async def close(self) -> None:
        """Everything that was in it ends: links and sockets. Processes do not."""
        await self._holder.kill()


async def _ip(*commands: str, inside: int | None = None) -> None:
    enter: Sequence[str] = ("nsenter", "--target", str(inside), "--net") if inside is not None else ()
    try:
        process = await asyncio.create_subprocess_exec(
            *enter,
            *("ip", "-batch", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except FileNotFoundError as error:
        raise LaunchError(f"there is no program {error.filename}") from None
    said, _ = await process.communicate("\n".join((*commands, "")).encode())
    if process.returncode != 0:
        raise LaunchError(f"ip: {said.decode('utf-8', 'replace').strip()}")
