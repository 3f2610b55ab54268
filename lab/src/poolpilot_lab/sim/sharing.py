"""Several pickers that tell each other something: one account with knowledge of one's own, or one view of adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.prefix import prefix_index

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Pool


class PerPicker:
    """What each picker knows for itself, where the rest of the pool is shared. `current`: whose turn it is.

    `everywhere`: methods that tell all of them, as telemetry does.
    """

    def __init__(self, parts: list[Any], everywhere: frozenset[str]) -> None:
        self._parts = parts
        self._everywhere = everywhere
        self.current = 0

    def __getattr__(self, name: str) -> Any:
        if name not in self._everywhere:
            return getattr(self._parts[self.current], name)

        def tell(*arguments: Any) -> Any:
            told = [getattr(part, name)(*arguments) for part in self._parts]
            return told[0]

        return tell


_PREFIXES: Final = frozenset({"set_capacity", "forget", "clear", "resize"})
_ADAPTERS: Final = frozenset({"apply_sample", "set_served", "restarted", "resize", "clear"})


def own_knowledge(pool: Pool, pickers: int) -> list[PerPicker]:
    """One account, but of each picker its own prefix index and its own view of adapters."""
    prefixes = PerPicker([prefix_index() for _ in range(pickers)], _PREFIXES)
    adapters = PerPicker([AdapterResidency() for _ in range(pickers)], _ADAPTERS)
    _install(pool, prefixes, adapters)
    return [prefixes, adapters]


def share_residency(pools: list[Pool]) -> None:
    """One view of the adapters for all; telemetry and discovery then tell it the same several times."""
    for pool in pools[1:]:
        _install(pool, None, pools[0].adapters)


def _install(pool: Pool, prefixes: Any, adapters: Any) -> None:
    readings = pool._readings
    if prefixes is not None:
        pool.prefixes = readings._prefixes = prefixes
    pool.adapters = readings._adapters = adapters
