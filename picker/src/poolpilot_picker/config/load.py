"""An EndpointPickerConfig file to what app composes from: one profile, our settings. Read at start and on reload."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.config.flow_plugins import ADMITTERS, NEED_THE_GATE
from poolpilot_picker.config.flow_section import FlowPlan, Used, flow_plan
from poolpilot_picker.config.registry import ROUTING_KINDS, PluginKind, PluginType, Registry, Standing
from poolpilot_picker.config.schema import (
    API_VERSIONS,
    DEPRECATED_API_VERSION,
    KIND,
    EndpointPickerConfig,
    PluginEntry,
    SchedulingProfile,
)
from poolpilot_picker.config.sections import ADDED, NO_QUEUE, check_sections, gate_on
from poolpilot_picker.config.settings import PoolPilotSettings
from poolpilot_picker.config.strict import BAD, OtherFields, Reader, compose
from poolpilot_picker.config.wording import alternatives, show
from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFAULT_PICKER: Final = "predicted-finish-picker"
"""Of a profile without scorers and picker."""
SCORING_PICKER: Final = "max-score-picker"
"""Of a profile with scorers and without a picker."""
DEFAULT_PROFILE: Final = "default"


class LoadedPlugin(msgspec.Struct, frozen=True):
    """A plugin of the file, or one that a start-up rule added."""

    name: str
    type: PluginType[Any]
    parameters: Any
    """Of `type.parameters`."""


class ProfileEntry(msgspec.Struct, frozen=True):
    """A plugin in a profile. The weight counts for scorers."""

    plugin: LoadedPlugin
    weight: float = 1.0


class LoadedProfile(msgspec.Struct, frozen=True):
    """Filters and scorers in the order of the file, and exactly one picker."""

    name: str
    entries: tuple[ProfileEntry, ...]

    def of_kind(self, kind: PluginKind) -> list[ProfileEntry]:
        """The entries that act as this kind."""
        return [entry for entry in self.entries if kind in entry.plugin.type.kinds]

    def describe(self) -> str:
        """One line: filters, scorers with weights, picker."""
        parts = [f"filter {entry.plugin.name}" for entry in self.of_kind(PluginKind.FILTER)]
        parts += [f"{entry.plugin.name} × {entry.weight:g}" for entry in self.of_kind(PluginKind.SCORER)]
        parts += [f"picker {entry.plugin.name}" for entry in self.of_kind(PluginKind.PICKER)]
        return f"profile {self.name}: {', '.join(parts)}"


class LoadedConfig(msgspec.Struct, frozen=True):
    """A file without problems."""

    source: str
    profile: LoadedProfile
    settings: PoolPilotSettings
    plugins: tuple[LoadedPlugin, ...] = ()
    """All of the file, those of the profile included."""
    flow: FlowPlan | None = None
    """Flow control, where its gate is on."""
    warnings: tuple[str, ...] = ()
    """Sentences with file, line and column: accepted, but the user should know."""


def load(
    text: str, registry: Registry, source: str = "configuration", *, endpoints_named: int | None = None
) -> LoadedConfig:
    """Reads an EndpointPickerConfig. `endpoints_named`: how many, where neither the file nor its picker says it.

    Raises:
        ConfigurationError: with every problem of the file as `source:line:column: path: sentence`.
    """
    root = compose(text, source)
    reader = Reader(source)
    config = reader.struct(root, EndpointPickerConfig, "")
    if config is BAD:
        # Nothing more can be said of a file whose outline is wrong.
        raise ConfigurationError(*reader.problems)
    _check_version(reader, config)
    plugins = _Plugins(reader, registry)
    for index, entry in enumerate(config.plugins):
        plugins.add(entry, f"plugins[{index}]")
    check_sections(reader, config, plugins.type_of)
    flow = plugins.flow(config)
    profile = _profile(reader, config, plugins)
    if profile is None or reader.problems:
        raise ConfigurationError(*reader.problems)
    profile = _with_fallbacks(profile, config.poolpilot, plugins, endpoints_named)
    return LoadedConfig(
        source=source,
        profile=profile,
        settings=config.poolpilot,
        plugins=tuple(plugins.by_name.values()),
        flow=flow,
        warnings=reader.warnings,
    )


def _check_version(reader: Reader, config: EndpointPickerConfig) -> None:
    if config.kind != KIND:
        reader.problem("kind", f"{show(config.kind)} is not what is read here. Allowed: {KIND}")
    if config.api_version not in API_VERSIONS:
        reader.problem(
            "apiVersion", f"{show(config.api_version)} is unknown. {alternatives(config.api_version, API_VERSIONS)}"
        )
    elif config.api_version == DEPRECATED_API_VERSION:
        reader.warn("apiVersion", f"{DEPRECATED_API_VERSION} is an old name; please write {API_VERSIONS[1]}")


class _Plugins:
    """The plugins of the file by name."""

    def __init__(self, reader: Reader, registry: Registry) -> None:
        self._reader = reader
        self.registry = registry
        self.by_name: dict[str, LoadedPlugin] = {}
        self._named: dict[str, PluginType[Any] | None] = {}
        self._paths: dict[str, str] = {}

    def type_of(self, name: str) -> PluginType[Any] | None:
        """The type of a plugin of the file, also of one with problems.

        Raises:
            KeyError: the file has no such plugin.
        """
        return self._named[name]

    def names(self) -> list[str]:
        """Every name that a pluginRef may give."""
        return list(self._named)

    def path(self, name: str) -> str:
        """Where a plugin stands."""
        return self._paths[name]

    def says_endpoints(self, plugin: LoadedPlugin) -> bool:
        """Whether the file sets maxNumOfEndpoints on this picker."""
        return plugin.name in self._paths and self._reader.wrote(
            f"{self._paths[plugin.name]}.parameters.maxNumOfEndpoints"
        )

    def add(self, entry: PluginEntry | Any, path: str) -> None:
        """Checks one of `plugins`; problems are reported."""
        if entry is BAD:
            return
        reader = self._reader
        name = entry.name or entry.type
        if name in self._named:
            reader.problem(
                f"{path}.name" if entry.name else f"{path}.type",
                f"a plugin named {show(name)} stands at {self._paths[name]} already; give each a name of its own",
            )
            return
        self._paths[name] = path
        plugin_type = self.registry.find(entry.type)
        self._named[name] = plugin_type
        if plugin_type is None:
            known = self.registry.names()
            reader.problem(
                f"{path}.type", f"{show(entry.type)} is not a known plugin type. {alternatives(entry.type, known)}"
            )
            return
        if plugin_type.standing is Standing.REFUSED:
            reader.problem(f"{path}.type", f"{entry.type} is known but not supported yet; {plugin_type.note}")
            return
        if plugin_type.standing is Standing.WARNS:
            reader.warn(f"{path}.type", f"{entry.type} is accepted, but {plugin_type.note}")
        if entry.type != plugin_type.name:
            reader.warn(f"{path}.type", f"{entry.type} is an old name; please write {plugin_type.name}")
        parameters = self._parameters(plugin_type, entry, f"{path}.parameters")
        if parameters is not BAD:
            self.by_name[name] = LoadedPlugin(name, plugin_type, parameters)

    def _parameters(self, plugin_type: PluginType[Any], entry: PluginEntry, path: str) -> Any:
        if plugin_type.standing is Standing.WARNS:
            # Not run, so its parameters have no meaning here that could be wrong.
            return plugin_type.parameters()
        others = OtherFields(plugin_type.old_parameters, plugin_type.unused_parameters, plugin_type.refused_parameters)
        return self._reader.struct(entry.parameters, plugin_type.parameters, path, others)

    def flow(self, config: EndpointPickerConfig) -> FlowPlan | None:
        """Flow control as the file wants it; None where the gate is off, and of what needs it, it is said."""
        used = {name: (plugin.type.name, plugin.parameters) for name, plugin in self.by_name.items()}
        if not gate_on(config, "flowControl"):
            for name, (type_name, _) in used.items():
                if type_name in NEED_THE_GATE:
                    self._reader.warn(f"{self._paths[name]}.type", f"{type_name} is accepted, but {NO_QUEUE}")
                elif type_name in ADMITTERS:
                    self._reader.problem(
                        f"{self._paths[name]}.type",
                        f"{type_name} needs the feature gate flowControl; add it, or remove it",
                    )
            return None

        def resolve(name: str) -> Used | None:
            if name in used or name not in ADDED:
                return used.get(name)
            plugin = self.implied(name)
            return plugin.type.name, plugin.parameters

        defined = [(self._paths[name], one) for name, one in used.items()]
        return flow_plan(self._reader, config, resolve, defined)

    def implied(self, type_name: str) -> LoadedPlugin:
        """A plugin that a start-up rule adds."""
        plugin_type = self.registry.find(type_name)
        if plugin_type is None:
            raise ConfigurationError(f"plugin type {type_name}, which the defaults need, is not registered")
        return LoadedPlugin(type_name, plugin_type, plugin_type.parameters())


def _profile(reader: Reader, config: EndpointPickerConfig, plugins: _Plugins) -> LoadedProfile | None:
    """The one profile, by the start-up rules of llm-d: see docs/configuration.md."""
    handlers = [plugin for plugin in plugins.by_name.values() if PluginKind.PROFILE_HANDLER in plugin.type.kinds]
    for extra in handlers[1:]:
        reader.problem(
            plugins.path(extra.name), f"a second profile handler beside {handlers[0].name}; only one is allowed"
        )
    profiles = config.scheduling_profiles
    for index, _ in enumerate(profiles[1:], start=1):
        reader.problem(
            f"schedulingProfiles[{index}]",
            "more than one profile is known but not supported yet; keep the one that should serve requests",
        )
    if not profiles:
        entries = [ProfileEntry(plugin) for plugin in plugins.by_name.values() if _stands_in_profiles(plugin.type)]
        name = DEFAULT_PROFILE
    else:
        # The others are refused, but their references are checked all the same.
        first, *others = [
            _entries(reader, profile, plugins, f"schedulingProfiles[{index}]") for index, profile in enumerate(profiles)
        ]
        entries = first
        name = getattr(profiles[0], "name", DEFAULT_PROFILE)
        used = {entry.plugin.name for each in (first, *others) for entry in each}
        for plugin in plugins.by_name.values():
            if _stands_in_profiles(plugin.type) and plugin.name not in used:
                reader.warn(plugins.path(plugin.name), f"{show(plugin.name)} is in no profile and has no effect")
    pickers = [entry for entry in entries if PluginKind.PICKER in entry.plugin.type.kinds]
    if len(pickers) > 1:
        where = "schedulingProfiles[0]" if profiles else plugins.path(pickers[1].plugin.name)
        names = ", ".join(entry.plugin.name for entry in pickers)
        reader.problem(where, f"a profile has one picker, here are {len(pickers)}: {names}")
    if not pickers:
        entries.append(ProfileEntry(_default_picker(entries, plugins)))
    return LoadedProfile(name, tuple(entries))


def _stands_in_profiles(plugin_type: PluginType[Any]) -> bool:
    """Whether a plugin is meant for a profile: a saturation detector may stand in one, but need not."""
    return bool(plugin_type.kinds & ROUTING_KINDS) and PluginKind.SATURATION_DETECTOR not in plugin_type.kinds


def _default_picker(entries: list[ProfileEntry], plugins: _Plugins) -> LoadedPlugin:
    configured = (plugin for plugin in plugins.by_name.values() if PluginKind.PICKER in plugin.type.kinds)
    scored = any(PluginKind.SCORER in entry.plugin.type.kinds for entry in entries)
    return next(configured, None) or plugins.implied(SCORING_PICKER if scored else DEFAULT_PICKER)


def _entries(reader: Reader, profile: SchedulingProfile | Any, plugins: _Plugins, path: str) -> list[ProfileEntry]:
    if profile is BAD:
        return []
    found: list[ProfileEntry] = []
    for index, entry in _good(profile.plugins):
        inner = f"{path}.plugins[{index}]"
        weight = 1.0 if entry.weight is None or entry.weight is BAD else entry.weight
        if not math.isfinite(weight) or weight < 0:
            reader.problem(f"{inner}.weight", f"{weight:g} is not a weight; allowed is a number ≥ 0")
        try:
            plugin_type = plugins.type_of(entry.plugin_ref)
        except KeyError:
            reader.problem(
                f"{inner}.pluginRef",
                f"{show(entry.plugin_ref)} is not a name of plugins. {alternatives(entry.plugin_ref, plugins.names())}",
            )
            continue
        if plugin_type is not None and not plugin_type.kinds & ROUTING_KINDS:
            kinds = " and ".join(sorted(plugin_type.kinds))
            reader.problem(
                f"{inner}.pluginRef",
                f"{show(entry.plugin_ref)} is a {kinds}; a profile holds filters, scorers and a picker",
            )
            continue
        plugin = plugins.by_name.get(entry.plugin_ref)
        if plugin is None:
            continue  # reported where it is defined
        if entry.weight is not None and PluginKind.SCORER not in plugin.type.kinds:
            reader.warn(f"{inner}.weight", f"has no effect: {plugin.name} is not a scorer")
        if any(other.plugin is plugin for other in found):
            reader.warn(f"{inner}.pluginRef", f"{show(plugin.name)} stands in this profile already and counts again")
        found.append(ProfileEntry(plugin, weight))
    return found


def _good(values: list[Any]) -> Iterator[tuple[int, Any]]:
    return ((index, value) for index, value in enumerate(values) if value is not BAD)


def _with_fallbacks(
    profile: LoadedProfile, settings: PoolPilotSettings, plugins: _Plugins, default: int | None
) -> LoadedProfile:
    """Hands `poolpilot.fallbacks.maxNumOfEndpoints` to a picker that does not say it itself."""
    wanted = settings.fallbacks.max_num_of_endpoints or default
    if wanted is None:
        return profile
    entries = []
    for entry in profile.entries:
        plugin = entry.plugin
        fields = getattr(plugin.type.parameters, "__struct_fields__", ())
        if (
            PluginKind.PICKER in plugin.type.kinds
            and "max_num_of_endpoints" in fields
            and not plugins.says_endpoints(plugin)
        ):
            parameters = msgspec.structs.replace(plugin.parameters, max_num_of_endpoints=wanted)
            entry = ProfileEntry(msgspec.structs.replace(plugin, parameters=parameters), entry.weight)
        entries.append(entry)
    return LoadedProfile(profile.name, tuple(entries))
