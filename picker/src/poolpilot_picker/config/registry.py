"""What a plugin type is, and the table of them: filled by routing and by users' packages, handed to the loader."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

P = TypeVar("P", bound=msgspec.Struct)


class PluginKind(StrEnum):
    """Where a plugin may stand in an EndpointPickerConfig. Filters, scorers and pickers stand in profiles."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    PROFILE_HANDLER = "profile-handler"
    DECIDER = "decider"
    DATA_PRODUCER = "data-producer"
    DATA_SOURCE = "data-source"
    EXTRACTOR = "extractor"
    DISCOVERY = "discovery"
    PARSER = "parser"
    SATURATION_DETECTOR = "saturation-detector"
    FLOW_POLICY = "flow-policy"
    REQUEST_CONTROL = "request-control"


ROUTING_KINDS = frozenset({PluginKind.FILTER, PluginKind.SCORER, PluginKind.PICKER})


class Standing(StrEnum):
    """What becomes of a plugin of this type in a file."""

    RUNS = "runs"
    """It does what its name says: built, or something that the picker always does."""
    WARNS = "warns"
    """Accepted; changes nothing here, and a warning says why that is harmless."""
    REFUSED = "refused"
    """Known, but its meaning cannot be honoured: an error says what to do instead."""


class NoParameters(msgspec.Struct, frozen=True):
    """Parameters of a plugin that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginType(Generic[P]):
    """One value of `plugins[].type`.

    `build` gets the checked parameters and returns an object with the methods of its kinds (`filter`, `score`, `pick`,
    optionally `placed`); a profile belongs to one pool, so an instance may keep state by slot. It is None for what the
    picker does anyway.
    """

    name: str
    kinds: frozenset[PluginKind]
    parameters: type[P]
    summary: str
    """One sentence for `poolpilot config plugins`."""
    build: Callable[[P], object] | None = None
    aliases: tuple[str, ...] = ()
    """Older names, accepted with a warning."""
    old_parameters: Mapping[str, str] = field(default_factory=dict)
    """Older parameter → today's name; accepted with a warning."""
    unused_parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameter of llm-d or GIE → why it may be ignored here; accepted with a warning."""
    refused_parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameter of llm-d or GIE that cannot be honoured → what to do instead."""
    standing: Standing = Standing.RUNS
    note: str = ""
    """For WARNS and REFUSED: the end of the sentence that tells the user."""


class Registry:
    """Plugin types by name and alias."""

    def __init__(self, types: Iterable[PluginType[Any]] = ()) -> None:
        self._types: dict[str, PluginType[Any]] = {}
        self._by_name: dict[str, PluginType[Any]] = {}
        for plugin_type in types:
            self.add(plugin_type)

    def __iter__(self) -> Iterator[PluginType[Any]]:
        return iter(self._types.values())

    def add(self, plugin_type: PluginType[Any], origin: str = "the picker") -> None:
        """Adds a type.

        Raises:
            ConfigurationError: a name is taken, or the type could not be run.
        """
        for name in (plugin_type.name, *plugin_type.aliases):
            if name in self._by_name:
                raise ConfigurationError(
                    f"plugin type {name!r} of {origin} is already registered; a plugin type needs a name of its own"
                )
        if not plugin_type.kinds:
            raise ConfigurationError(f"plugin type {plugin_type.name!r} of {origin} has no kind")
        try:
            kind = msgspec.inspect.type_info(plugin_type.parameters)
        except (TypeError, NameError) as error:
            raise ConfigurationError(f"plugin type {plugin_type.name!r} of {origin}: parameters: {error}") from None
        if not isinstance(kind, msgspec.inspect.StructType):
            raise ConfigurationError(
                f"plugin type {plugin_type.name!r} of {origin}: parameters must be a msgspec.Struct, not {kind}"
            )
        runs = plugin_type.standing is Standing.RUNS
        if runs and plugin_type.kinds & ROUTING_KINDS and plugin_type.build is None:
            raise ConfigurationError(
                f"plugin type {plugin_type.name!r} of {origin} has no `build`: filters, scorers and pickers need one"
            )
        self._types[plugin_type.name] = plugin_type
        for name in (plugin_type.name, *plugin_type.aliases):
            self._by_name[name] = plugin_type

    def find(self, name: str) -> PluginType[Any] | None:
        """The type of this name or alias."""
        return self._by_name.get(name)

    def names(self, kinds: Iterable[PluginKind] = PluginKind) -> list[str]:
        """Names of the types of these kinds that are accepted, without aliases."""
        wanted = frozenset(kinds)
        return [
            plugin_type.name
            for plugin_type in self
            if plugin_type.kinds & wanted and plugin_type.standing is not Standing.REFUSED
        ]
