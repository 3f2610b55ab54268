"""A user's own metric names: the parameters of core-metrics-extractor's `engineConfigs`, as an Engine.

Where a built-in engine has the name, only what is given is replaced. Series that match a spec are added up (KV usage:
the largest counts), as for every engine; the LoRA family is read by its newest series, as vLLM's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.engines.mapping import (
    Engine,
    Found,
    Reading,
    highest,
    info_label,
    info_total,
    label_int,
    names_in,
    newest_labels,
    product,
    total,
    whole,
)
from poolpilot_picker.sources.metric_spec import MetricSpec, parse_metric_spec

if TYPE_CHECKING:
    from collections.abc import Mapping


class CustomMetric(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Any family as an attribute of the endpoint."""

    attribute_key: str
    metric_spec: str


class EngineSpecs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One entry of `engineConfigs`."""

    name: str
    queued_requests_spec: str | None = None
    running_requests_spec: str | None = None
    kv_usage_spec: str | None = None
    lora_spec: str | None = None
    cache_info_spec: str | None = None
    cache_block_size_label_name: str = "block_size"
    cache_num_blocks_label_name: str = "num_gpu_blocks"
    cache_block_size_spec: str | None = None
    cache_num_blocks_spec: str | None = None
    custom_metrics: tuple[CustomMetric, ...] = ()


def engine_from_specs(specs: EngineSpecs, builtin: Mapping[str, Engine], *, where: str = "engineConfigs") -> Engine:
    """The engine of one entry. Raises ConfigurationError that names the entry and field."""
    place = f"{where}[{specs.name}]"
    if not specs.name:
        raise ConfigurationError(f"{where}: an entry without a name")
    base = builtin.get(specs.name)
    readings: dict[str, Reading] = dict(base.readings) if base else {}

    def spec(field: str, text: str) -> MetricSpec:
        return parse_metric_spec(text, where=f"{place}.{field}")

    if specs.queued_requests_spec is not None:
        readings["waiting"] = total(spec("queuedRequestsSpec", specs.queued_requests_spec))
    if specs.running_requests_spec is not None:
        readings["running"] = total(spec("runningRequestsSpec", specs.running_requests_spec))
    if specs.kv_usage_spec is not None:
        readings["kv_usage"] = highest(spec("kvUsageSpec", specs.kv_usage_spec))
    if specs.lora_spec is not None:
        readings.update(_lora(spec("loraSpec", specs.lora_spec)))
    readings.update(_cache(specs, spec))
    if specs.custom_metrics:
        readings["attributes"] = _attributes(
            {
                metric.attribute_key: total(spec(f"customMetrics[{metric.attribute_key}]", metric.metric_spec))
                for metric in specs.custom_metrics
            }
        )
    if not readings:
        raise ConfigurationError(f"{place}: no metric is named, and {specs.name!r} is no built-in engine")
    if base is not None:
        return msgspec.structs.replace(base, readings=readings)
    return Engine(name=specs.name, readings=readings)


def _lora(lora: MetricSpec) -> dict[str, Reading]:
    return {
        "max_adapters": newest_labels(lora, lambda labels: label_int(labels, "max_lora")),
        "active_adapters": newest_labels(lora, lambda labels: names_in(labels.get("running_lora_adapters"))),
        "waiting_adapters": newest_labels(lora, lambda labels: names_in(labels.get("waiting_lora_adapters"))),
    }


def _cache(specs: EngineSpecs, spec: Any) -> dict[str, Reading]:
    """Block size and capacity: out of the labels of an info gauge, or gauges of their own, which go first."""
    readings: dict[str, Reading] = {}
    size_label, blocks_label = specs.cache_block_size_label_name, specs.cache_num_blocks_label_name
    if specs.cache_info_spec is not None:
        info = spec("cacheInfoSpec", specs.cache_info_spec)

        def capacity(labels: Mapping[str, str]) -> int | None:
            size, blocks = label_int(labels, size_label), label_int(labels, blocks_label)
            return None if size is None or blocks is None else size * blocks

        readings["block_tokens"] = info_label(info, size_label)
        readings["kv_capacity_tokens"] = info_total(info, capacity)
    if specs.cache_block_size_spec is not None:
        size = whole(spec("cacheBlockSizeSpec", specs.cache_block_size_spec))
        readings["block_tokens"] = size
        if specs.cache_num_blocks_spec is not None:
            blocks = whole(total(spec("cacheNumBlocksSpec", specs.cache_num_blocks_spec)))
            readings["kv_capacity_tokens"] = product(size, blocks)
    return readings


def _attributes(readings: dict[str, Reading]) -> Reading:
    def compute(found: Found) -> dict[str, float]:
        return {key: value for key, reading in readings.items() if (value := reading.compute(found)) is not None}

    families = tuple(dict.fromkeys(family for reading in readings.values() for family in reading.families))
    return Reading(families, compute)
