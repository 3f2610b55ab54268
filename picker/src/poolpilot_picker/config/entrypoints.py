"""Plugin types of users' packages: distributions announce them in the entry point group `poolpilot.plugins`."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Final

from poolpilot_picker.config.registry import PluginType, Registry
from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP: Final = "poolpilot.plugins"


def add_user_plugins(registry: Registry, points: Iterable[metadata.EntryPoint] | None = None) -> list[str]:
    """Loads every entry point of the group (a `PluginType`, or a list of them) into the registry; returns their names.

    Raises:
        ConfigurationError: one sentence for each entry point that is broken, naming distribution and entry point.
    """
    problems: list[str] = []
    added: list[str] = []
    for point in metadata.entry_points(group=GROUP) if points is None else points:
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
        origin = f"entry point {point.name} ({point.value}) of {distribution}"
        try:
            loaded = point.load()
        except Exception as error:
            problems.append(f"{origin} cannot be loaded: {type(error).__name__}: {error}")
            continue
        types = [loaded] if isinstance(loaded, PluginType) else loaded
        if not isinstance(types, list | tuple) or not all(isinstance(each, PluginType) for each in types):
            problems.append(f"{origin} is {type(loaded).__name__}; expected a PluginType, or a list of them")
            continue
        for plugin_type in types:
            try:
                registry.add(plugin_type, origin)
            except ConfigurationError as error:
                problems.extend(error.problems)
            else:
                added.append(plugin_type.name)
    if problems:
        raise ConfigurationError(*problems)
    return added
