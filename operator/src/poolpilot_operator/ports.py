"""Listening ports of pools: one each, unique among the pools of a Picker, kept for as long as the pool has its Service.

The record is the Service's `targetPort`; what is here are only choices that no cache shows yet.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from poolpilot_kube.names import POOL_PORTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolpilot_kube.objects import Key

_SPAN: Final = len(POOL_PORTS)


class NoPortError(Exception):
    """All ports of a Picker are taken."""


class Ports:
    """Of all Pickers."""

    def __init__(self) -> None:
        self._chosen: dict[Key, dict[Key, int]] = {}

    def choose(self, picker: Key, pool: Key, recorded: int | None, taken: Iterable[tuple[int, Key]]) -> int:
        """The pool's port. `recorded`: that of its Service; `taken`: (port, pool) of the Picker's other Services.

        Where two Services record one port, the pool that comes first by name keeps it. Raises NoPortError.
        """
        chosen = self._chosen.setdefault(picker, {})
        used: dict[int, Key] = {port: other for other, port in chosen.items() if other != pool}
        for port, other in taken:
            if other != pool:
                used[port] = min(other, used.get(port, other))
        for known in (recorded, chosen.get(pool)):
            if known is not None and known in POOL_PORTS and (known not in used or pool < used[known]):
                chosen[pool] = known
                return known
        start = int.from_bytes(hashlib.sha256("/".join(pool).encode()).digest()[:4]) % _SPAN
        for step in range(_SPAN):
            port = POOL_PORTS[(start + step) % _SPAN]
            if port not in used:
                chosen[pool] = port
                return port
        raise NoPortError(f"Picker {'/'.join(picker)} has no port left: it serves {_SPAN} pools")

    def forget(self, pool: Key, but: Key | None = None) -> None:
        """The pool is no longer served, except by the Picker `but`."""
        for picker, chosen in self._chosen.items():
            if picker != but:
                chosen.pop(pool, None)
