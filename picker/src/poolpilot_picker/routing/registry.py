"""Every plugin type there is, and from a loaded configuration the profile that runs. Used by app and the lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolpilot_picker.config.known import KNOWN
from poolpilot_picker.config.registry import PluginKind, Registry
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.routing.pipeline import PluginGuard, Profile
from poolpilot_picker.routing.plugins import cache_scorers, labels, limits, load_scorers, pickers, predicted, stickiness
from poolpilot_picker.routing.view import Filter, Observer, Picker, Scorer

if TYPE_CHECKING:
    from poolpilot_picker.config.load import LoadedConfig, LoadedPlugin

FAMILIES = (
    predicted.TYPES,
    pickers.TYPES,
    load_scorers.TYPES,
    cache_scorers.TYPES,
    stickiness.TYPES,
    labels.TYPES,
    limits.TYPES,
    KNOWN,
)


def default_registry() -> Registry:
    """The types that come with the picker."""
    return Registry(plugin_type for family in FAMILIES for plugin_type in family)


def build_profile(config: LoadedConfig, guard: PluginGuard | None = None) -> Profile:
    """Builds the plugins of the configured profile: once per pool, since plugins may keep state by slot.

    Raises:
        ConfigurationError: a plugin cannot be built, or lacks the method of its kind.
    """
    instances: dict[str, Any] = {}
    for entry in config.profile.entries:
        plugin = entry.plugin
        if plugin.name not in instances:
            instances[plugin.name] = _build(config, plugin)

    def of_kind(kind: PluginKind) -> list[tuple[str, Any, float]]:
        return [(e.plugin.name, instances[e.plugin.name], e.weight) for e in config.profile.of_kind(kind)]

    [(picker_name, picker, _)] = of_kind(PluginKind.PICKER)
    return Profile(
        config.profile.name,
        filters=[(name, instance) for name, instance, _ in of_kind(PluginKind.FILTER)],
        scorers=of_kind(PluginKind.SCORER),
        picker=(picker_name, picker),
        observers=[(name, instance) for name, instance in instances.items() if isinstance(instance, Observer)],
        guard=guard,
    )


_PROTOCOLS = {PluginKind.FILTER: Filter, PluginKind.SCORER: Scorer, PluginKind.PICKER: Picker}


def _build(config: LoadedConfig, plugin: LoadedPlugin) -> Any:
    build = plugin.type.build
    assert build is not None, "the registry refuses such types"
    where = f"{config.source}: plugin {plugin.name} ({plugin.type.name})"
    try:
        instance = build(plugin.parameters)
    except Exception as error:
        raise ConfigurationError(f"{where} cannot be built: {type(error).__name__}: {error}") from error
    for kind, protocol in _PROTOCOLS.items():
        if kind in plugin.type.kinds and not isinstance(instance, protocol):
            method = {PluginKind.FILTER: "filter", PluginKind.SCORER: "score", PluginKind.PICKER: "pick"}[kind]
            raise ConfigurationError(f"{where} is a {kind} without a method {method}()")
    return instance
