"""A loaded configuration back to a complete file, every value written out and explained: `poolpilot config default`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from poolpilot_picker.config.registry import PluginKind, PluginType
from poolpilot_picker.config.schema import API_VERSION, KIND
from poolpilot_picker.config.strict import BAD, default_of, struct_type
from poolpilot_picker.config.wording import wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolpilot_picker.config.load import LoadedConfig


def render_config(config: LoadedConfig) -> str:
    """A file that loads to the same configuration."""
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}", "plugins:"]
    profile = {entry.plugin.name: entry.plugin for entry in config.profile.entries}
    plugins = {plugin.name: plugin for plugin in config.plugins} | profile
    for plugin in plugins.values():
        lines.append(f"  - type: {plugin.type.name}")
        if plugin.name != plugin.type.name:
            lines.append(f"    name: {json.dumps(plugin.name)}")
        if plugin.parameters.__struct_fields__:
            lines.append("    parameters:")
            lines += _struct(plugin.parameters, 6)
    lines += ["schedulingProfiles:", f"  - name: {json.dumps(config.profile.name)}", "    plugins:"]
    for entry in config.profile.entries:
        lines.append(f"      - pluginRef: {json.dumps(entry.plugin.name)}")
        if PluginKind.SCORER in entry.plugin.type.kinds:
            lines.append(f"        weight: {entry.weight!r}")
    if config.flow is not None:
        lines.append("featureGates: [flowControl]")
        lines += [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in config.flow.written.items()]
    lines.append("poolpilot:")
    lines += _struct(config.settings, 2)
    return "\n".join(lines) + "\n"


def _struct(value: msgspec.Struct, indent: int) -> Iterator[str]:
    """Lines of a struct's fields, each under the sentence that explains it."""
    space = " " * indent
    for field in struct_type(type(value)).fields:
        held = getattr(value, field.name)
        sentence = description(field)
        if sentence:
            yield f"{space}# {sentence}"
        if held is None:
            yield f"{space}# {field.encode_name}: unset"
        elif isinstance(held, msgspec.Struct):
            yield f"{space}{field.encode_name}:"
            yield from _struct(held, indent + 2)
        else:
            plain = msgspec.to_builtins(held, str_keys=True)
            yield f"{space}{field.encode_name}: {json.dumps(plain, ensure_ascii=False)}"


def description(field: inspect.Field) -> str:
    """What a field means, where its type says so."""
    kind = field.type
    extra = kind.extra_json_schema if isinstance(kind, inspect.Metadata) else None
    return str((extra or {}).get("description", ""))


def describe_plugin(plugin_type: PluginType[Any]) -> str:
    """A plugin type with its parameters and defaults, as `poolpilot config plugins` prints it."""
    kinds = ", ".join(sorted(plugin_type.kinds))
    ending = f": {plugin_type.note}" if plugin_type.note else ""
    lines = [f"{plugin_type.name} ({kinds}): {plugin_type.summary}{ending}"]
    if plugin_type.aliases:
        lines.append(f"    older names: {', '.join(plugin_type.aliases)}")
    parameters: type[msgspec.Struct] = plugin_type.parameters
    for field in struct_type(parameters).fields:
        default = default_of(field)
        shown = "required" if default is BAD else f"default {json.dumps(msgspec.to_builtins(default))}"
        sentence = description(field)
        lines.append(f"    {field.encode_name}: {wanted(field.type)}, {shown}{'; ' + sentence if sentence else ''}")
    return "\n".join(lines)
