"""Listening ports of pools: one each, unique among the pools of a Picker, kept for as long as the pool has its Service.

The record is the Service's `targetPort`. This is its mirror, and knows what was chosen a moment ago.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from poolpilot_kube.names import POOL_PORTS

if TYPE_CHECKING:
    from poolpilot_kube.objects import Key

_SPAN: Final = len(POOL_PORTS)


class NoPortError(Exception):
    """All ports of a Picker are taken."""


class Ports:
    """Of all Pickers."""

    def __init__(self) -> None:
        self._of_pool: defaultdict[Key, dict[Key, int]] = defaultdict(dict)
        self._pools: defaultdict[Key, defaultdict[int, set[Key]]] = defaultdict(lambda: defaultdict(set))

    def record(self, picker: Key, pool: Key, port: int) -> None:
        """The pool's Service says so."""
        self.forget(picker, pool)
        self._of_pool[picker][pool] = port
        self._pools[picker][port].add(pool)

    def forget(self, picker: Key, pool: Key, port: int | None = None) -> None:
        """The pool has no Service of this Picker any more; with `port`: only if it has not got another port since."""
        known = self._of_pool[picker].get(pool)
        if known is None or (port is not None and port != known):
            return
        del self._of_pool[picker][pool]
        pools = self._pools[picker][known]
        pools.discard(pool)
        if not pools:
            del self._pools[picker][known]

    def choose(self, picker: Key, pool: Key) -> int:
        """The port that the pool has, or a free one, the same in every process as long as it is free.

        Of pools with one port, the first by name keeps it. Raises NoPortError.
        """
        known, used = self._of_pool[picker].get(pool), self._pools[picker]
        if known is not None and known in POOL_PORTS and min(used[known]) == pool:
            return known
        start = int.from_bytes(hashlib.sha256("/".join(pool).encode()).digest()[:4]) % _SPAN
        for step in range(_SPAN):
            port = POOL_PORTS[(start + step) % _SPAN]
            if port not in used:
                self.record(picker, pool, port)
                return port
        raise NoPortError(f"Picker {'/'.join(picker)} has no port left: it serves {_SPAN} pools")
