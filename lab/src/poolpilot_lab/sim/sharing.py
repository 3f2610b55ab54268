"""Several pickers with one account, and yet with knowledge of their own."""

from __future__ import annotations

from typing import Any, Final

from poolpilot_picker.state.adapters import AdapterResidency
from poolpilot_picker.state.prefix import prefix_index


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
_ADAPTERS: Final = frozenset({"apply_sample", "set_served", "set_others", "restarted", "resize", "clear"})


def own_prefixes(pickers: int) -> PerPicker:
    """Of each picker its own prefix index."""
    return PerPicker([prefix_index() for _ in range(pickers)], _PREFIXES)


def own_adapters(pickers: int) -> PerPicker:
    """Of each picker its own view of adapters."""
    return PerPicker([AdapterResidency() for _ in range(pickers)], _ADAPTERS)
