"""The metrics page: vLLM 0.32's families, labels, buckets and quirks, written from the engine's own counts.

Recorded quirks that are kept: gauges move only when a step ends; `vllm:lora_requests_info` keeps one series per
combination of adapters ever seen, its value is the Unix time of the last update and both lists are the same; every
counter and histogram has a `_created` gauge; `name[]` chooses samples by their full name.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolpilot_lab.engine.metric_families import FAMILIES, Family
from poolpilot_lab.engine.model import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from poolpilot_lab.engine.model import Engine

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

Series = list[tuple[dict[str, str], float]]


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The labels of `vllm:cache_config_info` that depend on the server; the others are vLLM's defaults."""

    block_size: int
    block_size_given: bool
    num_gpu_blocks: int
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool
    kv_bytes: int
    max_model_len: int

    def labels(self) -> dict[str, str]:
        """Every label, as vLLM prints it."""
        tokens = self.num_gpu_blocks * self.block_size
        return {
            "_block_size_resolved": "True",
            "block_size": str(self.block_size),
            "cache_dtype": "auto",
            "cache_hit_alignment_tokens": "None",
            "effective_attention_block_size": str(self.block_size),
            "enable_mamba_shared_prefix_checkpoint": "False",
            "enable_prefix_caching": str(self.enable_prefix_caching),
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "hash_block_size": "None",
            "is_attention_free": "False",
            "kv_cache_dtype_skip_layers": "[]",
            "kv_cache_layout": "None",
            "kv_cache_max_concurrency": str(tokens / self.max_model_len),
            "kv_cache_memory_bytes": str(self.kv_bytes),
            "kv_cache_size_tokens": str(tokens),
            "kv_offloading_backend": "native",
            "kv_offloading_size": "None",
            "kv_sharing_fast_prefill": "False",
            "mamba_block_size": "None",
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_page_size_padded": "None",
            "mamba_ssm_cache_dtype": "float32",
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(self.num_gpu_blocks),
            "num_gpu_blocks_override": str(self.num_gpu_blocks_override),
            "prefix_cache_retention_interval": "0",
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": "None",
            "replayssm_buffer_len": "16",
            "skip_page_size_padded": "None",
            "sliding_window": "None",
            "swa_bounded_replay": "True",
            "use_kda_recoverssm": "False",
            "use_replayssm": "False",
            "user_specified_block_size": str(self.block_size_given),
        }


class LoraInfo:
    """The series of `vllm:lora_requests_info`: combinations of active adapters and when each was last true."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}

    def update(self, adapters: Collection[str]) -> None:
        """A step ended with requests for these adapters in flight."""
        self.seen[",".join(adapters)] = time.time()


class MetricsPage:
    """Renders the page of one engine."""

    def __init__(
        self, engine: Engine, model_name: str, cache: CacheConfig, lora: LoraInfo | None, started: float
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._cache = cache
        self._lora = lora
        self._started = started
        self.http_requests: dict[tuple[str, str, str], int] = {}
        """requests by handler, method and class of status"""
        self._http_created: dict[tuple[str, str, str], float] = {}

    def count_http(self, handler: str, method: str, status: int) -> None:
        """One HTTP request was answered."""
        key = (handler, method, f"{status // 100}xx")
        self.http_requests[key] = self.http_requests.get(key, 0) + 1
        self._http_created.setdefault(key, time.time())

    def render(self, names: Collection[str] | None = None) -> bytes:
        """The page in text format; with `names` only samples with one of these names."""
        lines: list[str] = []
        for family in FAMILIES:
            if family.name.startswith("vllm:lora_") and self._lora is None:
                continue
            lines.extend(self._family(family, names))
        lines.append("")
        return "\n".join(lines).encode() if len(lines) > 1 else b""

    def _family(self, family: Family, names: Collection[str] | None) -> Iterator[str]:
        value = self._values(family.name)
        if isinstance(value, Histogram):
            yield from self._histogram(family, value, names)
        elif names is None or family.name in names:
            yield from _head(family.name, family.kind, family.help)
            for labels, number in value:
                yield f"{family.name}{_labels(labels)} {_number(number)}"
        if family.kind == "gauge" or not family.created:
            return
        created = (
            family.name.removesuffix("_total") + "_created" if family.kind == "counter" else f"{family.name}_created"
        )
        if names is None or created in names:
            yield from _head(created, "gauge", family.help)
            series = [(self._base(), 0.0)] if isinstance(value, Histogram) else value
            for labels, _ in series:
                yield f"{created}{_labels(labels)} {_number(self._created_at(family.name, labels))}"

    def _created_at(self, name: str, labels: dict[str, str]) -> float:
        if name != "http_requests_total":
            return self._started
        return self._http_created[labels["handler"], labels["method"], labels["status"]]

    def _histogram(self, family: Family, histogram: Histogram, names: Collection[str] | None) -> Iterator[str]:
        parts = [part for part in ("bucket", "count", "sum") if names is None or f"{family.name}_{part}" in names]
        if not parts:
            return
        yield from _head(family.name, "histogram", family.help)
        model = self._model_name
        if "bucket" in parts:
            total = 0
            bounds = [*map(_number, histogram.bounds), "+Inf"]
            for bound, count in zip(bounds, histogram.counts, strict=True):
                total += count
                yield f'{family.name}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {_number(total)}'
        base = _labels(self._base())
        if "count" in parts:
            yield f"{family.name}_count{base} {_number(histogram.count)}"
        if "sum" in parts:
            yield f"{family.name}_sum{base} {_number(histogram.sum)}"

    def _base(self, **labels: str) -> dict[str, str]:
        return {"engine": "0", "model_name": self._model_name, **labels}

    def _one(self, value: float) -> Series:
        return [(self._base(), value)]

    def _by(self, label: str, values: dict[str, float]) -> Series:
        return [(self._base(**{label: name}), value) for name, value in values.items()]

    def _values(self, name: str) -> Series | Histogram:
        """The current value of a family. Families that a stand-in has nothing to say about are 0."""
        source: Callable[[], Series | Histogram] | None = self._sources().get(name)
        return source() if source is not None else self._one(0.0)

    def _sources(self) -> dict[str, Callable[[], Series | Histogram]]:
        t = self._engine.telemetry
        g = t.gauges
        return {
            "process_start_time_seconds": lambda: [({}, self._started)],
            "process_cpu_seconds_total": lambda: [({}, time.process_time())],
            "process_resident_memory_bytes": lambda: [
                ({}, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)
            ],
            "vllm:num_requests_running": lambda: self._one(g.running),
            "vllm:num_requests_waiting": lambda: self._one(g.waiting),
            "vllm:num_requests_waiting_by_reason": lambda: self._by(
                "reason", {"capacity": g.waiting_capacity, "deferred": g.waiting_deferred}
            ),
            "vllm:engine_sleep_state": lambda: self._by(
                "sleep_state", {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
            ),
            "vllm:kv_cache_usage_perc": lambda: self._one(g.kv_usage),
            "vllm:prefix_cache_queries_total": lambda: self._one(t.prefix_queries),
            "vllm:prefix_cache_hits_total": lambda: self._one(t.prefix_hits),
            "vllm:num_preemptions_total": lambda: self._one(t.preemptions),
            "vllm:prompt_tokens_total": lambda: self._one(t.prompt_tokens),
            "vllm:prompt_tokens_by_source_total": lambda: self._by(
                "source",
                {
                    "local_compute": t.prompt_tokens_computed,
                    "local_cache_hit": t.prompt_tokens_cached,
                    "external_kv_transfer": 0.0,
                },
            ),
            "vllm:prompt_tokens_cached_total": lambda: self._one(t.prompt_tokens_cached),
            "vllm:prompt_tokens_cached_by_source_total": lambda: self._by(
                "source", {"device": t.prefix_hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
            ),
            "vllm:generation_tokens_total": lambda: self._one(t.generation_tokens),
            "vllm:request_success_total": lambda: self._by("finished_reason", dict(t.finished)),
            "vllm:admission_rejections_total": lambda: [
                ({"model_name": self._model_name, "reason": reason}, 0.0)
                for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
            ],
            "vllm:request_prompt_tokens": lambda: t.request_prompt_tokens,
            "vllm:request_generation_tokens": lambda: t.request_generation_tokens,
            "vllm:iteration_tokens_total": lambda: t.iteration_tokens,
            "vllm:request_max_num_generation_tokens": lambda: t.request_max_generation_tokens,
            "vllm:request_params_n": lambda: t.request_choices,
            "vllm:request_params_max_tokens": lambda: t.request_max_tokens,
            "vllm:time_to_first_token_seconds": lambda: t.ttft,
            "vllm:inter_token_latency_seconds": lambda: t.inter_token,
            "vllm:request_time_per_output_token_seconds": lambda: t.time_per_output_token,
            "vllm:e2e_request_latency_seconds": lambda: t.e2e,
            "vllm:request_queue_time_seconds": lambda: t.queue_time,
            "vllm:request_inference_time_seconds": lambda: t.inference_time,
            "vllm:request_prefill_time_seconds": lambda: t.prefill_time,
            "vllm:request_decode_time_seconds": lambda: t.decode_time,
            "vllm:request_num_preemptions": lambda: t.request_preemptions,
            "vllm:request_prefill_kv_computed_tokens": lambda: t.request_computed_tokens,
            "vllm:lora_requests_info": self._lora_series,
            "vllm:cache_config_info": lambda: [(self._cache.labels(), 1.0)],
            "http_requests_total": lambda: [
                ({"handler": handler, "method": method, "status": status}, count)
                for (handler, method, status), count in self.http_requests.items()
            ],
        }

    def _lora_series(self) -> Series:
        slots = str(self._engine.settings.max_loras)
        seen = self._lora.seen if self._lora is not None else {}
        return [
            ({"max_lora": slots, "running_lora_adapters": names, "waiting_lora_adapters": names}, when)
            for names, when in seen.items()
        ]


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(labels[name])}"' for name in sorted(labels)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    """A number as prometheus_client prints it: shortest form, with an exponent from 1e6 on."""
    text = repr(float(value))
    point = text.find(".")
    if value <= 0 or point <= 6 or "e" in text:
        return text
    mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
    return f"{mantissa}e+{point - 1:02d}"
