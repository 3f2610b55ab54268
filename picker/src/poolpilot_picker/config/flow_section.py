"""The section `flowControl` of an EndpointPickerConfig, checked, its policies resolved: what flow control runs by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.config.durations import milliseconds
from poolpilot_picker.config.flow_plugins import (
    ADMITTERS,
    CEILINGS,
    FAIRNESS,
    ORDERING,
    CeilingParameters,
    Fairness,
    Ordering,
    ProgramAwareParameters,
    StaticLimitParameters,
)
from poolpilot_picker.config.strict import BAD
from poolpilot_picker.config.wording import show

if TYPE_CHECKING:
    from poolpilot_picker.config.schema import EndpointPickerConfig, FlowControl, PriorityBand
    from poolpilot_picker.config.strict import Reader

BAND_REQUESTS: Final = 5_000
BAND_BYTES: Final = 1_000_000_000
TTL_MS: Final = 60_000.0
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("KMGT")
}

Used = tuple[str, Any]
"""(type, parameters) of a plugin that a reference names."""
Resolve = Callable[[str], Used | None]


class BandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Of one priority, or of all that have no other."""

    max_requests: int = BAND_REQUESTS
    max_bytes: int = BAND_BYTES
    fairness: Fairness = "virtual-token-counter"
    ordering: Ordering = "fcfs"


class FlowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says, or its defaults. A limit that is None is none; TTLs in ms, infinite where there is none."""

    max_requests: int | None = None
    max_bytes: int | None = None
    ttl_ms: float = TTL_MS
    no_endpoint_ttl_ms: float = TTL_MS
    default_band: BandPlan = BandPlan()
    negative_band: BandPlan | None = None
    bands: Mapping[int, BandPlan] = {}
    program_aware: ProgramAwareParameters = ProgramAwareParameters()
    detector: Any = None
    """Parameters of the detector; None: late binding's own bounds."""
    ceiling: CeilingParameters = StaticLimitParameters()
    admitters: tuple[Used, ...] = ()
    written: Mapping[str, Any] = {}
    """The sections as the file has them, by name."""


def flow_plan(
    reader: Reader, config: EndpointPickerConfig, resolve: Resolve, defined: Iterable[tuple[str, Used]]
) -> FlowPlan:
    """Of a file with the gate on; problems are reported. `defined`: (path, plugin) of all in `plugins`."""
    section = config.flow_control
    found = _Section(reader, resolve)
    plan: dict[str, Any] = {}
    detector = None
    if section is not None:
        plan = found.section(section)
        if section.saturation_detector is not None:
            detector = section.saturation_detector.plugin_ref
    if detector is None and config.saturation_detector is not None:
        detector = config.saturation_detector.plugin_ref
    used = None if detector is None else resolve(detector)
    admitters = tuple(plugin for _, plugin in defined if plugin[0] in ADMITTERS)
    sections = {"flowControl": section, "saturationDetector": config.saturation_detector}
    return FlowPlan(
        **plan,
        detector=None if used is None else used[1],
        program_aware=found.program_aware,
        admitters=admitters,
        written={name: _written(one) for name, one in sections.items() if one is not None},
    )


def _written(value: Any) -> Any:
    """Builtins, without what is unset."""
    if isinstance(value, msgspec.Struct):
        names = [(field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(value)]
        return {name: _written(held) for name, held in names if held is not None and held != []}
    return [_written(one) for one in value] if isinstance(value, list) else value


class _Section:
    def __init__(self, reader: Reader, resolve: Resolve) -> None:
        self._reader = reader
        self._resolve = resolve
        self.program_aware = ProgramAwareParameters()

    def section(self, flow: FlowControl) -> dict[str, Any]:
        """Arguments of FlowPlan."""
        path = "flowControl"
        ttl = self._duration(flow.default_request_ttl, f"{path}.defaultRequestTTL", TTL_MS)
        bands: dict[int, BandPlan] = {}
        listed: list[PriorityBand | Any] = [*flow.priority_bands]
        for index, band in enumerate(listed):
            if band is BAD:
                continue
            where = f"{path}.priorityBands[{index}]"
            if band.priority in bands:
                self._reader.problem(
                    f"{where}.priority", f"{band.priority} has a band already; give each one of its own"
                )
            bands[band.priority] = self._band(band, where)
        for name in ("default_priority_band", "default_negative_priority_band"):
            band = getattr(flow, name)
            if band is not None and band is not BAD and band.priority:
                field = "defaultPriorityBand" if name == "default_priority_band" else "defaultNegativePriorityBand"
                self._reader.warn(f"{path}.{field}.priority", "has no effect: a default is for no priority of its own")
        if flow.enable_eviction is True:
            self._reader.warn(f"{path}.enableEviction", "has no effect: a request that was placed is never taken back")
        default, negative = flow.default_priority_band, flow.default_negative_priority_band
        return {
            "max_requests": self._quantity(flow.max_requests, f"{path}.maxRequests", least=0) or None,
            "max_bytes": self._quantity(flow.max_bytes, f"{path}.maxBytes", least=0) or None,
            "ttl_ms": ttl,
            "no_endpoint_ttl_ms": self._duration(flow.no_endpoint_request_ttl, f"{path}.noEndpointRequestTTL", ttl),
            "default_band": BandPlan() if default is None else self._band(default, f"{path}.defaultPriorityBand"),
            "negative_band": None if negative is None else self._band(negative, f"{path}.defaultNegativePriorityBand"),
            "bands": bands,
            "ceiling": self._ceiling(flow.usage_limit_policy_plugin_ref, f"{path}.usageLimitPolicyPluginRef"),
        }

    def _band(self, band: PriorityBand, path: str) -> BandPlan:
        fairness: Fairness = "virtual-token-counter"
        ordering: Ordering = "fcfs"
        if (used := self._used(band.fairness_policy_ref, f"{path}.fairnessPolicyRef", FAIRNESS)) is not None:
            fairness = FAIRNESS[used[0]]
            if isinstance(used[1], ProgramAwareParameters):
                self.program_aware = used[1]
        if (used := self._used(band.ordering_policy_ref, f"{path}.orderingPolicyRef", ORDERING)) is not None:
            ordering = ORDERING[used[0]]
        requests = self._quantity(band.max_requests, f"{path}.maxRequests", least=1)
        volume = self._quantity(band.max_bytes, f"{path}.maxBytes", least=1)
        return BandPlan(
            max_requests=BAND_REQUESTS if requests is None else requests,
            max_bytes=BAND_BYTES if volume is None else volume,
            fairness=fairness,
            ordering=ordering,
        )

    def _ceiling(self, name: str | None, path: str) -> CeilingParameters:
        used = self._used(name, path, CEILINGS)
        ceiling: CeilingParameters = StaticLimitParameters() if used is None else used[1]
        return ceiling

    def _used(self, name: str | None, path: str, allowed: Iterable[str]) -> Used | None:
        """The plugin that a reference names, if it is one of the allowed types."""
        used = None if name is None else self._resolve(name)
        if used is None or used[0] in allowed:
            return used
        self._reader.problem(path, f"{show(name)} is of type {used[0]}. Allowed: {', '.join(allowed)}")
        return None

    def _quantity(self, value: Any, path: str, *, least: int) -> int | None:
        if value is None or value is BAD:
            return None
        match = _QUANTITY.fullmatch(str(value)) if isinstance(value, str) else None
        number: float = math.nan
        if match is not None:
            number = float(match[1]) * _UNITS[match[2] or ""]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            number = value
        if not (number >= least and number == math.floor(number)):
            self._reader.problem(
                path, f"{show(value)} is not a quantity; allowed is a whole number ≥ {least}, also 5k, 500M or 1Gi"
            )
            return None
        return int(number)

    def _duration(self, value: Any, path: str, default: float) -> float:
        """Milliseconds; 0 stands for no limit."""
        if value is None or value is BAD:
            return default
        found = milliseconds(value) if isinstance(value, str) else 0.0 if value == 0 else None
        if found is None:
            self._reader.problem(
                path, f"{show(value)} is not a duration; allowed is for example 60s, 1m30s, or 0s for none"
            )
            return default
        return found or math.inf
