"""Listening ports of pools: one each, unique among the pools of a Picker, kept for as long as the pool has its Service.

The record is the Service's `targetPort`. This is its mirror, and knows what was chosen a moment ago. Services stand in
their users' namespaces and may be written by them: who is on a port first keeps it, whatever a Service says later.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from poolpilot_kube.names import POOL_PORTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_kube.objects import Key

_SPAN: Final = len(POOL_PORTS)


class NoPortError(Exception):
    """All ports of a Picker are taken."""


class Ports:
    """Of all Pickers."""

    def __init__(self) -> None:
        self._of_pool: defaultdict[Key, dict[Key, int]] = defaultdict(dict)
        self._pools: defaultdict[Key, defaultdict[int, dict[Key, int]]] = defaultdict(lambda: defaultdict(dict))
        self._count = 0

    def record(self, picker: Key, pool: Key, port: int, *, listed: bool = False) -> None:
        """The pool's Service says so; `listed`: it did already when this process began."""
        if self._of_pool[picker].get(pool) == port:
            return
        self.forget(picker, pool)
        self._count += 1
        self._of_pool[picker][pool] = port
        self._pools[picker][port][pool] = 0 if listed else self._count

    def forget(self, picker: Key, pool: Key, port: int | None = None) -> None:
        """The pool has no Service of this Picker any more; with `port`: only if it has not got another port since."""
        known = self._of_pool[picker].get(pool)
        if known is None or (port is not None and port != known):
            return
        del self._of_pool[picker][pool]
        pools = self._pools[picker][known]
        pools.pop(pool, None)
        if not pools:
            del self._pools[picker][known]

    def choose(self, picker: Key, pool: Key) -> int:
        """The port that the pool has, or a free one, the same in every process as long as it is free.

        Of pools with one port, who had it first keeps it; of those that had it when this process began, the one that
        would have chosen it. Raises NoPortError.
        """
        known, used = self._of_pool[picker].get(pool), self._pools[picker]
        if known is not None and known in POOL_PORTS and _keeper(known, used[known]) == pool:
            return known
        start = _start(pool)
        for step in range(_SPAN):
            port = POOL_PORTS[(start + step) % _SPAN]
            if port not in used:
                self.record(picker, pool, port)
                return port
        raise NoPortError(f"Picker {'/'.join(picker)} has no port left: it serves {_SPAN} pools")


def _start(pool: Key) -> int:
    return int.from_bytes(hashlib.sha256("/".join(pool).encode()).digest()[:4]) % _SPAN


def _keeper(port: int, since: Mapping[Key, int]) -> Key:
    return min(since, key=lambda pool: (since[pool], (port - POOL_PORTS.start - _start(pool)) % _SPAN, pool))
