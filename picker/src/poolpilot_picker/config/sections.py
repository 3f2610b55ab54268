"""Sections of an EndpointPickerConfig beside plugins and profiles: honoured, harmless (a warning) or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from poolpilot_picker.config.registry import PluginKind, PluginType
from poolpilot_picker.config.settings import FlowControlSettings
from poolpilot_picker.config.strict import BAD, Reader
from poolpilot_picker.config.wording import alternatives, show

if TYPE_CHECKING:
    from poolpilot_picker.config.schema import DataLayer, EndpointPickerConfig, FlowControl, PriorityBand

GATES: Final[dict[str, tuple[bool, str]]] = {
    "flowControl": (False, ""),
    "haPopulateNonLeaderDatastore": (True, "has no effect: every picker knows its endpoints, there is no leader"),
    "enableLegacyMetrics": (False, "has no effect: there is one poller"),
    "dataLayer": (False, ""),
}
"""Name → (llm-d's default, what is said when a file sets it otherwise)."""

ADDED: Final = {
    "fcfs-ordering-policy",
    "global-strict-fairness-policy",
    "static-usage-limit-policy",
    "utilization-detector",
}
"""Plugins that llm-d adds by itself: they may be referred to without being defined."""

NO_QUEUE: Final = "has no effect while the feature gate flowControl is off: requests are placed at once"

TypeOf = Callable[[str], PluginType[Any] | None]


def check_sections(reader: Reader, config: EndpointPickerConfig, type_of: TypeOf) -> None:
    """Reports what of these sections cannot be honoured, and references that lead nowhere."""
    _gates(reader, config.feature_gates)
    check = _References(reader, type_of)
    if config.data_layer is not None:
        _data_layer(reader, config.data_layer, check)
    held = gate_on(config, "flowControl")
    if config.flow_control is not None:
        if not held:
            reader.warn("flowControl", NO_QUEUE)
        _flow_control(config.flow_control, check)
    if not held and config.poolpilot.flow_control != FlowControlSettings():
        reader.warn("poolpilot.flowControl", NO_QUEUE)
    if config.request_handler is not None:
        parsers = config.request_handler.parsers
        for index, parser in _good(parsers):
            check(f"requestHandler.parsers[{index}].pluginRef", parser.plugin_ref, PluginKind.PARSER)
        _parsers(reader, "requestHandler.parsers", [parser.plugin_ref for _, parser in _good(parsers)], type_of)
    if config.parser is not None:
        reader.warn("parser", "is an old place; please write requestHandler.parsers")
        check("parser.pluginRef", config.parser.plugin_ref, PluginKind.PARSER)
        if config.request_handler is None:
            _parsers(reader, "parser", [config.parser.plugin_ref], type_of)
    if config.saturation_detector is not None:
        if not held:
            reader.warn("saturationDetector", NO_QUEUE)
        check("saturationDetector.pluginRef", config.saturation_detector.plugin_ref, PluginKind.SATURATION_DETECTOR)


def gate_on(config: EndpointPickerConfig, name: str) -> bool:
    """Whether a gate is on: what the file says last of it, or its default."""
    gates: list[Any] = [*config.feature_gates]
    said = [gate for gate in gates if gate is not BAD and gate.partition("=")[0] == name]
    return said[-1].partition("=")[2] != "false" if said else GATES[name][0]


def _good(values: list[Any]) -> Iterator[tuple[int, Any]]:
    return ((index, value) for index, value in enumerate(values) if value is not BAD)


def _gates(reader: Reader, gates: list[Any]) -> None:
    for index, gate in _good(gates):
        path = f"featureGates[{index}]"
        name, equals, setting = gate.partition("=")
        if name not in GATES:
            reader.problem(path, f"{show(name)} is not a known feature gate. {alternatives(name, GATES)}")
            continue
        if equals and setting not in {"true", "false"}:
            reader.problem(path, f'{show(gate)}: expected {name}, "{name}=true" or "{name}=false"')
            continue
        default, note = GATES[name]
        if (setting != "false") == default:
            continue
        if note:
            reader.warn(path, note)


class _References:
    """Checks that a reference names a plugin of the file, of the right kind, or a default that needs no entry."""

    def __init__(self, reader: Reader, type_of: TypeOf) -> None:
        self._reader = reader
        self._type_of = type_of

    def __call__(self, path: str, name: str | None, kind: PluginKind) -> None:
        if name is None or not self._reader.wrote(path):
            return
        try:
            plugin_type = self._type_of(name)
        except KeyError:
            if name not in ADDED:
                self._reader.problem(path, f"{show(name)} is not a name of plugins; define it there")
            return
        if plugin_type is not None and kind not in plugin_type.kinds:
            kinds = " and ".join(sorted(plugin_type.kinds))
            self._reader.problem(path, f"{show(name)} is a {kinds}, here stands a {kind}")


def _data_layer(reader: Reader, layer: DataLayer, check: _References) -> None:
    if not layer.inject_defaults:
        reader.warn("dataLayer.injectDefaults", "has no effect: engines are always polled")
    for index, source in _good(layer.sources):
        path = f"dataLayer.sources[{index}]"
        check(f"{path}.pluginRef", source.plugin_ref, PluginKind.DATA_SOURCE)
        for number, extractor in _good(source.extractors):
            check(f"{path}.extractors[{number}].pluginRef", extractor.plugin_ref, PluginKind.EXTRACTOR)
    refused = {
        "discovery": (layer.discovery, "give the picker its endpoints on the command line"),
        "peerDiscovery": (layer.peer_discovery, "pickers do not share state yet"),
        "crossReplicaSyncerPluginRef": (layer.cross_replica_syncer_plugin_ref, "pickers do not share state yet"),
        "crossReplicaSyncInterval": (layer.cross_replica_sync_interval, "pickers do not share state yet"),
    }
    for name, (value, instead) in refused.items():
        if value is not None:
            reader.problem(f"dataLayer.{name}", f"known but not supported yet; remove it: {instead}")


def _flow_control(flow: FlowControl, check: _References) -> None:
    bands: list[tuple[str, PriorityBand | Any]] = [
        ("flowControl.defaultPriorityBand", flow.default_priority_band),
        ("flowControl.defaultNegativePriorityBand", flow.default_negative_priority_band),
        *((f"flowControl.priorityBands[{index}]", band) for index, band in _good(flow.priority_bands)),
    ]
    for path, band in bands:
        if band is not None and band is not BAD:
            check(f"{path}.fairnessPolicyRef", band.fairness_policy_ref, PluginKind.FLOW_POLICY)
            check(f"{path}.orderingPolicyRef", band.ordering_policy_ref, PluginKind.FLOW_POLICY)
    check("flowControl.usageLimitPolicyPluginRef", flow.usage_limit_policy_plugin_ref, PluginKind.FLOW_POLICY)
    if flow.saturation_detector is not None:
        check(
            "flowControl.saturationDetector.pluginRef",
            flow.saturation_detector.plugin_ref,
            PluginKind.SATURATION_DETECTOR,
        )


def _parsers(reader: Reader, path: str, names: list[str], type_of: TypeOf) -> None:
    """A list without the OpenAI parser asks for bodies to be left alone, which would change what is answered."""
    types = set()
    for name in names:
        try:
            plugin_type = type_of(name)
        except KeyError:
            return
        if plugin_type is None:
            return
        types.add(plugin_type.name)
    if types and "openai-parser" not in types:
        reader.problem(
            path,
            f"{', '.join(sorted(types))} without openai-parser is known but not supported yet; OpenAI bodies are "
            "always read: add openai-parser, or remove the list",
        )
